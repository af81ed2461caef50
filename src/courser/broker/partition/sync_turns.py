"""Syncs of the same file, one thread at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SyncTurns:
    """For ``SyncGuard.take_turns``. Syncs of different files do not wait for each other."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._syncing: set[Path] = set()

    @contextmanager
    def alone(self, path: Path) -> Iterator[None]:
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
