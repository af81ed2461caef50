"""The keys of the archiver in the configuration: those of Iggy 0.5 and of the durable storage guide, and our own.

They are here and not with the server's other keys because whoever reads an archive without a server needs them too.
"""

from typing import Any

from courser.archive.settings import ArchiveMoment, ArchiveSettings, StoreKind, StoreSettings
from courser.configuration.key import Key, unused_key
from courser.model import setting_kinds as kinds

_ARCHIVE = ArchiveSettings()
_STORE = StoreSettings()
TABLE = "data_maintenance.archiver."
_MIB = 1024 * 1024
_HOUR = 3600 * 1_000_000
"""Microseconds: a restore that takes longer than the retention may miss objects that were removed meanwhile."""


def _text(path: str, description: str, *, aliases: tuple[str, ...] = (), is_secret: bool = False) -> Key[str]:
    return Key(
        path=f"{TABLE}{path}",
        kind=kinds.OPTIONAL_TEXT,
        default="",
        aliases=tuple(f"{TABLE}{alias}" for alias in aliases),
        description=description,
        is_secret=is_secret,
    )


ARCHIVER_ENABLED = Key(
    path=f"{TABLE}enabled",
    kind=kinds.BOOL,
    default=False,
    description="whether to archive messages and metadata: [the archive](archive.md)",
)
ARCHIVE_KIND = Key(
    path=f"{TABLE}kind",
    kind=kinds.choice(*(kind.value for kind in StoreKind)),
    default=_STORE.kind.value,
    description="where: a directory, S3 and compatible stores, Google Cloud Storage, or Azure",
)
ARCHIVE_EXPIRED = Key(
    path=f"{TABLE}archive_expired",
    kind=kinds.BOOL,
    default=_ARCHIVE.protects_expired,
    aliases=("system.segment.archive_expired",),
    description="whether an expired segment is deleted only after it is archived; false deletes it in any case",
)
ARCHIVE_AT = Key(
    path=f"{TABLE}archive_at",
    kind=kinds.choice(*(moment.value for moment in ArchiveMoment)),
    default=_ARCHIVE.moment.value,
    description="when a segment is archived: `seal`, when it is full; `expiry`, before retention deletes it",
)
ARCHIVE_INTERVAL = Key(
    path=f"{TABLE}interval",
    kind=kinds.duration(1),
    default=_ARCHIVE.interval,
    description="time between two runs of the archiver",
)
ACTIVE_INTERVAL = Key(
    path=f"{TABLE}active_interval",
    kind=kinds.duration(1, or_zero=True),
    default=_ARCHIVE.active_interval,
    description="time between two runs that include segments that are still written: a lost machine loses at most the "
    "messages of this time; 0 archives only full segments",
)
ARCHIVE_BANDWIDTH = Key(
    path=f"{TABLE}bandwidth",
    kind=kinds.size(),
    default=_ARCHIVE.bandwidth,
    description="bytes per second that uploads may use; 0 means no limit",
)
ARCHIVE_PART_SIZE = Key(
    path=f"{TABLE}part_size",
    kind=kinds.size(5 * _MIB, 1024 * _MIB),
    default=_ARCHIVE.part_size,
    description="larger objects are uploaded in parts of so many bytes",
)
ARCHIVE_CACHE_SIZE = Key(
    path=f"{TABLE}cache_size",
    kind=kinds.size(32 * _MIB),
    default=_ARCHIVE.cache_size,
    description="memory for messages that are read from the archive",
)
ARCHIVE_RETENTION = Key(
    path=f"{TABLE}retention",
    kind=kinds.duration(_HOUR, or_zero=True),
    default=_ARCHIVE.retention,
    description="how far back a restore with `--until` stays possible: once a day, the archiver removes what no such "
    "restore needs, as `courser archive prune --keep` does; 0 removes nothing",
)
ARCHIVE_TIMEOUT = Key(
    path=f"{TABLE}request_timeout",
    kind=kinds.duration(1),
    default=_STORE.request_timeout,
    description="how long a request to the store may take",
)
RESTORE_ON_START = Key(
    path=f"{TABLE}restore_on_start",
    kind=kinds.BOOL,
    default=_ARCHIVE.restore_on_start,
    description="whether an empty data directory is filled from the archive",
)
TAKE_OVER = Key(
    path=f"{TABLE}take_over",
    kind=kinds.BOOL,
    default=_ARCHIVE.take_over,
    description="whether to continue an archive that another server has taken over since, or to begin a new one where "
    "the old one is gone; for one start only",
)
ARCHIVE_CLUSTER = _text("cluster", "the archive to restore, by the beginning of its id, if the store has several")
ARCHIVE_PATH = Key(
    path=f"{TABLE}disk.path",
    kind=kinds.PATH,
    default=_STORE.path,
    aliases=(f"{TABLE}path",),
    description="kind `disk`: the directory, on another disk; relative to the working directory",
)
S3_BUCKET = _text("s3.bucket", "kind `s3`: the bucket")
S3_KEY_PREFIX = _text("s3.key_prefix", "what all keys begin with")
S3_REGION = _text("s3.region", "the region")
S3_ENDPOINT = _text("s3.endpoint", "the address of a store that is not AWS, such as `http://127.0.0.1:9000`")
S3_ACCESS_KEY_ID = _text(
    "s3.access_key_id",
    "the credentials; without them, those of the environment or the role of the machine",
    aliases=("s3.key_id",),
    is_secret=True,
)
S3_SECRET_ACCESS_KEY = _text(
    "s3.secret_access_key", "the secret that belongs to them", aliases=("s3.key_secret",), is_secret=True
)
S3_PATH_STYLE = Key(
    path=f"{TABLE}s3.path_style",
    kind=kinds.BOOL,
    default=_STORE.path_style,
    description="whether the bucket is part of the path; false makes it part of the host name",
)
GCS_BUCKET = _text("gcs.bucket", "kind `gcs`: the bucket")
GCS_KEY_PREFIX = _text("gcs.key_prefix", "what all keys begin with")
GCS_CREDENTIALS_FILE = Key(
    path=f"{TABLE}gcs.credentials_file",
    kind=kinds.FILE,
    default=None,
    description="the key of a service account, as JSON; without it, the credentials of the environment",
)
GCS_ENDPOINT = _text("gcs.endpoint", "the address of a store that is not Google's own")
AZURE_ACCOUNT = _text("azure.account", "kind `azure`: the storage account")
AZURE_CONTAINER = _text("azure.container", "the container")
AZURE_KEY_PREFIX = _text("azure.key_prefix", "what all keys begin with")
AZURE_ACCESS_KEY = _text("azure.access_key", "its key; without it, the credentials of the environment", is_secret=True)
AZURE_ENDPOINT = _text("azure.endpoint", "the address of a store that is not Azure's own")
MESSAGES_ARCHIVED = Key(
    path="data_maintenance.messages.archiver_enabled",
    kind=kinds.OPTIONAL_BOOL,
    default=None,
    description=f"Iggy 0.5's switch for messages; must agree with `{TABLE}enabled`",
)
STATE_ARCHIVED = Key(
    path="data_maintenance.state.archiver_enabled",
    kind=kinds.OPTIONAL_BOOL,
    default=None,
    description=f"Iggy 0.5's switch for metadata; must agree with `{TABLE}enabled`",
)

STOCK_KEYS = (unused_key(f"{TABLE}s3.tmp_upload_dir"),)
"""Keys of Iggy's own files that have no effect here."""

BUCKETS: dict[StoreKind, tuple[Key[str], ...]] = {
    StoreKind.DISK: (),
    StoreKind.S3: (S3_BUCKET,),
    StoreKind.GCS: (GCS_BUCKET,),
    StoreKind.AZURE: (AZURE_ACCOUNT, AZURE_CONTAINER),
}
"""The keys that a kind needs."""

PLACE_KEYS: tuple[Key[Any], ...] = (
    *(ARCHIVE_KIND, ARCHIVE_CLUSTER, ARCHIVE_TIMEOUT, ARCHIVE_PATH),
    *(S3_BUCKET, S3_KEY_PREFIX, S3_REGION, S3_ENDPOINT, S3_ACCESS_KEY_ID, S3_SECRET_ACCESS_KEY, S3_PATH_STYLE),
    *(GCS_BUCKET, GCS_KEY_PREFIX, GCS_CREDENTIALS_FILE, GCS_ENDPOINT),
    *(AZURE_ACCOUNT, AZURE_CONTAINER, AZURE_KEY_PREFIX, AZURE_ACCESS_KEY, AZURE_ENDPOINT),
)
"""The keys that say where the archive is: all that a reader needs."""
