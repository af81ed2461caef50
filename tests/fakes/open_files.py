"""What a process holds of a ``FakeFileSystem``: open files, and the sync of all of it. Both die with the process."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NoReturn, Protocol, TypeVar

from courser.model.buffers import Buffer
from courser.storage.local_files import SharedFile
from tests.fakes.faults import FaultPlan
from tests.fakes.nodes import FileNode

Result = TypeVar("Result")


class Disk(Protocol):
    """What they need of the ``FakeFileSystem``, which carries out all that they do."""

    random: Random
    plan: FaultPlan
    cold: bool
    life: int
    open_files: dict[int, Path]
    forgotten: list[Path]

    def _perform(
        self,
        operation: str,
        path: Path,
        effect: Callable[[], Result],
        *,
        mutates: bool = True,
        part: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> Result: ...

    def _write(self, file: "FakeFile", position: int, data: bytes) -> int: ...

    def _truncate(self, file: "FakeFile", size: int) -> None: ...

    def _allocate(self, file: "FakeFile", position: int, size: int) -> None: ...

    def _reserve(self, file: "FakeFile", position: int, size: int) -> None: ...

    def _release(self, file: "FakeFile") -> None: ...


def refuse(error: int, path: Path) -> NoReturn:
    """Fail as a call of the kernel does."""
    # The constructor picks the subclass that belongs to the number, as the real calls do.
    raise OSError(error, os.strerror(error), str(path))


class FakeFile(SharedFile):
    """An open file of a ``FakeFileSystem``. It dies with the process that opened it."""

    def __init__(self, system: Disk, path: Path, node: FileNode, *, writable: bool) -> None:
        self._system = system
        self._path = path
        self._node = node
        self._writable = writable
        self._life = system.life
        self._closed = False
        super().__init__()
        node.handles += 1
        system.open_files[id(self)] = path

    @property
    def path(self) -> Path:
        """The name it was opened under; a rename does not change it."""
        return self._path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write the buffers behind one another. Return how many bytes were taken: perhaps fewer than given."""
        data = b"".join(buffers)
        system = self._system

        def part() -> None:
            system._write(self, position, data[: system.random.randint(0, len(data))])

        return self._perform("write_at", lambda: system._write(self, position, data), part=part)

    def read_at(self, position: int, buffer: memoryview, *, wait: bool = True) -> int:
        """Fill the buffer. Return how many bytes came: fewer at the end of the file."""
        return self._perform("read_at", lambda: self._read(position, buffer, wait), mutates=False)

    def sync(self) -> None:
        """Make the bytes and the size durable. Not the name."""
        node = self._node

        def commit() -> None:
            node.commit()

        self._perform("sync", commit, failed=lambda: node.fail(self._system.random))

    def truncate(self, size: int) -> None:
        """Cut or extend the file. Durable after the next ``sync``."""
        self._perform("truncate", lambda: self._system._truncate(self, size))

    def allocate(self, position: int, size: int) -> None:
        """Extend the file with zeros up to ``position + size``; they count against the capacity."""
        system = self._system

        def part() -> None:
            system._allocate(self, position, system.random.randint(0, size))

        self._perform("allocate", lambda: system._allocate(self, position, size), part=part)

    def reserve(self, position: int, size: int) -> None:
        """Set room aside up to ``position + size``, all of it or none; it counts against the capacity."""
        self._perform("reserve", lambda: self._system._reserve(self, position, size), mutates=False)

    def start_writeback(self, position: int, size: int) -> None:
        """Promises nothing and does nothing: pending bytes may survive a power cut anyway."""
        if position < 0 or size < 0:
            raise ValueError(f"no range of a file: {position}, {size}")
        self._perform("start_writeback", lambda: None, mutates=False)

    def discard_cache(self, size: int = 0) -> None:
        """Reads show what a failed sync left on the disk, no longer what the process wrote."""
        self._perform("discard_cache", self._node.discard_clean, mutates=False)

    def size(self) -> int:
        """Bytes in the file, allocated zeros included."""
        return self._perform("size", lambda: len(self._node.data), mutates=False)

    def _close(self) -> None:
        self._closed = True
        self._system.open_files.pop(id(self), None)
        self._system._release(self)

    def __del__(self) -> None:
        if not self._closed:
            if self._life == self._system.life:
                self._system.forgotten.append(self._path)
            self._close()

    def _perform(
        self,
        operation: str,
        effect: Callable[[], Result],
        *,
        mutates: bool = True,
        part: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> Result:
        if self._life != self._system.life:
            raise RuntimeError(f"{self._path} was used after the crash")
        if self._closed:
            refuse(errno.EBADF, self._path)
        return self._system._perform(operation, self._path, effect, mutates=mutates, part=part, failed=failed)

    def _read(self, position: int, buffer: memoryview, wait: bool) -> int:
        system = self._system
        if position < 0:
            refuse(errno.EINVAL, self._path)
        if system.cold and not wait:
            refuse(errno.EAGAIN, self._path)
        size = system.plan.portion("read_at", self._path, len(buffer), system.random)
        # A slice copies: a view of the content would forbid the next write to make the file grow.
        data = self._node.data[position : position + size]
        buffer[: len(data)] = data
        return len(data)
