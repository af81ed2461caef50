"""The real disk: positional calls on Linux, and the lock that keeps a second server out of a data directory."""

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import NamedTuple, NoReturn, Self, TypeAlias

from courser.errors import StartRefused
from courser.model.buffers import Buffer
from courser.storage.files import DirectoryEntry, DirectoryIdentity, EntryKind
from courser.storage.paths import LOCK

_BUFFERS_MAX = 1024
"""What Linux takes in one vectored write (IOV_MAX)."""

_SYNC_FILE_RANGE_WRITE = 2
_FALLOC_FL_KEEP_SIZE = 1

_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EINTR})
"""Answers to a reservation that say nothing about the disk: no such thing here, or not this time."""

_AT_WORKING_DIRECTORY = -100
_STATX_SIZE = 256
_STATX_MOUNT_ID_UNIQUE = 0x4000
_STATX_MOUNT_ID_POSITION = 144

_BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
_BOOT_ID_UNKNOWN = bytes(16)

_Call: TypeAlias = Callable[..., int]


class KernelCalls(NamedTuple):
    """What Linux offers and Python does not, or not as it is needed. None where it is missing."""

    writeback: _Call | None
    """Descriptor, position, size, flags."""
    allocation: _Call | None
    """Descriptor, mode, position, size. Not ``os.posix_fallocate``: where a file system cannot reserve, the C library
    writes zeros instead, over messages that are being written there at that moment."""


class SharedFile:
    """A file that is closed by its owner, or after that by the last who holds it. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holder_count = 0
        self._is_closing = False

    def hold(self) -> bool:
        """Keep it open until ``release``, whatever its owner does. False if it is closed already."""
        with self._lock:
            if self._is_closing:
                return False
            self._holder_count += 1
            return True

    def release(self) -> None:
        """End one ``hold``."""
        with self._lock:
            self._holder_count -= 1
            is_last = self._is_closing and not self._holder_count
        if is_last:
            self._close()

    def close(self) -> None:
        """Close now, or when the last who holds it releases it. Closing twice is harmless."""
        with self._lock:
            was_closing, self._is_closing = self._is_closing, True
            is_unused = not was_closing and not self._holder_count
        if is_unused:
            self._close()

    def _close(self) -> None:
        """Called once."""
        raise NotImplementedError


class LocalFile(SharedFile):
    """A descriptor."""

    def __init__(self, path: Path, descriptor: int, calls: KernelCalls) -> None:
        self._descriptor = descriptor
        self._path = path
        self._calls = calls
        super().__init__()

    @property
    def path(self) -> Path:
        return self._path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        if position < 0 or self._descriptor < 0:
            self._refuse(position)
        if len(buffers) > _BUFFERS_MAX:
            buffers = buffers[:_BUFFERS_MAX]
        return os.pwritev(self._descriptor, buffers, position)

    def read_at(self, position: int, buffer: memoryview, *, wait: bool = True) -> int:
        """Fill the buffer. Return how many bytes came, as ``File.read_at`` does."""
        if position < 0 or self._descriptor < 0:
            self._refuse(position)
        if wait:
            return os.preadv(self._descriptor, (buffer,), position)
        try:
            return os.preadv(self._descriptor, (buffer,), position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # This file system cannot promise not to wait: the caller has to read as if the data were cold.
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(self._path)) from error

    def sync(self) -> None:
        if self._descriptor < 0:
            self._refuse()
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, position: int, size: int) -> None:
        self._allocate(0, position, size)

    def reserve(self, position: int, size: int) -> None:
        """Reserve disk space up to ``position + size``; the file does not grow."""
        self._allocate(_FALLOC_FL_KEEP_SIZE, position, size)

    def _allocate(self, mode: int, position: int, size: int) -> None:
        if position < 0 or self._descriptor < 0:
            self._refuse(position)
        if self._calls.allocation is None or not self._calls.allocation(self._descriptor, mode, position, size):
            return
        number = ctypes.get_errno()
        if number not in _CANNOT_RESERVE:
            raise OSError(number, os.strerror(number), str(self._path))

    def start_writeback(self, position: int, size: int) -> None:
        if self._calls.writeback is not None:
            # The result is of no interest: this call leaves a write-back error in place for the next sync to report.
            self._calls.writeback(self._descriptor, position, size, _SYNC_FILE_RANGE_WRITE)

    def discard_cache(self, size: int = 0) -> None:
        os.posix_fadvise(self._descriptor, 0, size, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def __del__(self) -> None:
        # Only a safety net: whoever opens a file sees to it that it is closed (tests/storage/test_open_files.py).
        if self._descriptor >= 0:
            self._close()

    def _refuse(self, position: int = 0) -> NoReturn:
        """Stop what the calls below would take for something else.

        To the kernel, position -1 is "where the cursor is"; to ``os.fdatasync``, a closed file is a ``ValueError``.
        """
        if position < 0:
            raise OSError(errno.EINVAL, f"invalid file position {position}", str(self._path))
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))


class LocalFileSystem:
    """The kernel's file system, without symbolic links at the last step of a path."""

    def __init__(self, boot_id_path: Path = _BOOT_ID_PATH) -> None:
        """``boot_id_path`` is where the kernel says which boot this is."""
        self._boot_id_path = boot_id_path
        library = ctypes.CDLL(None, use_errno=True)
        self._calls = _find_calls(library)
        self._library = library

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> LocalFile:
        """Open a regular file, never through a symbolic link.

        ``create`` demands that it does not exist yet, and implies ``writable``.
        """
        # Without O_NONBLOCK the open of a pipe that somebody left there would wait for ever.
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_RDWR if writable or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        file = LocalFile(path, os.open(path, flags, 0o600), self._calls)
        mode = os.fstat(file._descriptor).st_mode
        if not stat.S_ISREG(mode):
            file.close()
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(number, "not a regular file", str(path))
        return file

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        entries = []
        with os.scandir(path) as found:
            for entry in found:
                # A file may be unlinked between the listing and the look at its size: then it is not there.
                with contextlib.suppress(FileNotFoundError):
                    entries.append(_describe(entry))
        return entries

    def make_directory(self, path: Path) -> None:
        path.mkdir(0o700)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def identity(self, path: Path) -> DirectoryIdentity:
        """Who this directory is right now. A mount id of 0 says "cannot tell", also if the boot id is unknown."""
        found = path.stat()
        boot_id = _read_boot_id(self._boot_id_path)
        mount_id = _read_mount_id(self._library, path) if boot_id != _BOOT_ID_UNKNOWN else 0
        return DirectoryIdentity(boot_id=boot_id, mount_id=mount_id, inode=found.st_ino, device=found.st_dev)

    def free_space(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


class DirectoryLock:
    """Holds a data directory for this process until it is closed, dropped, or the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """The lock file is open with it. The lock is held until every copy of it is closed."""
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


_LOCK_PATIENCE = 10.0
"""Seconds that a start waits for the last processes of a server that was killed. The kernel is ending them."""
_LOCK_INTERVAL = 0.01


def lock_directory(path: Path) -> DirectoryLock:
    """Take the data directory for this process alone.

    Raises:
        StartRefused: another process has it; the message names that process.
    """
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartRefused(
            path,
            f"could not open its lock file: {error.strerror}",
            "check that this user can write to the directory and that it is not mounted read-only",
        ) from error
    lock = DirectoryLock(descriptor)
    deadline = time.monotonic() + _LOCK_PATIENCE
    while not _is_locked(descriptor):
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        if _has_ended(holder) and time.monotonic() < deadline:
            time.sleep(_LOCK_INTERVAL)
            continue
        lock.close()
        raise StartRefused(
            path,
            f"the directory is in use by another server (process {holder})",
            "stop that server first, or choose another data directory",
        )
    # The number only serves the message above, so a full disk is no reason not to start.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return lock


def _is_locked(descriptor: int) -> bool:
    """Take the lock, if nobody has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_ended(holder: str) -> bool:
    """Whether the process that took the lock is gone, so that only its children have it: they end with it."""
    try:
        state = Path(f"/proc/{int(holder)}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return holder.isdigit() and not Path(f"/proc/{holder}").exists() and Path("/proc/self").exists()
    return state == "Z"


def _describe(entry: os.DirEntry[str]) -> DirectoryEntry:
    if entry.is_file(follow_symlinks=False):
        return DirectoryEntry(entry.name, EntryKind.FILE, entry.stat(follow_symlinks=False).st_size)
    kind = EntryKind.DIRECTORY if entry.is_dir(follow_symlinks=False) else EntryKind.OTHER
    return DirectoryEntry(entry.name, kind, 0)


def _find_calls(library: ctypes.CDLL) -> KernelCalls:
    size = ctypes.c_int64
    return KernelCalls(
        writeback=_find_call(library, "sync_file_range", (ctypes.c_int, size, size, ctypes.c_uint)),
        allocation=_find_call(library, "fallocate", (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)),
    )


def _find_call(library: ctypes.CDLL, name: str, arguments: tuple[type, ...]) -> _Call | None:
    try:
        function = getattr(library, name)
    except AttributeError:
        return None
    function.argtypes = arguments
    function.restype = ctypes.c_int
    call: _Call = function
    return call


def _read_boot_id(path: Path) -> bytes:
    try:
        boot_id = bytes.fromhex(path.read_text("ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return _BOOT_ID_UNKNOWN
    return boot_id if len(boot_id) == len(_BOOT_ID_UNKNOWN) else _BOOT_ID_UNKNOWN


def _read_mount_id(library: ctypes.CDLL, path: Path) -> int:
    """The mount id that is never reused, or 0 where kernel (before 6.8) or library cannot tell."""
    try:
        function = library.statx
    except AttributeError:
        return 0
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    function.restype = ctypes.c_int
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if function(_AT_WORKING_DIRECTORY, os.fsencode(path), 0, _STATX_MOUNT_ID_UNIQUE, answer) != 0:
        return 0
    # The kernel says in the mask what it filled in; an old one leaves the bit out, or puts the reusable id there.
    if not int.from_bytes(answer.raw[:4], sys.byteorder) & _STATX_MOUNT_ID_UNIQUE:
        return 0
    end = _STATX_MOUNT_ID_POSITION + 8
    return int.from_bytes(answer.raw[_STATX_MOUNT_ID_POSITION:end], sys.byteorder)
