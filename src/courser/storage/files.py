"""The seam to the disk: what storage asks of a file system, and nothing more.

``LocalFileSystem`` (``local_files.py``) is the real one. ``tests/fakes`` has one with power cuts in it. Every method
may raise ``OSError``. No method hides a short read or a short write: that is the caller's business, because a caller
that forgets it corrupts a log (see ``write_all``).
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from courser.model.buffers import Buffer


class EntryKind(Enum):
    """What a directory entry is. A symbolic link is never followed."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory."""

    name: str
    kind: EntryKind
    size: int


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """Tells "the process was killed" from "the machine, the mount or the directory is another one"."""

    boot_id: bytes
    """16 bytes, new at each start of the kernel."""
    mount_id: int
    """Unique per mount and never reused; 0 where the kernel cannot tell."""
    inode: int
    device: int = field(default=0, compare=False)
    """Not part of what a session remembers: it may have another number after a start of the kernel."""


class File(Protocol):
    """An open file. Positional calls only, so readers and the writer share no cursor.

    Calls may come from several threads at once. Whoever opens it closes it, or hands it to an owner that does. Whoever
    uses a file of another owner holds it meanwhile: it stays open until then, and no reader sees its descriptor reused.
    """

    @property
    def path(self) -> Path:
        """The name it was opened under; a rename does not change it."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write the buffers behind one another. Return how many bytes were taken: perhaps fewer than given."""

    def read_at(self, position: int, buffer: memoryview, *, wait: bool = True) -> int:
        """Fill the buffer. Return how many bytes came: fewer at the end of the file.

        With ``wait=False`` raise ``BlockingIOError``, or return less, rather than wait for the disk.
        """

    def sync(self) -> None:
        """Return once the data, and the size that is needed to read it, would survive a power cut.

        After an error the file is not to be trusted: a second call may succeed without having done anything.
        """

    def truncate(self, size: int) -> None:
        """Cut or extend the file. Durable after the next ``sync``."""

    def allocate(self, position: int, size: int) -> None:
        """Reserve disk space up to ``position + size``, as zeros at the end of the file.

        Only for speed: where it cannot be done, nothing happens. What is written there meanwhile is not touched.
        """

    def reserve(self, position: int, size: int) -> None:
        """Reserve disk space up to ``position + size``; the file does not grow. A truncation gives it back.

        Later writes there find room on a full disk. Where it cannot be done, nothing happens.
        """

    def start_writeback(self, position: int, size: int) -> None:
        """Ask the kernel to begin writing this range, without waiting. A hint: promises nothing."""

    def discard_cache(self, size: int = 0) -> None:
        """Forget clean pages, of the whole file or its first bytes, so that the next read comes from the disk itself.

        After a failed sync the kernel holds data in memory that it no longer means to write.
        """

    def size(self) -> int:
        """Bytes in the file, allocated zeros included."""

    def hold(self) -> bool:
        """Keep it open until ``release``, whatever its owner does. False if it is closed already."""

    def release(self) -> None:
        """End one ``hold``; the last one closes a file that its owner has closed."""

    def close(self) -> None:
        """Close now, or when the last who holds it releases it. Closing twice is harmless."""


class FileSystem(Protocol):
    """The directory operations. None is durable before ``sync_directory`` of the parent directory returns."""

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> File:
        """Open a regular file, never through a symbolic link. ``create`` demands that it does not exist yet."""

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """The entries, in no particular order. ``FileNotFoundError`` if there is no such directory."""

    def make_directory(self, path: Path) -> None:
        """Make one directory, mode 0700; ``FileExistsError`` if it is there."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target`` in one step."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; ``FileExistsError`` if the name is taken."""

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: Path) -> None:
        """Return once all names made, renamed and removed in this directory would survive a power cut."""

    def identity(self, path: Path) -> DirectoryIdentity:
        """Device, inode and mount of the directory, and the boot."""

    def free_space(self, path: Path) -> int:
        """Free bytes of the disk that a directory is on. A hint: others use them too."""


@contextmanager
def held(file: File) -> Iterator[File]:
    """Hold a file of another owner. Raises ``OSError`` if it is closed."""
    if not file.hold():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(file.path))
    try:
        yield file
    finally:
        file.release()


def write_all(file: File, position: int, buffers: Sequence[Buffer]) -> int:
    """Write every byte, however the kernel portions it, and return how many that were.

    Raises:
        OSError: some bytes may have been written before it; the caller cuts the file back.
    """
    size = sum(map(len, buffers))
    written = file.write_at(position, buffers)
    return size if written == size else write_rest(file, position, buffers, written)


def write_rest(file: File, position: int, buffers: Sequence[Buffer], written: int) -> int:
    """Go on with a write of which ``written`` bytes were taken. Returns and raises as ``write_all`` does."""
    size = sum(map(len, buffers))
    if written == size:
        return size
    # Near a full disk the kernel takes a part and refuses the rest on the next call.
    rest = memoryview(b"".join(buffers))
    while written < size:
        taken = file.write_at(position + written, [rest[written:]])
        if taken == 0:
            raise OSError(f"a write of {size - written} bytes to {file.path} wrote nothing")
        written += taken
    return size


def read_exactly(file: File, position: int, size: int) -> bytearray | None:
    """Read ``size`` bytes, or return None if the file ends before."""
    data = bytearray(size)
    return data if read_into(file, position, memoryview(data)) == size else None


def read_into(file: File, position: int, buffer: memoryview, *, wait: bool = True) -> int:
    """Fill the buffer as far as the file goes and return how many bytes came."""
    filled = file.read_at(position, buffer, wait=wait)
    while 0 < filled < len(buffer):
        more = file.read_at(position + filled, buffer[filled:], wait=wait)
        if more == 0:
            break
        filled += more
    return filled
