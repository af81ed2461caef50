"""Names of files and directories: the only place where one is put together or taken apart."""

from pathlib import Path

LOCK = "lock"
SESSION = "session"
RESTORE_MARKER = "restore_unfinished"
METADATA = "metadata"
JOURNAL = "journal.wal"
METADATA_SNAPSHOT = "snapshot.bin"
ARCHIVE_STATE = "archive_state"
STAGING = "staging"
ACCESS_TOKENS = "access_tokens"
TOKEN_KEY = "key"
REVOKED_TOKENS = "revoked"
PROVEN_DIALECTS = "proven_dialects"
SCRUBBER = "scrubber"
STREAMS = "streams"
TOPICS = "topics"
PARTITIONS = "partitions"
DESCRIPTOR = "descriptor"
LEDGER = "ledger"
OFFSETS = "offsets"
QUARANTINE = "quarantine"
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
STAGED_SUFFIX = ".part"
TEMPORARY_SUFFIX = ".tmp"

_OFFSET_DIGITS = 20


def stream_directory(data_directory: Path, stream_id: int) -> Path:
    """Where one stream lives. Ids, never names: a name may hold a slash."""
    return data_directory.joinpath(STREAMS, str(stream_id))


def topic_directory(data_directory: Path, stream_id: int, topic_id: int) -> Path:
    """Where one topic lives."""
    return data_directory.joinpath(STREAMS, str(stream_id), TOPICS, str(topic_id))


def partition_directory(
    data_directory: Path, stream_id: int, topic_id: int, partition_id: int, incarnation: int
) -> Path:
    """Where one partition lives."""
    name = f"{partition_id}-{incarnation}"
    return data_directory.joinpath(STREAMS, str(stream_id), TOPICS, str(topic_id), PARTITIONS, name)


def log_path(directory: Path, base_offset: int) -> Path:
    """The batches of the segment that begins at ``base_offset``."""
    return directory / f"{base_offset:0{_OFFSET_DIGITS}d}{LOG_SUFFIX}"


def index_path(directory: Path, base_offset: int) -> Path:
    """The index of the segment that begins at ``base_offset``."""
    return directory / f"{base_offset:0{_OFFSET_DIGITS}d}{INDEX_SUFFIX}"


def temporary_path(path: Path) -> Path:
    """Where the contents of a file are written before they replace it. A start removes what it finds there."""
    return path.with_name(path.name + TEMPORARY_SUFFIX)


def base_offset_of(name: str, suffix: str) -> int | None:
    """The offset in a segment file's name, or None if it is no such name."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _OFFSET_DIGITS or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)
