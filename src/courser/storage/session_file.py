"""The file ``session``: how the last server on this data directory stopped.

It records the format of the directory, the boot, mount and inode on which the last server ran, and whether that server
stopped cleanly (``docs/formats/session.md``). It is replaced twice: after recovery, before anything is appended, and at
the end of a clean stop. An interrupted start is therefore repeated from the same facts.
"""

import struct
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from courser.errors import DiskFull, StartRefused
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import replace_file, storage_failure, sync_file
from courser.storage.files import DirectoryIdentity, FileSystem, read_exactly, write_all
from courser.storage.paths import SESSION
from courser.storage.recovery_cases import StopKind

DIRECTORY_FORMAT = 1
"""The format of the whole data directory. A directory with a newer format is refused before anything is written."""

_SESSION = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the rest
    "4s"  # magic
    "I"  # directory_format
    "16s"  # boot_id
    "Q"  # mount_id
    "Q"  # inode
    "Q"  # is_clean, and in the bits above the first 8: login_end
    "Q"  # time
)
_UNOPENED = struct.Struct("<16sQQ")
"""Repeated after the header: topic_uuid, partition_id and incarnation of each partition that was not opened."""
_MAGIC = b"CRSS"
_CHECKSUM_SIZE = 8
_FLAGS_BITS = 8
_SIZE_MAX = 16 * 1024 * 1024
"""Maximum size in bytes: enough for half a million partitions that were not opened."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The contents of the file."""

    directory_format: int
    identity: DirectoryIdentity
    is_clean: bool
    time: int = 0
    """Wall clock time when it was written, in microseconds; 0 if an older version wrote it."""
    login_end: int = 0
    """All numbers that logins have got are below it."""
    unopened: frozenset[PartitionIdentity] = frozenset()
    """Partitions whose files were missing or belonged to another partition.

    The session did not recover them. If their files are restored, it is unknown how they were left."""

    def encode(self) -> bytes:
        """Encode it for the file."""
        identity = self.identity
        place = identity.boot_id, identity.mount_id, identity.inode
        flags = self.is_clean | self.login_end << _FLAGS_BITS
        rest = _SESSION.pack(0, _MAGIC, self.directory_format, *place, flags, self.time)[_CHECKSUM_SIZE:]
        rest += b"".join(sorted(_UNOPENED.pack(*astuple(partition)) for partition in self.unopened))
        return xxh3(rest).to_bytes(8, "little") + rest


def decode_session(data: bytes) -> SessionRecord | None:
    """Decode the file; None if it is damaged."""
    # The file may be longer: a newer version may have added fields, and its format must be recognized.
    if len(data) < _SESSION.size:
        return None
    checksum, magic, directory_format, boot_id, mount_id, inode, flags, time = _SESSION.unpack_from(data)
    if magic != _MAGIC or xxh3(data[_CHECKSUM_SIZE:]) != checksum:
        return None
    rest = data[_SESSION.size :]
    if len(rest) % _UNOPENED.size:
        # Written by a newer version: this one does not understand the rest.
        rest = b""
    unopened = frozenset(PartitionIdentity(*fields) for fields in _UNOPENED.iter_unpack(rest))
    identity = DirectoryIdentity(boot_id, mount_id, inode)
    return SessionRecord(directory_format, identity, bool(flags & 1), time, flags >> _FLAGS_BITS, unopened)


def read_session(file_system: FileSystem, directory: Path) -> SessionRecord | None:
    """The last session; None if there was none, or the file is damaged.

    Raises:
        StorageFailure: the file exists but cannot be read.
    """
    try:
        with closing(file_system.open(directory / SESSION)) as file:
            data = read_exactly(file, 0, min(file.size(), _SIZE_MAX))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_failure("read", directory / SESSION, error) from error
    return decode_session(bytes(data or b""))


def check_format(file_system: FileSystem, directory: Path) -> None:
    """Refuse a directory that a newer version has written. Writes nothing: call it before taking the lock."""
    session = read_session(file_system, directory)
    if session is not None and session.directory_format > DIRECTORY_FORMAT:
        raise StartRefused(
            directory,
            f"it has format {session.directory_format}, but this version supports formats up to {DIRECTORY_FORMAT}",
            "use the newer version that wrote it, or another directory",
        )


def how_it_stopped(file_system: FileSystem, directory: Path) -> StopKind:
    """How the last session ended. After anything but a clean stop or a kill, unsynced writes may be lost."""
    session = read_session(file_system, directory)
    if session is None:
        return StopKind.CRASHED
    before, now = session.identity, file_system.identity(directory)
    if session.is_clean:
        # The directory may be a copy whose original was used further and has confirmed more offsets.
        return StopKind.CLEAN if before.inode == now.inode else StopKind.CRASHED
    # With mount id 0, the kernel cannot detect a remount, which loses unwritten pages like a power cut.
    is_same = before == now and now.mount_id != 0 and any(now.boot_id)
    return StopKind.KILLED if is_same else StopKind.CRASHED


def last_known_time(file_system: FileSystem, directory: Path) -> int:
    """The time when the last session started or, after a clean stop, ended; 0 if unknown."""
    session = read_session(file_system, directory)
    return session.time if session is not None else 0


def begin_session(
    file_system: FileSystem,
    directory: Path,
    now: int = 0,
    unopened: frozenset[PartitionIdentity] = frozenset(),
    login_end: int = 0,
) -> None:
    """Record that a session has started: everything except ``unopened`` is recovered."""
    _write(file_system, directory, now, unopened, login_end, is_clean=False)


def end_session(
    file_system: FileSystem,
    directory: Path,
    now: int = 0,
    unopened: frozenset[PartitionIdentity] = frozenset(),
    login_end: int = 0,
) -> None:
    """Record a clean stop: everything is synced and closed."""
    _write(file_system, directory, now, unopened, login_end, is_clean=True)


def _write(
    file_system: FileSystem,
    directory: Path,
    now: int,
    unopened: frozenset[PartitionIdentity],
    login_end: int,
    *,
    is_clean: bool,
) -> None:
    session = SessionRecord(DIRECTORY_FORMAT, file_system.identity(directory), is_clean, now, login_end, unopened)
    path, data = directory / SESSION, session.encode()
    try:
        replace_file(file_system, path, data)
    except DiskFull as failure:
        _overwrite(file_system, path, data, failure)


def _overwrite(file_system: FileSystem, path: Path, data: bytes, failure: DiskFull) -> None:
    """Write over the file itself, which needs no room if it is not longer than before.

    After a power cut in between, or if the disk takes only a part of it, its checksum is wrong. The next start then
    does not know how this session ended, and takes it for a crash, which is always safe.
    """
    try:
        with closing(file_system.open(path, writable=True)) as file:
            write_all(file, 0, [data])
            file.truncate(len(data))
            sync_file(file)
    except FileNotFoundError:
        raise failure from None
    except OSError as error:
        raise storage_failure("write", path, error) from error
