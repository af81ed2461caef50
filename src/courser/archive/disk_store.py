"""A store in a directory, for archives on another disk or a network mount.

An object is a file. It is written and synced under a temporary name, and then linked to its name: a link fails if the
name is taken, and a power cut leaves the whole object or nothing.

If the disk is unmounted, its mount point is left: an empty directory that takes files, or none at all. So each write
checks before and after it that the directory is the one that was recognized. After a change in between, the object may
be in the wrong place, but it does not count.
"""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath

import numpy as np

from courser.archive.errors import ArchiveFailure, ArchiveGone, ObjectMissing
from courser.archive.store import StoredObject
from courser.errors import StorageFailure
from courser.model.buffers import Buffer
from courser.storage.durable_files import list_if_there, make_directories, sync_directory, sync_file, unlink_if_there
from courser.storage.files import DirectoryIdentity, EntryKind, File, FileSystem, read_exactly, read_into, write_all
from courser.storage.paths import TEMPORARY_SUFFIX


class DiskStore:
    """Implements ``Store`` below ``directory``, which it never makes."""

    def __init__(self, file_system: FileSystem, directory: Path, nonce: bytes) -> None:
        """``nonce`` keeps the temporary files of several processes apart."""
        self._file_system = file_system
        self._directory = directory
        self._made: set[Path] = set()
        """Directories that are durable. To sync those of every object again costs more than to write a small one."""
        self._place: tuple[DirectoryIdentity, int] | None = None
        """What ``directory`` was when it was recognized, and the number of its device; None: anything goes."""
        self._names = (f".{nonce.hex()}-{number}{TEMPORARY_SUFFIX}" for number in itertools.count())

    @property
    def name(self) -> str:
        return str(self._directory)

    @property
    def reports_md5(self) -> bool:
        return False

    @property
    def keeps_parts(self) -> bool:
        return False

    def recognize(self) -> None:
        self._made.clear()
        self._place = self._look()

    def check_place(self) -> None:
        """Raise ``ArchiveGone`` if another directory is there, or none."""
        if self._place is not None and self._look() != self._place:
            raise ArchiveGone(
                self.name, "another directory than the one that was claimed is there; is its disk mounted?"
            )

    def _look(self) -> tuple[DirectoryIdentity, int]:
        try:
            found = self._file_system.identity(self._directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArchiveGone(self.name, "there is no such directory; is its disk mounted?") from error
        except OSError as error:
            raise ArchiveFailure("find", self.name, _reason(error)) from error
        return found, found.device

    def _failure(self, operation: str, key: str, error: OSError | StorageFailure) -> ArchiveFailure:
        """What to raise for an error, which may be that of a directory that is gone."""
        self.check_place()
        return ArchiveFailure(operation, key, _reason(error))

    def _missing(self, key: str) -> ObjectMissing:
        """What to raise for an object that was not found. It is missing only if this is the right directory."""
        self.check_place()
        return ObjectMissing(key)

    def put_new(self, key: str, data: bytes) -> bool:
        try:
            return self._put(key, [data])
        except (OSError, StorageFailure) as error:
            raise self._failure("create", key, error) from error

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        try:
            self._put(key, parts)
        except (OSError, StorageFailure) as error:
            raise self._failure("upload", key, error) from error

    def _put(self, key: str, parts: Iterable[Buffer]) -> bool:
        path = self._path(key)
        temporary = path.parent / next(self._names)
        self.check_place()
        file = self._create(temporary)
        try:
            size = 0
            for part in parts:
                size += write_all(file, size, [part])
            sync_file(file)
            is_new = self._name(temporary, path)
            # Only now: the disk may have been unmounted meanwhile, and this is then its mount point.
            self.check_place()
            return is_new
        finally:
            file.close()
            unlink_if_there(self._file_system, temporary)

    def _create(self, path: Path) -> File:
        """A new file. Its directory is made, and made durable, when this process uses it for the first time."""
        directory = path.parent
        if directory in self._made:
            try:
                return self._file_system.open(path, writable=True, create=True)
            except FileNotFoundError:
                # Somebody has removed it, or this is not the disk any more.
                self.check_place()
                self._made.clear()
        levels = (directory, *directory.parents)
        known = next(level for level in levels if level in self._made or level == self._directory)
        make_directories(self._file_system, directory, below=known)
        self._made.update(levels[: levels.index(known)])
        return self._file_system.open(path, writable=True, create=True)

    def _name(self, temporary: Path, path: Path) -> bool:
        """Give the object its name; False if the name is taken."""
        try:
            self._file_system.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            # Also if the name is taken: the process that took it may have died before its sync.
            sync_directory(self._file_system, path.parent)
        return True

    def read(self, key: str) -> bytes:
        try:
            with closing(self._file_system.open(self._path(key))) as file:
                data = read_exactly(file, 0, file.size())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(key) from error
        except OSError as error:
            raise ArchiveFailure("read", key, _reason(error)) from error
        return bytes(data or b"")

    def read_range(self, key: str, position: int, size: int) -> Buffer:
        # Not a bytearray, which would be zeroed first.
        buffer = np.empty(size, np.uint8).data
        file = self.open_file(key)
        try:
            return buffer[: read_into(file, position, buffer)]
        except OSError as error:
            raise ArchiveFailure("read", key, _reason(error)) from error
        finally:
            file.close()

    def open_file(self, key: str) -> File:
        try:
            return self._file_system.open(self._path(key))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(key) from error
        except OSError as error:
            raise ArchiveFailure("read", key, _reason(error)) from error

    def find(self, key: str) -> StoredObject | None:
        try:
            with closing(self._file_system.open(self._path(key))) as file:
                size = file.size()
        except (FileNotFoundError, NotADirectoryError):
            self.check_place()
            return None
        except OSError as error:
            raise ArchiveFailure("find", key, _reason(error)) from error
        return StoredObject(key, size, "", 0)

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        try:
            yield from self._walk(PurePosixPath(prefix))
            self.check_place()
        except (OSError, StorageFailure) as error:
            raise ArchiveFailure("list", prefix, _reason(error)) from error

    def _walk(self, directory: PurePosixPath) -> Iterator[StoredObject]:
        for entry in sorted(
            list_if_there(self._file_system, self._directory / directory), key=lambda found: found.name
        ):
            key = directory / entry.name
            if entry.kind is EntryKind.DIRECTORY:
                yield from self._walk(key)
            elif entry.kind is EntryKind.FILE and not entry.name.endswith(TEMPORARY_SUFFIX):
                yield StoredObject(str(key), entry.size, "", 0)

    def list_names(self, prefix: str) -> list[str]:
        """The names of directories."""
        try:
            entries = list_if_there(self._file_system, self._path(prefix))
            self.check_place()
        except StorageFailure as error:
            raise ArchiveFailure("list", prefix, _reason(error)) from error
        return sorted(entry.name for entry in entries if entry.kind is EntryKind.DIRECTORY)

    def delete(self, key: str) -> None:
        path = self._path(key)
        self.check_place()
        try:
            if unlink_if_there(self._file_system, path):
                sync_directory(self._file_system, path.parent)
        except (OSError, StorageFailure) as error:
            raise ArchiveFailure("delete", key, _reason(error)) from error

    def _path(self, key: str) -> Path:
        return self._directory.joinpath(*PurePosixPath(key).parts)


def _reason(error: OSError | StorageFailure) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
