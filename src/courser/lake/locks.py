"""One writer at a time below a folder: a lock that the kernel gives back when its holder dies.

The tasks of the holder may outlive it: a worker of Spark whose driver was killed goes on until somebody tells it. So
each holder has a *turn*, which it writes into the lock and gives to its tasks, and a task looks before its last step
whether the turn is still its own.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from courser.errors import CourserError
from courser.lake.whole_files import make_folders

_NAME = "lock"


class FolderInUse(CourserError):
    """Another run writes there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"another run is at work in {self.folder}: wait for its end"


class TurnIsOver(CourserError):
    """A task is left of a run that is dead, and another run has begun."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"another run has begun in {self.folder} since this task was sent: nothing more is written"


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[str]:
    """Hold the lock of a folder, which is made if it is missing, and say which turn it is: for ``check_turn``.

    Raises:
        FolderInUse: somebody else holds it.
    """
    make_folders(folder)
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(folder) from None
        turn = uuid4().hex
        os.pwrite(descriptor, turn.encode(), 0)
        # For those who see the folder over a network. After a power cut nobody is left who could ask.
        os.fsync(descriptor)
        yield turn
    finally:
        os.close(descriptor)


def check_turn(folder: Path, turn: str) -> None:
    """In a task, before something becomes visible, and after all of it was made beside its place.

    Whoever begins a turn removes what lies beside, and only then looks at what is visible. So a task that looks here
    too early finds its work removed when it wants to give it a name, and one that looks too late is told.

    Raises:
        TurnIsOver: another run has begun since.
    """
    if (folder / _NAME).read_bytes() != turn.encode():
        raise TurnIsOver(folder)
