"""Where the archive is, and how the archiver behaves. ``server`` fills these from the configuration."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

_SECOND = 1_000_000
_MIB = 1024 * 1024


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """A place in a store. Values that a kind does not use are empty."""

    kind: StoreKind = StoreKind.DISK
    path: Path = Path("local_data/archive")
    bucket: str = ""
    """For Azure: the container."""
    key_prefix: str = ""
    region: str = ""
    endpoint: str = ""
    """Empty: that of the provider."""
    path_style: bool = True
    """Whether the bucket is part of the path and not of the host name."""
    account: str = ""
    access_key_id: str = field(default="", repr=False)
    """Empty: from the environment, or the role of the machine."""
    secret_access_key: str = field(default="", repr=False)
    credentials_file: Path | None = None
    request_timeout: int = 60 * _SECOND
    """Microseconds that one request may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """How the archiver behaves."""

    store: StoreSettings = StoreSettings()
    moment: ArchiveMoment = ArchiveMoment.SEAL
    protects_expired: bool = True
    """Whether retention waits for the archive. False deletes expired segments whether they are archived or not."""
    interval: int = 60 * _SECOND
    """Microseconds between two runs."""
    active_interval: int = 300 * _SECOND
    """Microseconds between two runs that include the segments that are still written; 0: none does."""
    bandwidth: int = 0
    """Bytes per second that uploads may use; 0: no limit."""
    part_size: int = 16 * _MIB
    """Bytes of a part of a large object."""
    commit_size: int = 1024 * _MIB
    """Bytes after which a long run confirms what it has uploaded."""
    contact_timeout: int = 15 * _SECOND
    """Microseconds that a start waits for the store. One that takes longer does not keep the server from serving."""
    last_run_timeout: int = 10 * _SECOND
    """Microseconds that a stop waits for the last run."""
    cache_size: int = 128 * _MIB
    """Bytes of archived messages that are kept in memory for readers."""
    retention: int = 0
    """Microseconds back in time that a restore stays possible; what none needs is removed. 0: nothing is removed."""
    cluster: str = ""
    """The beginning of the id of the archive to restore, if the store has several."""
    take_over: bool = False
    """Whether to claim an archive that another server has taken over."""
    restore_on_start: bool = False
    """Whether an empty data directory is filled from the archive."""
