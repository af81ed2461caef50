"""One server per data directory, and how the last one left it: the files ``lock`` and ``session``.

``session`` says which format the directory has, on which boot, mount and inode the last server ran, and whether it
stopped cleanly (``docs/formats/session.md``). It is replaced at two moments: when all partitions are recovered, before
anything is appended, and at the end of a clean stop. A start that is interrupted is thus repeated with the same facts.
"""

import struct
from dataclasses import astuple, dataclass
from pathlib import Path

from courser.errors import StartRefused
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import replace_file, storage_failure
from courser.storage.files import DirectoryIdentity, FileSystem, read_exactly
from courser.storage.paths import SESSION
from courser.storage.recovery_cases import StopKind

DIRECTORY_FORMAT = 1
"""Format of the whole data directory. A newer one is refused before anything is written."""

_SESSION = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the rest
    "4s"  # magic
    "I"  # directory_format
    "16s"  # boot_id
    "Q"  # mount_id
    "Q"  # inode
    "B"  # is_clean
    "7x"
    "Q"  # time
)
_UNOPENED = struct.Struct("<16sQQ")
"""Behind the rest, any number of them: topic_uuid, partition_id and incarnation of a partition that was not opened."""
_MAGIC = b"CRSS"
_CHECKSUM_SIZE = 8
_SIZE_MAX = 16 * 1024 * 1024
"""Bytes that are looked at: half a million partitions that were not opened."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What the file says."""

    directory_format: int
    identity: DirectoryIdentity
    is_clean: bool
    time: int = 0
    """Of the wall clock when it was written, in microseconds; 0 if an older version wrote it."""
    unopened: frozenset[PartitionIdentity] = frozenset()
    """Partitions whose files were missing or replaced by another partition's.

    The session did not put them in order. If they come back, nobody knows how they were left."""

    def encode(self) -> bytes:
        """The file's contents."""
        identity = self.identity
        place = identity.boot_id, identity.mount_id, identity.inode
        rest = _SESSION.pack(0, _MAGIC, self.directory_format, *place, self.is_clean, self.time)[_CHECKSUM_SIZE:]
        rest += b"".join(sorted(_UNOPENED.pack(*astuple(partition)) for partition in self.unopened))
        return xxh3(rest).to_bytes(8, "little") + rest


def decode_session(data: bytes) -> SessionRecord | None:
    """Take the file apart; None if it is damaged."""
    # It may be longer: a newer version has more to say, and must be recognised as one.
    if len(data) < _SESSION.size:
        return None
    checksum, magic, directory_format, boot_id, mount_id, inode, is_clean, time = _SESSION.unpack_from(data)
    if magic != _MAGIC or xxh3(data[_CHECKSUM_SIZE:]) != checksum:
        return None
    rest = data[_SESSION.size :]
    if len(rest) % _UNOPENED.size:
        # A newer version has more to say than this one understands.
        rest = b""
    unopened = frozenset(PartitionIdentity(*fields) for fields in _UNOPENED.iter_unpack(rest))
    return SessionRecord(directory_format, DirectoryIdentity(boot_id, mount_id, inode), bool(is_clean), time, unopened)


def read_session(file_system: FileSystem, directory: Path) -> SessionRecord | None:
    """The last session; None if there was none, or nobody can tell.

    Raises:
        StorageFailure: the file is there, and cannot be read.
    """
    try:
        file = file_system.open(directory / SESSION)
        data = read_exactly(file, 0, min(file.size(), _SIZE_MAX))
        file.close()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_failure("read", directory / SESSION, error) from error
    return decode_session(bytes(data or b""))


def check_format(file_system: FileSystem, directory: Path) -> None:
    """Refuse a directory that a newer version has written. Writes nothing itself: call it before the lock."""
    session = read_session(file_system, directory)
    if session is not None and session.directory_format > DIRECTORY_FORMAT:
        raise StartRefused(
            directory,
            f"it has format {session.directory_format}, and this version knows formats up to {DIRECTORY_FORMAT}",
            "start the newer version that wrote it, or use another directory",
        )


def how_it_stopped(file_system: FileSystem, directory: Path) -> StopKind:
    """Tell a clean stop from a kill, and a kill from everything that may have lost unsynced writes."""
    session = read_session(file_system, directory)
    if session is None:
        return StopKind.CRASHED
    before, now = session.identity, file_system.identity(directory)
    if session.is_clean:
        # A copy of a clean directory is another timeline: the original may have gone on and confirmed more offsets.
        return StopKind.CLEAN if before.inode == now.inode else StopKind.CRASHED
    # Mount id 0: the kernel cannot tell a remount, and a remount loses unwritten pages like a power cut does.
    is_same = before == now and now.mount_id != 0 and any(now.boot_id)
    return StopKind.KILLED if is_same else StopKind.CRASHED


def last_known_time(file_system: FileSystem, directory: Path) -> int:
    """What the clock said when the last session began or, if it ended cleanly, ended; 0 if nobody knows."""
    session = read_session(file_system, directory)
    return session.time if session is not None else 0


def begin_session(
    file_system: FileSystem, directory: Path, now: int = 0, unopened: frozenset[PartitionIdentity] = frozenset()
) -> None:
    """Everything is recovered but ``unopened``: from now on this start is the last one."""
    _write(file_system, directory, now, unopened, is_clean=False)


def end_session(
    file_system: FileSystem, directory: Path, now: int = 0, unopened: frozenset[PartitionIdentity] = frozenset()
) -> None:
    """Everything is synced and closed."""
    _write(file_system, directory, now, unopened, is_clean=True)


def _write(
    file_system: FileSystem, directory: Path, now: int, unopened: frozenset[PartitionIdentity], *, is_clean: bool
) -> None:
    session = SessionRecord(DIRECTORY_FORMAT, file_system.identity(directory), is_clean, now, unopened)
    replace_file(file_system, directory / SESSION, session.encode())
