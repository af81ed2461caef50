"""One sync for many partitions: if many wait for the disk at a time, one call syncs the whole file system for all."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from courser.storage.files import WholeSync
from courser.storage.jobs import Job

_log = logging.getLogger(__name__)


class SharedSyncs:
    """Syncs that nobody waits for, of all partitions on one file system.

    The owner of the partitions plans; the jobs may run on any thread. Every job has a number, and a sync of the whole
    file system covers all jobs that were planned before it began.
    """

    def __init__(self, whole: WholeSync, many_count: int) -> None:
        """From ``many_count`` jobs on that wait at a time, one of them syncs the whole file system."""
        self._whole = whole
        self._many_count = many_count
        self._lock = threading.Lock()
        self._waiting_count = 0
        self._last_number = 0
        self._covered_number = 0
        self._is_syncing = False
        self._has_failed = False
        self.whole_sync_count = 0
        """How often the whole file system was synced."""

    def covers(self, directory: Path) -> bool:
        """Whether a partition's directory is on the file system."""
        return self._whole.covers(directory)

    def close(self) -> None:
        """No job is left."""
        self._whole.close()

    def share(self, job: Job) -> Job:
        """The same job, which may find its work done by another one."""
        with self._lock:
            self._waiting_count += 1
            self._last_number += 1
            return replace(job, run=partial(self._run, job.run, self._last_number))

    def _run(self, run: Callable[[], None], number: int) -> None:
        try:
            if not self._is_covered(number):
                run()
        finally:
            with self._lock:
                self._waiting_count -= 1

    def _is_covered(self, number: int) -> bool:
        with self._lock:
            if number <= self._covered_number:
                return True
            if self._waiting_count < self._many_count or self._is_syncing or self._has_failed:
                return False
            self._is_syncing = True
            last_number = self._last_number
        has_failed = True
        try:
            self._whole.sync()
            has_failed = False
        except OSError as error:
            # The next one could succeed although something was lost. The sync of a single file tells the truth.
            _log.warning("the file system could not be synced as a whole, syncing single files from now on: %s", error)
        finally:
            with self._lock:
                self._is_syncing = False
                self._has_failed = has_failed
                if not has_failed:
                    self._covered_number = last_number
                    self.whole_sync_count += 1
        return not has_failed
