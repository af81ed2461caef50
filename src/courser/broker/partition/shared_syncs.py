"""One sync for many partitions: if many wait for the disk at a time, one call syncs the whole file system for all."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from courser.broker.partition.whole_syncs import WholeSyncs
from courser.storage.jobs import Job


class SharedSyncs:
    """Syncs that nobody waits for, of all partitions on one file system.

    The owner of the partitions plans; the jobs may run on any thread. Every job has a number, and a sync of the whole
    file system covers all jobs that were planned before it began.
    """

    def __init__(self, whole: WholeSyncs, many_count: int) -> None:
        """From ``many_count`` jobs on that wait at a time, one of them syncs the whole file system."""
        self._whole = whole
        self._many_count = many_count
        self._lock = threading.Lock()
        self._waiting_count = 0
        self._last_number = 0
        self._covered_number = 0
        self._is_syncing = False

    def share(self, job: Job) -> Job:
        """The same job, which may find its work done by another one."""
        with self._lock:
            self._waiting_count += 1
            self._last_number += 1
            return replace(job, run=partial(self._run, job.run, self._last_number))

    def _run(self, run: Callable[[], None], number: int) -> None:
        try:
            if not self._is_covered(run, number):
                run()
        finally:
            with self._lock:
                self._waiting_count -= 1

    def _is_covered(self, run: Callable[[], None], number: int) -> bool:
        """Whether the work of a job is done, by another job or by a call here."""
        with self._lock:
            if number <= self._covered_number:
                return True
            if self._waiting_count < self._many_count or self._is_syncing or self._whole.has_failed:
                return False
            self._is_syncing = True
            last_number = self._last_number
        is_synced = False
        try:
            is_synced = self._whole.sync(run)
        finally:
            with self._lock:
                self._is_syncing = False
                if is_synced:
                    self._covered_number = last_number
        return is_synced
