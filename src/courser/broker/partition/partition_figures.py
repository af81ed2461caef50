"""The figures of a partition, for metrics."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from courser.broker.partition.partition import Partition


class PartitionCounters(NamedTuple):
    """What only grows, since the partition was opened."""

    appended_count: int = 0
    appended_size: int = 0
    polled_count: int = 0
    polled_size: int = 0
    read_size: int = 0
    segment_created_count: int = 0
    segment_purged_count: int = 0
    segment_dropped_count: int = 0
    """Segments that went with their partition."""
    index_lookup_count: int = 0
    index_rebuild_count: int = 0
    checksum_failure_count: int = 0


class PartitionGauges(NamedTuple):
    """What is there now."""

    partition_count: int = 0
    read_only_count: int = 0
    unsynced_size: int = 0
    segment_count: int = 0
    size: int = 0
    message_count: int = 0


Figures = TypeVar("Figures", PartitionCounters, PartitionGauges)
_new: Any = tuple.__new__
"""Creates figures faster than their constructors: there may be ten thousand partitions."""


def sums_of(kind: type[Figures], figures: Iterable[Figures]) -> Figures:
    """The sums; zeros if there are no figures."""
    sums = [sum(column) for column in zip(*figures, strict=True)]
    return kind(*sums)


def counters_of(partition: Partition) -> PartitionCounters:
    """Those of one partition."""
    log, reader = partition.log, partition.reader
    (_, appended_count, appended_size), reads, writes = log.marks.written, reader.disk.counters, log.writes
    found: PartitionCounters = _new(
        PartitionCounters,
        (
            appended_count,
            appended_size,
            reader.polled_count,
            reader.polled_size,
            reads.size,
            writes.segment_created_count,
            writes.segment_purged_count,
            0,
            reads.index_lookup_count,
            reads.index_rebuild_count,
            reads.checksum_failure_count,
        ),
    )
    return found


def gauges_of(partition: Partition) -> PartitionGauges:
    """Those of one partition."""
    log = partition.log
    marks = log.marks
    found: PartitionGauges = _new(
        PartitionGauges,
        (
            1,
            int(log.failure is not None),
            marks.written[2] - marks.synced[2],
            len(log.segments),
            log.size,
            log.message_count,
        ),
    )
    return found
