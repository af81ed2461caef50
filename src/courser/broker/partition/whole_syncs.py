"""Syncs of a whole file system, believed only if they are proven."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from courser.storage.files import WholeSync

_log = logging.getLogger(__name__)

Run = Callable[[], object]


class WholeSyncs:
    """One call at a time syncs everything on a file system. Used from any thread.

    A call that fails does not say what was lost, and the next one may succeed all the same. So after the first failure
    there are no more such calls, and every file is synced by itself: the kernel reports the failure there too.

    A call that succeeds is not enough either. Before Linux 6.13, a file system that has become read-only because of an
    error answers it with success and writes nothing, and before 5.17 errors of the journal are not reported. Such a
    state is permanent, and the sync of a single file does report it. So the sync of one file follows, as the proof that
    the file system was sound until then.
    """

    def __init__(self, whole: WholeSync) -> None:
        self._whole = whole
        self._lock = threading.Lock()
        self._has_failed = False
        self.count = 0
        """How often everything was synced."""

    @property
    def has_failed(self) -> bool:
        """Whether files have to be synced one by one from now on."""
        return self._has_failed

    def covers(self, directory: Path) -> bool:
        """Whether a partition's directory is on the file system."""
        return self._whole.covers(directory)

    def unwritten_size(self) -> int | None:
        """About how many bytes wait to be written on this machine, whoever has written them; None if unknown."""
        return self._whole.unwritten_size()

    def close(self) -> None:
        """Nobody syncs any more."""
        self._whole.close()

    def sync(self, proof: Run) -> bool:
        """Sync everything that was written before this call. Return whether that worked; if not, nothing is known.

        ``proof`` syncs one file, and raises if that fails. What it raises is passed on.
        """
        with self._lock:
            if self._has_failed:
                return False
            self._has_failed = True
            try:
                self._whole.sync()
            except OSError as error:
                _log.warning("the file system could not be synced as a whole, now syncing single files: %s", error)
                return False
            proof()
            self._has_failed = False
            self.count += 1
            return True


def sync_together(whole: WholeSyncs, runs: Sequence[Run]) -> list[BaseException | None]:
    """Do the syncs of several partitions with one call. Returns for each what went wrong with it."""
    first, *others = runs
    try:
        if whole.sync(first):
            return [None] * len(runs)
    except Exception as error:  # noqa: BLE001 -- passed to whoever waits for this sync
        return [error, *map(_failure_of, others)]
    return list(map(_failure_of, runs))


def _failure_of(run: Run) -> BaseException | None:
    try:
        run()
    except Exception as error:  # noqa: BLE001 -- passed to whoever waits for this sync
        return error
    return None
