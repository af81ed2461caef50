"""What a broker counts, by name: how long syncs take, and figures that are kept elsewhere and read when asked for.

To add a metric that is counted as things happen, take a ``Counter`` or ``Histogram`` from the registry and hand it to
the part that counts. To add one that can be read off, add a line to ``register_broker_metrics``.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from courser.broker.consuming import PollCounters
from courser.broker.partition_registry import PartitionRegistry
from courser.broker.retention import RetentionCounters
from courser.model.clock import Clock
from courser.model.metrics import MetricKind, Registry, Sample
from courser.storage.partition_log import PartitionLog

_log = logging.getLogger(__name__)

SLOW_SYNC = 1_000_000
"""Microseconds: a sync that takes longer is reported. A healthy disk needs a few milliseconds."""
_REPORT_INTERVAL = 10_000_000
"""Microseconds between two reports: a disk that is slow is slow for every partition."""
_SECOND = 1_000_000


class SyncMetrics:
    """How long syncs of partitions take. The event loop's thread only."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._histogram = registry.histogram("courser_sync_duration_seconds", "Duration of syncs of partition data.")
        self._slow = registry.counter("courser_slow_syncs_total", "Syncs that took longer than one second.")
        self._clock = clock
        self._report_due = 0

    def note(self, directory: Path, duration: int) -> None:
        """A sync took so many microseconds."""
        self._histogram.observe(duration / _SECOND)
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


def register_broker_metrics(
    registry: Registry, partitions: PartitionRegistry, polls: PollCounters, retention: RetentionCounters
) -> None:
    """Name the figures that the parts of a broker keep."""
    logs = _Logs(partitions)
    registry.gauge("courser_partitions", "Open partitions.", lambda: sum(1 for _ in logs))
    registry.gauge(
        "courser_partitions_read_only",
        "Partitions that take no writes.",
        lambda: sum(log.failure is not None for log in logs),
    )
    registry.gauge(
        "courser_unsynced_bytes",
        "Bytes that are written and not yet synced.",
        lambda: sum(log.marks.written.size - log.marks.synced.size for log in logs),
    )
    sums: tuple[tuple[str, str, Callable[[PartitionLog], int]], ...] = (
        ("appended_bytes", "Bytes appended.", lambda log: log.marks.written.size),
        ("read_bytes", "Bytes read from segments.", lambda log: log.reads.size),
        ("segments_created", "Segments created.", lambda log: log.writes.segment_created_count),
        ("segments_deleted", "Segments deleted.", lambda log: log.writes.segment_deleted_count),
        ("index_lookups", "Look-ups in indexes.", lambda log: log.reads.index_lookup_count),
        (
            "index_rebuilds",
            "Indexes that were rebuilt.",
            lambda log: log.reads.index_rebuild_count,
        ),
        ("checksum_failures", "Batches whose checksum did not match.", lambda log: log.reads.checksum_failure_count),
    )
    for name, text, read in sums:
        registry.gauge(f"courser_{name}_total", text, partial(_sum, read, logs), kind=MetricKind.COUNTER)
    registry.gauge(
        "courser_polls_below_start_total",
        "Polls that asked for messages that were already deleted.",
        lambda: polls.gone_count,
        kind=MetricKind.COUNTER,
    )
    registry.gauge(
        "courser_polls_damaged_total",
        "Polls that met damaged or lost messages.",
        lambda: polls.damaged_count,
        kind=MetricKind.COUNTER,
    )
    registry.collected(
        "courser_retention_deleted_segments_total",
        MetricKind.COUNTER,
        "Segments that retention deleted, by reason.",
        lambda: [Sample((("reason", reason.value),), count) for reason, count in retention.segment_count.items()],
    )


def _sum(read: Callable[[PartitionLog], int], logs: Iterable[PartitionLog]) -> int:
    return sum(map(read, logs))


class _Logs:
    """The logs of all open partitions, looked up anew each time."""

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions

    def __iter__(self) -> Iterator[PartitionLog]:
        return (partition.log for topic in self._partitions for partition in topic.partitions)
