"""Where the archive is, and how the archiver behaves, each with the key of the configuration that sets it.

Whoever reads an archive without a server needs these keys too. Durations are in microseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from courser.configuration.key import AnyKey, Key, fields_with_keys, key_of, keys_in, setting, unused_key, value_of
from courser.configuration.key_index import KeyIndex
from courser.configuration.loading import Configuration, load
from courser.errors import ConfigurationRefused
from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND

TABLE = "data_maintenance.archiver."
_MIB = 1024 * 1024
_HOUR = 3600 * SECOND
"""A restore that takes longer than the retention may miss objects that were removed meanwhile."""


class StoreKind(Enum):
    """The kinds of stores."""

    DISK = "disk"
    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"


class ArchiveMoment(Enum):
    """When a sealed segment is archived."""

    SEAL = "seal"
    EXPIRY = "expiry"
    """Only before retention deletes it."""


ARCHIVER_ENABLED = Key(
    f"{TABLE}enabled",
    kinds.BOOL,
    False,
    "whether to archive messages and metadata: [the archive](archive.md)",
)
ARCHIVE_KIND = Key(
    f"{TABLE}kind",
    kinds.named({kind.value: kind for kind in StoreKind}),
    StoreKind.DISK,
    "where: a directory, S3 and compatible stores, Google Cloud Storage, or Azure",
)
ARCHIVE_PATH = Key(
    f"{TABLE}disk.path",
    kinds.PATH,
    Path("local_data/archive"),
    "kind `disk`: the directory, on another disk; relative to the working directory",
    aliases=(f"{TABLE}path",),
)
MESSAGES_ARCHIVED: Key[bool | None] = Key(
    "data_maintenance.messages.archiver_enabled",
    kinds.OPTIONAL_BOOL,
    None,
    f"Iggy 0.5's switch for messages; must agree with `{TABLE}enabled`",
)
STATE_ARCHIVED: Key[bool | None] = Key(
    "data_maintenance.state.archiver_enabled",
    kinds.OPTIONAL_BOOL,
    None,
    f"Iggy 0.5's switch for metadata; must agree with `{TABLE}enabled`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """A place in a store. Values that a kind does not use are empty. ``STORE_KEYS`` has the keys of most fields."""

    kind: StoreKind = value_of(ARCHIVE_KIND)
    request_timeout: int = setting(
        f"{TABLE}request_timeout", kinds.duration(1), 60 * SECOND, "how long a request to the store may take"
    )
    path: Path = value_of(ARCHIVE_PATH)
    bucket: str = ""
    """For Azure: the container."""
    key_prefix: str = ""
    region: str = ""
    endpoint: str = ""
    """Empty: that of the provider."""
    path_style: bool = True
    account: str = ""
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    """Belongs to keys that are lent for a time. Azure: a shared access signature. Google: a bearer token."""
    credentials_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """How the archiver behaves."""

    store: StoreSettings = field(default_factory=StoreSettings)
    protects_expired: bool = setting(
        f"{TABLE}archive_expired",
        kinds.BOOL,
        True,
        "whether an expired segment is deleted only after it is archived; false deletes it in any case",
        aliases=("system.segment.archive_expired",),
    )
    """Whether retention waits for the archive. False deletes expired segments whether they are archived or not."""
    moment: ArchiveMoment = setting(
        f"{TABLE}archive_at",
        kinds.named({moment.value: moment for moment in ArchiveMoment}),
        ArchiveMoment.SEAL,
        "when a segment is archived: `seal`, when it is full; `expiry`, before retention deletes it",
    )
    interval: int = setting(f"{TABLE}interval", kinds.duration(1), 60 * SECOND, "time between two runs of the archiver")
    active_interval: int = setting(
        f"{TABLE}active_interval",
        kinds.duration(1, or_zero=True),
        300 * SECOND,
        "time between two runs that include segments that are still written: a lost machine loses at most the "
        "messages of this time; 0 archives only full segments",
    )
    bandwidth: int = setting(
        f"{TABLE}bandwidth", kinds.size(), 0, "bytes per second that uploads may use; 0 means no limit"
    )
    part_size: int = setting(
        f"{TABLE}part_size",
        kinds.size(5 * _MIB, 1024 * _MIB),
        16 * _MIB,
        "larger objects are uploaded in parts of so many bytes",
    )
    commit_size: int = 1024 * _MIB
    """Bytes after which a long run confirms what it has uploaded."""
    contact_timeout: int = 15 * SECOND
    """How long a start waits for the store. One that takes longer does not keep the server from serving."""
    last_run_timeout: int = 10 * SECOND
    """How long a stop waits for the last run."""
    cache_size: int = setting(
        f"{TABLE}cache_size", kinds.size(32 * _MIB), 128 * _MIB, "memory for messages that are read from the archive"
    )
    retention: int = setting(
        f"{TABLE}retention",
        kinds.duration(_HOUR, or_zero=True),
        0,
        "how far back a restore with `--until` stays possible: once a day, the archiver removes what no such "
        "restore needs, as `courser archive prune --keep` does; 0 removes nothing",
    )
    restore_on_start: bool = setting(
        f"{TABLE}restore_on_start",
        kinds.BOOL,
        False,
        "whether an empty data directory is filled from the archive",
    )
    take_over: bool = setting(
        f"{TABLE}take_over",
        kinds.BOOL,
        False,
        "whether to continue an archive that another server has taken over since, or to begin a new one where "
        "the old one is gone; for one start only",
    )
    cluster: str = setting(
        f"{TABLE}cluster",
        kinds.OPTIONAL_TEXT,
        "",
        "the archive to restore, by the beginning of its id, if the store has several",
    )


def _text(path: str, description: str, *, aliases: tuple[str, ...] = (), is_secret: bool = False) -> Key[str]:
    return Key(
        f"{TABLE}{path}",
        kinds.OPTIONAL_TEXT,
        "",
        description,
        aliases=tuple(f"{TABLE}{alias}" for alias in aliases),
        is_secret=is_secret,
    )


STORE_KEYS: Mapping[StoreKind, Mapping[str, AnyKey]] = MappingProxyType(
    {
        StoreKind.DISK: {},
        StoreKind.S3: {
            "bucket": _text("s3.bucket", "kind `s3`: the bucket"),
            "key_prefix": _text("s3.key_prefix", "what all keys begin with"),
            "region": _text("s3.region", "the region"),
            "endpoint": _text("s3.endpoint", "the address of a store that is not AWS, such as `http://127.0.0.1:9000`"),
            "access_key_id": _text(
                "s3.access_key_id",
                "the credentials; without them, those of the environment or the role of the machine",
                aliases=("s3.key_id",),
                is_secret=True,
            ),
            "secret_access_key": _text(
                "s3.secret_access_key", "the secret that belongs to them", aliases=("s3.key_secret",), is_secret=True
            ),
            "path_style": Key(
                f"{TABLE}s3.path_style",
                kinds.BOOL,
                True,
                "whether the bucket is part of the path; false makes it part of the host name",
            ),
        },
        StoreKind.GCS: {
            "bucket": _text("gcs.bucket", "kind `gcs`: the bucket"),
            "key_prefix": _text("gcs.key_prefix", "what all keys begin with"),
            "credentials_file": Key(
                f"{TABLE}gcs.credentials_file",
                kinds.FILE,
                None,
                "the key of a service account, as JSON; without it, the credentials of the environment",
            ),
            "endpoint": _text("gcs.endpoint", "the address of a store that is not Google's own"),
        },
        StoreKind.AZURE: {
            "account": _text("azure.account", "kind `azure`: the storage account"),
            "bucket": _text("azure.container", "the container"),
            "key_prefix": _text("azure.key_prefix", "what all keys begin with"),
            "secret_access_key": _text(
                "azure.access_key", "its key; without it, the credentials of the environment", is_secret=True
            ),
            "endpoint": _text("azure.endpoint", "the address of a store that is not Azure's own"),
        },
    }
)
"""The keys of each kind, by the fields of ``StoreSettings`` that have their values."""

ARCHIVE_KEYS: tuple[AnyKey, ...] = (
    *dict.fromkeys(keys_in(globals())),
    *(key for keys in STORE_KEYS.values() for key in keys.values()),
    unused_key(f"{TABLE}s3.tmp_upload_dir"),
)
"""All keys of the archive, and of Iggy's archiver."""


# --- from the configuration ---

_NEEDED = {
    StoreKind.DISK: (),
    StoreKind.S3: ("bucket",),
    StoreKind.GCS: ("bucket",),
    StoreKind.AZURE: ("account", "bucket"),
}
"""The settings that a kind needs."""


def place_keys() -> Iterator[AnyKey]:
    """The keys that say where the archive is: all that a reader needs."""
    yield from (key_of(ArchiveSettings, "cluster"), *fields_with_keys(StoreSettings).values())
    for keys in STORE_KEYS.values():
        yield from keys.values()


def load_archiver(path: Path | None, environment: Mapping[str, str], settings: Sequence[str]) -> Configuration:
    """The archiver's part of a server's configuration, for those who have no server.

    Raises:
        ConfigurationRefused: lists every problem.
    """
    return load(KeyIndex(ARCHIVE_KEYS), path, environment, settings, table=TABLE)


def store_settings(configuration: Configuration) -> StoreSettings:
    """The store, whether or not anything is missing."""
    keys = STORE_KEYS[configuration[ARCHIVE_KIND]]
    return configuration.fill(StoreSettings, **{name: configuration[key] for name, key in keys.items()})


def store_problems(configuration: Configuration) -> Iterator[str]:
    """What is missing to use the store."""
    kind = configuration[ARCHIVE_KIND]
    keys, store = STORE_KEYS[kind], store_settings(configuration)
    for name in _NEEDED[kind]:
        if not getattr(store, name):
            yield f"{keys[name].path} is required if {ARCHIVE_KIND.path} is {kind.value}"
    if kind is StoreKind.S3 and bool(store.access_key_id) != bool(store.secret_access_key):
        missing = keys["secret_access_key" if store.access_key_id else "access_key_id"]
        yield f"{missing.path} is required: an access key has two parts"


def usable_store(configuration: Configuration) -> StoreSettings:
    """The store, for those who need it, whether or not the archiver is enabled.

    Raises:
        ConfigurationRefused: lists what is missing.
    """
    if problems := list(store_problems(configuration)):
        raise ConfigurationRefused(problems)
    return store_settings(configuration)


def archive_settings(configuration: Configuration, last_run_timeout: int) -> ArchiveSettings | None:
    """The archiver; None if it is disabled. ``last_run_timeout``: microseconds that a stop waits for its last run."""
    if not configuration[ARCHIVER_ENABLED]:
        return None
    store = store_settings(configuration)
    return configuration.fill(ArchiveSettings, store=store, last_run_timeout=last_run_timeout)
