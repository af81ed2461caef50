"""Ensures a single writer per folder, with a lock that the kernel releases when its holder dies.

Only the holder makes anything visible in the folder, never one of its tasks: Spark workers whose driver was killed keep
running for a while.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from courser.errors import ClientFailure
from courser.lake.atomic_files import make_folders

_NAME = "lock"


class FolderInUse(ClientFailure):
    """Another run is writing to the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another run is writing to {folder}; wait for it to finish")


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing.

    Raises:
        FolderInUse: another run holds the lock.
    """
    make_folders(folder)
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(folder) from None
        yield
    finally:
        os.close(descriptor)
