"""The directory for bytes that recovery removes from a partition. They are kept for inspection and never read again."""

import contextlib
from pathlib import Path

import numpy as np

from courser.errors import StorageFailure
from courser.storage.durable_files import copy_range, free_name, sync_directory, unlink_if_there
from courser.storage.files import File, FileSystem, read_into
from courser.storage.paths import QUARANTINE
from courser.storage.settings import DEFAULT_LIMITS


class Quarantine:
    """The directory ``quarantine`` of one partition. It is created when needed."""

    def __init__(self, file_system: FileSystem, directory: Path, copy_size: int = DEFAULT_LIMITS.copy_size) -> None:
        self._file_system = file_system
        self._directory = directory
        self._path = directory / QUARANTINE
        self._copy_size = copy_size

    def copy(self, file: File, start: int, end: int) -> None:
        """Copy the bytes from ``start`` to ``end``, without trailing zeros. Durable on return."""
        end = end_of_data(file, start, end, self._copy_size)
        if end > start:
            target = self._free_name(f"{file.path.name}.{start}-{end}")
            try:
                copy_range(self._file_system, file, start, end, target, self._copy_size)
            except (OSError, StorageFailure):
                # On a full disk this is repeated until there is room, which a part of a copy would take.
                with contextlib.suppress(OSError):
                    unlink_if_there(self._file_system, target)
                raise

    def move(self, path: Path) -> None:
        """Move a whole file to quarantine. Durable on return."""
        self._file_system.rename(path, self._free_name(path.name))
        # Sync both directories. After a power cut in between, the file has one of its names, and a start repeats this.
        sync_directory(self._file_system, self._path)
        sync_directory(self._file_system, self._directory)

    def _free_name(self, wanted: str) -> Path:
        with contextlib.suppress(FileExistsError):
            self._file_system.make_directory(self._path)
        # Also if it exists: an interrupted start may not have synced it, and a power cut would remove the copies too.
        sync_directory(self._file_system, self._directory)
        return free_name(self._file_system, self._path, wanted)


def end_of_data(file: File, start: int, end: int, step_size: int) -> int:
    """The position of the trailing zeros before ``end``; ``start`` if there is nothing else.

    Reads ``step_size`` bytes at a time.
    """
    buffer = memoryview(bytearray(min(step_size, max(end - start, 1))))
    while end > start:
        size = min(len(buffer), end - start)
        filled = read_into(file, end - size, buffer[:size])
        places = np.flatnonzero(np.frombuffer(buffer[:filled], np.uint8))
        if len(places):
            return end - size + int(places[-1]) + 1
        end -= size
    return start
