"""Ensures a single writer per folder, with a lock that the kernel releases when its holder dies.

The tasks of a holder may outlive it: Spark workers whose driver was killed keep running for a while. So each holder has
a *fencing token*, which it writes into the lock file and passes to its tasks. Before its last step, a task checks that
the token is still current.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from courser.errors import CourserError
from courser.lake.atomic_files import make_folders

_NAME = "lock"


class FolderInUse(CourserError):
    """Another run is writing to the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"another run is writing to {self.folder}; wait for it to finish"


class WriterReplaced(CourserError):
    """The run that started this task is dead, and another run has taken the lock."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"another run has started writing to {self.folder}; this task of an earlier run stops"


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[str]:
    """Hold the lock of a folder, which is created if it is missing. Yields the token for ``check_token``.

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
        token = uuid4().hex
        os.pwrite(descriptor, token.encode(), 0)
        # For tasks that see the folder over a network. After a power cut no task is left to check the token.
        os.fsync(descriptor)
        yield token
    finally:
        os.close(descriptor)


def check_token(folder: Path, token: str) -> None:
    """Called in a task after it has written everything aside, and before it makes anything visible.

    A new holder removes all files that were written aside, and only then looks at the visible ones. So if a task checks
    just before a new holder takes the lock, its renames fail because its files are gone. If it checks later, it is told
    here.

    Raises:
        WriterReplaced: another run has taken the lock since.
    """
    if (folder / _NAME).read_bytes() != token.encode():
        raise WriterReplaced(folder)
