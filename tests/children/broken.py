"""File systems that break a promise: a test that does not notice them proves nothing."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from courser.model.buffers import Buffer
from courser.storage.data_directory import DataDirectory
from courser.storage.files import DirectoryEntry, DirectoryIdentity, File, FileSystem, write_all
from courser.storage.local_files import LocalFileSystem
from tests.children.plan import Fault


def open_data_directory(path: Path, fault: Fault) -> DataDirectory:
    """Open a data directory, on a broken file system if a fault is asked for."""
    directory = DataDirectory.open(path)
    if fault is not Fault.NONE:
        directory.file_system = BrokenFileSystem(LocalFileSystem(), fault)
    return directory


class BrokenFile:
    """A file whose sync lies, or whose write does."""

    def __init__(self, file: File, fault: Fault) -> None:
        self._file = file
        self._fault = fault
        self._buffered: list[tuple[int, bytes]] = []

    @property
    def path(self) -> Path:
        return self._file.path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        if self._fault is Fault.BUFFERED_WRITES:
            data = b"".join(buffers)
            self._buffered.append((position, data))
            return len(data)
        return self._file.write_at(position, buffers)

    def read_at(self, position: int, buffer: memoryview, *, wait: bool = True) -> int:
        return self._file.read_at(position, buffer, wait=wait)

    def sync(self) -> None:
        buffered, self._buffered = self._buffered, []
        for position, data in buffered:
            write_all(self._file, position, [data])
        match self._fault:
            case Fault.NO_SYNC:
                return
            case Fault.IGNORED_SYNC_ERRORS:
                with contextlib.suppress(OSError):
                    self._file.sync()
            case _:
                self._file.sync()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def allocate(self, position: int, size: int) -> None:
        self._file.allocate(position, size)

    def reserve(self, position: int, size: int) -> None:
        self._file.reserve(position, size)

    def start_writeback(self, position: int, size: int) -> None:
        self._file.start_writeback(position, size)

    def discard_cache(self, size: int = 0) -> None:
        if self._fault is not Fault.IGNORED_SYNC_ERRORS:
            self._file.discard_cache(size)

    def size(self) -> int:
        return self._file.size()

    def hold(self) -> bool:
        return self._file.hold()

    def release(self) -> None:
        self._file.release()

    def close(self) -> None:
        self._file.close()


class BrokenFileSystem:
    """Does what another one does, except for syncs."""

    def __init__(self, file_system: FileSystem, fault: Fault) -> None:
        self._file_system = file_system
        self._fault = fault

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> File:
        return BrokenFile(self._file_system.open(path, writable=writable, create=create), self._fault)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        return self._file_system.list_directory(path)

    def make_directory(self, path: Path) -> None:
        self._file_system.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._file_system.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._file_system.link(source, target)

    def unlink(self, path: Path) -> None:
        self._file_system.unlink(path)

    def remove_directory(self, path: Path) -> None:
        self._file_system.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        if self._fault in (Fault.NO_SYNC, Fault.NO_DIRECTORY_SYNC):
            return
        with contextlib.suppress(OSError) if self._fault is Fault.IGNORED_SYNC_ERRORS else contextlib.nullcontext():
            self._file_system.sync_directory(path)

    def identity(self, path: Path) -> DirectoryIdentity:
        return self._file_system.identity(path)

    def free_space(self, path: Path) -> int:
        return self._file_system.free_space(path)
