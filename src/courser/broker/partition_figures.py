"""The figures of a partition, for metrics."""

from operator import add
from typing import NamedTuple

from courser.broker.partition import Partition


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

    def plus(self, other: "PartitionCounters") -> "PartitionCounters":
        """The sums."""
        return PartitionCounters(*map(add, self, other))


class PartitionGauges(NamedTuple):
    """What is there now."""

    partition_count: int = 0
    read_only_count: int = 0
    unsynced_size: int = 0
    segment_count: int = 0
    size: int = 0
    message_count: int = 0

    def plus(self, other: "PartitionGauges") -> "PartitionGauges":
        """The sums."""
        return PartitionGauges(*map(add, self, other))


def counters_of(partition: Partition) -> PartitionCounters:
    """Those of one partition."""
    log = partition.log
    written, reads, writes = log.marks.written, log.reads, log.writes
    return PartitionCounters(
        written.message_count,
        written.size,
        partition.polled_count,
        partition.polled_size,
        reads.size,
        writes.segment_created_count,
        writes.segment_purged_count,
        0,
        reads.index_lookup_count,
        reads.index_rebuild_count,
        reads.checksum_failure_count,
    )


def gauges_of(partition: Partition) -> PartitionGauges:
    """Those of one partition."""
    log = partition.log
    marks, segments = log.marks, log.segments
    size = message_count = 0
    for segment in segments:
        size += segment.size
        message_count += segment.message_count
    unsynced_size = marks.written.size - marks.synced.size
    return PartitionGauges(1, log.failure is not None, unsynced_size, len(segments), size, message_count)
