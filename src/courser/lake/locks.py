"""One writer at a time below a folder: a lock that the kernel gives back when its holder dies."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from courser.errors import CourserError
from courser.lake.whole_files import make_folders


class FolderInUse(CourserError):
    """Another run writes there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"another run is at work in {self.folder}: wait for its end"


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is missing.

    Raises:
        FolderInUse: somebody else holds it.
    """
    make_folders(folder)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(folder) from None
        yield
    finally:
        os.close(descriptor)
