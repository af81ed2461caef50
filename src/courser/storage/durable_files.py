"""Small durable steps that everything else is made of: replace a file, remove a file, copy bytes aside.

Each function names what a power cut in the middle of it leaves behind.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable
from pathlib import Path

from courser.errors import DiskFull, StorageFailure
from courser.model.buffers import Buffer
from courser.storage.files import DirectoryEntry, EntryKind, File, FileSystem, read_into, write_all
from courser.storage.limits import DEFAULT_LIMITS
from courser.storage.paths import TEMPORARY_SUFFIX

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def storage_failure(operation: str, path: Path, error: OSError) -> StorageFailure:
    """The error to raise for an ``OSError``: a full disk is told apart, because it heals."""
    kind = DiskFull if error.errno in _NO_SPACE and operation != "sync" else StorageFailure
    return kind(operation, path, error)


def heals(failure: StorageFailure) -> bool:
    """Whether the same may work later: a full disk empties, descriptors come back. A failed sync never heals."""
    is_out_of_descriptors = failure.cause is not None and failure.cause.errno in _NO_DESCRIPTOR
    return isinstance(failure, DiskFull) or (is_out_of_descriptors and failure.operation != "sync")


def is_failed_sync(failure: Exception) -> bool:
    """Whether a sync was asked of the disk and failed. Without a descriptor for it, it was not even asked."""
    if not isinstance(failure, StorageFailure) or failure.operation != "sync":
        return False
    return failure.cause is None or failure.cause.errno not in _NO_DESCRIPTOR


def sync_file(file: File) -> None:
    """Sync, or raise ``StorageFailure``: then the unsynced data is to be given up, not synced again."""
    try:
        file.sync()
    except OSError as error:
        raise storage_failure("sync", file.path, error) from error


def sync_directory(file_system: FileSystem, path: Path) -> None:
    """Make the names in a directory durable, or raise ``StorageFailure``."""
    try:
        file_system.sync_directory(path)
    except OSError as error:
        raise storage_failure("sync", path, error) from error


def sync_names_if_possible(file_system: FileSystem, path: Path) -> None:
    """The same for callers that can come again: without a descriptor nothing was asked of the disk, and that heals."""
    try:
        file_system.sync_directory(path)
    except OSError as error:
        operation = "open" if error.errno in _NO_DESCRIPTOR else "sync"
        raise storage_failure(operation, path, error) from error


class SyncGuard:
    """Syncs of one partition. After one has failed, no other is believed: it could succeed without doing anything.

    Any thread may use it. A failure is known here at once, before the owner hears of the job that met it.
    """

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        self._file_system = file_system
        self._directory = directory
        self.has_failed = False

    def sync_file(self, file: File) -> None:
        """Sync data, or raise ``StorageFailure``."""
        self._refuse_after_failure(file.path)
        try:
            sync_file(file)
        except StorageFailure:
            self.has_failed = True
            raise

    def sync_names(self) -> None:
        """The same for the names of the partition's files."""
        self._refuse_after_failure(self._directory)
        self.watch(lambda: sync_names_if_possible(self._file_system, self._directory))()

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        """``run``, but a failed sync in it is noticed at once.

        Of whatever file: the sync of a directory that fails takes the names of other files with it.
        """

        def watched() -> None:
            try:
                run()
            except StorageFailure as failure:
                self.note(failure)
                raise

        return watched

    def note(self, failure: StorageFailure) -> None:
        """Something failed: perhaps a sync."""
        self.has_failed = self.has_failed or failure.operation == "sync"

    def _refuse_after_failure(self, path: Path) -> None:
        if self.has_failed:
            raise StorageFailure("sync", path, OSError("an earlier sync of this partition failed"))


def replace_file(file_system: FileSystem, path: Path, data: Buffer) -> None:
    """Give ``path`` new contents in one step: a power cut leaves the old ones or the new ones, whole."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        unlink_if_there(file_system, temporary)
        file = file_system.open(temporary, writable=True, create=True)
    except OSError as error:
        raise storage_failure("create", temporary, error) from error
    try:
        write_all(file, 0, [data])
    except OSError as error:
        raise storage_failure("write", temporary, error) from error
    # Without this sync the rename may become durable before the data, and a power cut leaves an empty file.
    sync_file(file)
    file.close()
    try:
        file_system.rename(temporary, path)
    except OSError as error:
        raise storage_failure("rename", path, error) from error
    # Without this sync a power cut brings the old file back, after somebody was told of the new one.
    sync_directory(file_system, path.parent)


def make_directories(file_system: FileSystem, path: Path, *, below: Path) -> None:
    """Make every missing directory from ``below`` down to ``path``, each entry synced in its parent.

    Also those that are there: whoever made them may have died before the sync.
    """
    missing = [path, *path.parents]
    for directory in reversed(missing[: missing.index(below)]):
        with contextlib.suppress(FileExistsError):
            file_system.make_directory(directory)
        sync_directory(file_system, directory.parent)


def list_if_there(file_system: FileSystem, path: Path) -> list[DirectoryEntry]:
    """The entries of a directory; none if there is no such directory. Raises ``StorageFailure``."""
    try:
        return file_system.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_failure("list", path, error) from error


def unlink_if_there(file_system: FileSystem, path: Path) -> bool:
    """Remove a name; say whether it was there. Durable after the directory's sync: until then it may come back."""
    try:
        file_system.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_tree(file_system: FileSystem, path: Path) -> None:
    """Remove a directory with all in it; a power cut may leave a part, and the caller removes it again."""
    try:
        entries = file_system.list_directory(path)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.kind is EntryKind.DIRECTORY:
            remove_tree(file_system, path / entry.name)
        else:
            unlink_if_there(file_system, path / entry.name)
    file_system.remove_directory(path)
    sync_directory(file_system, path.parent)


def copy_range(
    file_system: FileSystem,
    source: File,
    start: int,
    end: int,
    target: Path,
    copy_size: int = DEFAULT_LIMITS.copy_size,
) -> None:
    """Copy bytes to a new file, durably: it is there, whole, before the caller cuts the original.

    Moves ``copy_size`` bytes at a time.
    """
    copy = file_system.open(target, writable=True, create=True)
    buffer = memoryview(bytearray(min(copy_size, max(end - start, 1))))
    position = start
    while position < end:
        piece = buffer[: min(len(buffer), end - position)]
        filled = read_into(source, position, piece)
        if filled == 0:
            break
        write_all(copy, position - start, [piece[:filled]])
        position += filled
    sync_file(copy)
    copy.close()
    sync_directory(file_system, target.parent)


def free_name(file_system: FileSystem, directory: Path, wanted: str) -> Path:
    """``directory / wanted``, or with a number behind it if that is taken."""
    taken = {entry.name for entry in file_system.list_directory(directory)}
    return directory / next(name for name in _names(wanted) if name not in taken)


def _names(wanted: str) -> Iterable[str]:
    yield wanted
    number = 1
    while True:
        yield f"{wanted}.{number}"
        number += 1
