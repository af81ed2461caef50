"""What all partitions of a broker count together: sizes of appends, and how long syncs take."""

import logging
from pathlib import Path

from courser.model import metric_table as m
from courser.model.clock import Clock
from courser.model.metrics import COUNT_BOUNDS, SIZE_POWERS, PowerHistogram, Registry, Sample

_log = logging.getLogger(__name__)

SLOW_SYNC = 1_000_000
"""Microseconds: a sync that takes longer is reported. A healthy disk needs a few milliseconds."""
_REPORT_INTERVAL = 10_000_000
"""Microseconds between two reports: a disk that is slow is slow for every partition."""
_SECOND = 1_000_000


class PartitionMetrics:
    """One for all partitions. The event loop's thread only."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self.append_sizes = PowerHistogram(SIZE_POWERS, 1)
        registry.collected(m.APPEND_SIZE, lambda: (Sample((), self.append_sizes),))
        self.appends_per_sync = registry.histogram(m.APPENDS_PER_SYNC, COUNT_BOUNDS)
        self._sync_durations = registry.histogram(m.SYNC_DURATION)
        self._slow = registry.counter(m.SLOW_SYNCS)
        self._clock = clock
        self._report_due = 0

    def note_sync(self, directory: Path, duration: int) -> None:
        """A sync of the partition in ``directory`` took so many microseconds."""
        self._sync_durations.observe(duration / _SECOND)
        if duration < SLOW_SYNC:
            return
        self._slow.value += 1
        now = self._clock.monotonic()
        if now >= self._report_due:
            self._report_due = now + _REPORT_INTERVAL
            _log.warning(
                "slow sync: the disk may be overloaded or failing took=%.1fs expected_max=%.0fs partition=%s",
                duration / _SECOND,
                SLOW_SYNC / _SECOND,
                directory,
            )
