"""Small durable operations: replace a file, remove a file, copy bytes.

Each function documents what a power cut can leave behind.
"""

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from courser.errors import DiskFull, StorageFailure
from courser.model.buffers import Buffer
from courser.storage.files import DirectoryEntry, EntryKind, File, FileSystem, read_exactly, read_into, write_all
from courser.storage.paths import temporary_path
from courser.storage.settings import DEFAULT_LIMITS

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def storage_failure(operation: str, path: Path, error: OSError) -> StorageFailure:
    """The error to raise for an ``OSError``. A full disk has its own class, because it is temporary."""
    kind = DiskFull if error.errno in _NO_SPACE and operation != "sync" else StorageFailure
    return kind(operation, path, error)


def heals(failure: StorageFailure) -> bool:
    """Whether a retry may succeed: a full disk and a lack of descriptors are temporary. A failed sync never is."""
    is_out_of_descriptors = failure.cause is not None and failure.cause.errno in _NO_DESCRIPTOR
    return isinstance(failure, DiskFull) or (is_out_of_descriptors and failure.operation != "sync")


def is_failed_sync(failure: Exception) -> bool:
    """Whether the disk failed to sync. Without a descriptor, the sync was not even attempted."""
    if not isinstance(failure, StorageFailure) or failure.operation != "sync":
        return False
    return failure.cause is None or failure.cause.errno not in _NO_DESCRIPTOR


def sync_file(file: File) -> None:
    """Sync, or raise ``StorageFailure``. The unsynced data must then be considered lost, not synced again."""
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
    """``sync_directory`` for callers that can retry. A lack of descriptors counts as a temporary failure."""
    try:
        file_system.sync_directory(path)
    except OSError as error:
        operation = "open" if error.errno in _NO_DESCRIPTOR else "sync"
        raise storage_failure(operation, path, error) from error


class SyncGuard:
    """The syncs of one partition. After a failed sync, no other is trusted: it could succeed without writing anything.

    Can be used from any thread. A failure is known here at once, before the job's owner learns of it. The kernel
    reports a failure once, so a second sync of the same file must not begin between the failure of the first one and
    the moment at which it is known here: it would succeed. So syncs of the same file take turns.
    """

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        self._file_system = file_system
        self._directory = directory
        self._turn = threading.Condition()
        self._syncing: set[Path] = set()
        self.has_failed = False

    def sync_file(self, file: File) -> None:
        """Sync data, or raise ``StorageFailure``."""
        self._sync(file.path, lambda: sync_file(file))

    def sync_names(self) -> None:
        """Sync the names of the partition's files, or raise ``StorageFailure``."""
        self._sync(self._directory, lambda: sync_names_if_possible(self._file_system, self._directory))

    def _sync(self, path: Path, sync: Callable[[], None]) -> None:
        with self._in_turn(path):
            if self.has_failed:
                raise StorageFailure("sync", path, OSError("an earlier sync of this partition failed"))
            self.watch(sync)()

    @contextlib.contextmanager
    def _in_turn(self, path: Path) -> Iterator[None]:
        """Around the sync of a file: no other thread is inside with the same path."""
        with self._turn:
            while path in self._syncing:
                self._turn.wait()
            self._syncing.add(path)
        try:
            yield
        finally:
            with self._turn:
                self._syncing.remove(path)
                self._turn.notify_all()

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        """Wrap ``run`` so that a failed sync in it is noted at once.

        This applies to any file: if the sync of a directory fails, the names of other files are affected too.
        """

        def watched() -> None:
            try:
                run()
            except StorageFailure as failure:
                self.note(failure)
                raise
            except BaseException:
                # A defect. What it left unsynced, nobody knows.
                self.has_failed = True
                raise

        return watched

    def note(self, failure: StorageFailure) -> None:
        """Note a failure, which may be that of a sync."""
        self.has_failed = self.has_failed or failure.operation == "sync"


def replace_file(file_system: FileSystem, path: Path, data: Buffer) -> None:
    """Replace the contents of ``path`` atomically. A power cut leaves either the old or the new contents."""
    temporary = temporary_path(path)
    step, place = "create", temporary
    try:
        try:
            file = file_system.open(temporary, writable=True, create=True)
        except FileExistsError:
            # An attempt before this one did not come to its end.
            file_system.unlink(temporary)
            file = file_system.open(temporary, writable=True, create=True)
        with closing(file):
            step = "write"
            write_all(file, 0, [data])
            # Without it, the rename may become durable before the data, and a power cut would leave an empty file.
            step = "sync"
            file.sync()
        step, place = "rename", path
        file_system.rename(temporary, path)
        # Without it, a power cut could restore the old file after the new one was acknowledged.
        step, place = "sync", path.parent
        file_system.sync_directory(path.parent)
    except OSError as error:
        raise storage_failure(step, place, error) from error


def make_directories(file_system: FileSystem, path: Path, *, below: Path) -> None:
    """Create every missing directory from ``below`` down to ``path``, and sync each entry in its parent.

    Existing directories are synced too: the process that created them may have ended before the sync.
    """
    missing = [path, *path.parents]
    for directory in reversed(missing[: missing.index(below)]):
        with contextlib.suppress(FileExistsError):
            file_system.make_directory(directory)
        sync_directory(file_system, directory.parent)


def list_if_there(file_system: FileSystem, path: Path) -> list[DirectoryEntry]:
    """The entries of a directory; empty if it does not exist. Raises ``StorageFailure``."""
    try:
        return file_system.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_failure("list", path, error) from error


def read_if_there(file_system: FileSystem, path: Path) -> bytes:
    """All bytes of a small file; none if it does not exist."""
    try:
        file = file_system.open(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise storage_failure("open", path, error) from error
    try:
        return bytes(read_exactly(file, 0, file.size()) or b"")
    except OSError as error:
        raise storage_failure("read", path, error) from error
    finally:
        file.close()


def unlink_if_there(file_system: FileSystem, path: Path) -> bool:
    """Remove a file if it exists. Returns whether it did. Until the directory is synced, a power cut may restore it."""
    try:
        file_system.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_tree(file_system: FileSystem, path: Path) -> None:
    """Remove a directory and its contents. A power cut may leave a part of it, which the caller must remove again."""
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
    """Copy bytes to a new file durably, ``copy_size`` bytes at a time. The copy is complete on return."""
    buffer = memoryview(bytearray(min(copy_size, max(end - start, 1))))
    position = start
    with closing(file_system.open(target, writable=True, create=True)) as copy:
        while position < end:
            piece = buffer[: min(len(buffer), end - position)]
            filled = read_into(source, position, piece)
            if filled == 0:
                break
            write_all(copy, position - start, [piece[:filled]])
            position += filled
        sync_file(copy)
    sync_directory(file_system, target.parent)


def free_name(file_system: FileSystem, directory: Path, wanted: str) -> Path:
    """``directory / wanted``, with a number appended if the name is taken."""
    taken = {entry.name for entry in file_system.list_directory(directory)}
    return directory / next(name for name in _names(wanted) if name not in taken)


def _names(wanted: str) -> Iterable[str]:
    yield wanted
    number = 1
    while True:
        yield f"{wanted}.{number}"
        number += 1
