"""Prunes the archive from time to time: removes objects that no restore within the retention needs.

It does what ``courser archive prune`` does, from the store alone, and on a thread of its own: the archiver goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from courser.archive.care import Removal, plan_removals, remove
from courser.archive.errors import ArchiveFailure, ArchiveInterrupted
from courser.archive.reader import ArchiveReader
from courser.broker.archive.archiving import Archiver
from courser.model.clock import Clock

_log = logging.getLogger(__name__)

_CHECK_INTERVAL = 60.0
"""Seconds between two looks whether the archive is to be pruned."""
_PRUNE_INTERVAL = 24 * 3600 * 1_000_000
"""Microseconds between two times: one reads every root that is kept, of which there is one per run of the archiver."""
_RETRY_INTERVAL = 3600 * 1_000_000
"""The same after a failure."""


@dataclass(slots=True)
class PruneCounters:
    """What was removed since the start."""

    object_count: int = 0
    size: int = 0


class ArchivePruner:
    """``run`` is the background task; ``prune`` may be called instead."""

    def __init__(
        self,
        archiver: Archiver,
        clock: Clock,
        retention: int,
        now: Callable[[], int],
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``retention`` is in microseconds. ``now`` is the time that expiry goes by."""
        self._archiver = archiver
        self._clock = clock
        self._retention = retention
        self._now = now
        self._pause = pause
        self._due = 0
        """When the archive is pruned next, by the monotonic clock."""
        self.counters = PruneCounters()

    async def run(self) -> None:
        """Prune once a day, and soon after a start, until cancelled. A store that is down is waited for."""
        while True:
            await self._pause(_CHECK_INTERVAL)
            if self._clock.monotonic() >= self._due:
                await self.prune()

    async def prune(self) -> None:
        """Remove what no restore to a time within the retention needs. A failure is logged, and tried again later."""
        reader = self._archiver.reader()
        if reader is None:
            # The store has not answered yet, or another server writes this archive.
            return
        self._due = self._clock.monotonic() + _RETRY_INTERVAL
        # Not a thread of the archiver: a plan may take minutes. If the server stops, every request to the store fails.
        thread = ThreadPoolExecutor(1, thread_name_prefix="archive-prune")
        try:
            work = partial(_prune, reader, self._now() - self._retention, self._count)
            count, size = await asyncio.get_running_loop().run_in_executor(thread, work)
        except ArchiveInterrupted:
            return
        except ArchiveFailure as failure:
            self._archiver.counters.failure_count += 1
            _log.warning("could not prune the archive; it will be tried again reason=%s", failure)
            return
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
        self._due = self._clock.monotonic() + _PRUNE_INTERVAL
        if count:
            _log.info("pruned the archive objects=%d size=%d", count, size)

    def _count(self, removal: Removal) -> None:
        """Count what was removed, on the thread that removes."""
        self.counters.object_count += 1
        self.counters.size += removal.size


def _prune(reader: ArchiveReader, since: int, count: Callable[[Removal], None]) -> tuple[int, int]:
    removals = plan_removals(reader, since)
    remove(reader, removals, count)
    return len(removals), sum(removal.size for removal in removals)
