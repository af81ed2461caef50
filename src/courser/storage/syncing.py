"""Making a partition's data durable: one job for everything that was written before it.

If many partitions wait for the disk at a time, one call syncs the whole file system for all of them.

*synced* is a prefix. Files are synced in the order of their offsets, and the directory before the newest file counts,
so nothing in a new segment is called synced before the old one is synced to its end and the new one's name is safe.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from courser.storage.files import WholeSync
from courser.storage.jobs import Job, PlannedSync
from courser.storage.partition_log import PartitionLog

_log = logging.getLogger(__name__)


def plan_sync(log: PartitionLog) -> Job | None:
    """A job after which all that is written now, stored offsets included, survives a power cut; None if it does.

    At most one such job runs at a time.
    """
    planned = log.begin_sync() if log.failure is None else None
    if planned is None:
        return None
    return Job(
        "sync",
        lambda: _sync_in_order(log, planned),
        lambda: log.complete_sync(planned),
        lambda failure: log.fail_sync(planned, failure),
    )


def _sync_in_order(log: PartitionLog, planned: PlannedSync) -> None:
    syncs, files = log.syncs, [unsynced.file for unsynced in planned.segments]
    for file in files[:-1]:
        syncs.sync_file(file)
    if planned.with_names:
        syncs.sync_names()
    for file in files[-1:]:
        syncs.sync_file(file)
    if planned.offsets_file is not None:
        syncs.sync_file(planned.offsets_file)


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
