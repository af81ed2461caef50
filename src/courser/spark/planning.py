"""Plans a read: from options and bounds to ranges, and from ranges to tasks. Nothing is read here."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from courser.spark.errors import ReadFailed, beyond_the_head, partition_gone, retention_overtook
from courser.spark.option_kinds import EARLIEST, LATEST, Given
from courser.spark.read_options import ReadOptions
from courser.spark.sources import OffsetRange
from courser.spark.topic_metadata import Bounds, TopicFacts, TopicMetadata


def resolve_start(options: ReadOptions, metadata: TopicMetadata, facts: TopicFacts, *, unnamed: int) -> dict[int, int]:
    """The offset to start at in every partition. ``unnamed``: ``EARLIEST`` or ``LATEST``, if no option names one.

    Raises:
        DataLost: an offset does not exist, and the options do not allow that.
        ReadFailed: a time is given for a partition that does not exist.
    """
    if options.starting_time is not None:
        return _at_time(options.starting_time, options, metadata, facts, unnamed)
    starts = _named(options.starting, options, facts, unnamed)
    return {partition: _checked(options, partition, start, facts) for partition, start in starts.items()}


def resolve_end(options: ReadOptions, metadata: TopicMetadata, facts: TopicFacts) -> dict[int, int]:
    """The offset before which a batch read ends in every partition. Raises as ``resolve_start`` does."""
    ends = _named(options.ending, options, facts, LATEST)
    ends = {partition: _checked(options, partition, end, facts, is_end=True) for partition, end in ends.items()}
    if options.ending_time is None:
        return ends
    times = _at_time(options.ending_time, options, metadata, facts, LATEST)
    return {partition: min(end, times[partition]) for partition, end in ends.items()}


def _at_time(
    times: Given, options: ReadOptions, metadata: TopicMetadata, facts: TopicFacts, unnamed: int
) -> dict[int, int]:
    if not isinstance(times, Mapping):
        times = dict.fromkeys(facts.partitions, times)
    for partition in times:
        if partition not in facts.partitions:
            raise ReadFailed(f"{options.name}: the options give a time for partition {partition}, which does not exist")
    offsets = {partition: _special(unnamed, bounds) for partition, bounds in facts.partitions.items()}
    for partition, time in times.items():
        found = metadata.offset_at_time(partition, time)
        offsets[partition] = facts.partitions[partition].next if found is None else found
    return offsets


def _named(offsets: Given, options: ReadOptions, facts: TopicFacts, unnamed: int) -> dict[int, int]:
    named: Mapping[int, int]
    if isinstance(offsets, Mapping):
        named = offsets
        for partition in named:
            if partition not in facts.partitions:
                raise partition_gone(options.name, partition, named[partition])
    else:
        named, unnamed = {}, offsets
    return {
        partition: _special(named.get(partition, unnamed), bounds) for partition, bounds in facts.partitions.items()
    }


def _special(offset: int, bounds: Bounds) -> int:
    if offset == EARLIEST:
        return bounds.first
    return bounds.next if offset == LATEST else offset


def _checked(options: ReadOptions, partition: int, offset: int, facts: TopicFacts, *, is_end: bool = False) -> int:
    """The offset if it exists, else the nearest one that does, if the options allow that."""
    bounds = facts.partitions[partition]
    if offset > bounds.next:
        if options.fail_on_data_loss:
            raise beyond_the_head(options.name, partition, offset, bounds.next)
        return bounds.next
    if offset < bounds.first and not is_end:
        if options.fail_on_data_loss:
            raise retention_overtook(options.name, partition, offset, bounds.first)
        return bounds.first
    return offset


# --- tasks --------------------------------------------------------------------------------------------

SourcesOf = Callable[[OffsetRange], Sequence[OffsetRange]]
"""Splits a range by the sources that hold its messages."""


@dataclass(frozen=True, slots=True)
class TopicRead:
    """What a read wants of one topic."""

    topic: str
    ranges: Sequence[OffsetRange]
    facts: TopicFacts
    sources_of: SourcesOf

    def count(self, wanted: OffsetRange) -> int:
        """How many messages a range has at most."""
        return self.facts.partitions[wanted.partition].count_between(wanted.start, wanted.end)

    def size(self, wanted: OffsetRange) -> float:
        """Approximate size of a range in bytes."""
        return self.facts.partitions[wanted.partition].size_of(self.count(wanted))

    def split(self, wanted: OffsetRange, count: int) -> list[OffsetRange]:
        """A range in parts with equally many messages."""
        bounds, total = self.facts.partitions[wanted.partition], self.count(wanted)
        count = max(min(count, total), 1)
        inner = [bounds.end_of(wanted.start, total * number // count) for number in range(1, count)]
        ends = (wanted.start, *inner, wanted.end)
        return [replace(wanted, start=start, end=end) for start, end in pairwise(ends)]


class Task(InputPartition):
    """What one Spark task reads: consecutive ranges of one partition, each with its sources."""

    def __init__(self, topic: str, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.topic = topic
        self.ranges = ranges


def plan_tasks(reads: Sequence[TopicRead], *, size_max: int, min_count: int | None) -> list[Task]:
    """Tasks of about ``size_max`` bytes at most, and at least ``min_count`` of them if there are enough messages.

    Both limits apply to all topics together. The largest ranges are split first.
    """
    wanted = [(read, part) for read in reads for part in read.ranges if part.count > 0]
    sizes = [read.size(part) for read, part in wanted]
    counts = [max(round(size / size_max), 1) for size in sizes]
    if min_count is not None:
        _raise_counts(counts, sizes, [read.count(part) for read, part in wanted], min_count)
    return [
        Task(read.topic, tuple(read.sources_of(share)))
        for (read, part), count in zip(wanted, counts, strict=True)
        for share in read.split(part, count)
    ]


def _raise_counts(counts: list[int], sizes: list[float], message_counts: list[int], min_count: int) -> None:
    """Add a task to the range with the largest tasks until there are enough, or each task has a single message."""
    largest = [(-size / count, number) for number, (size, count) in enumerate(zip(sizes, counts, strict=True))]
    heapq.heapify(largest)
    missing = min_count - sum(counts)
    while missing > 0 and largest:
        _, number = heapq.heappop(largest)
        if counts[number] < message_counts[number]:
            counts[number] += 1
            missing -= 1
            heapq.heappush(largest, (-sizes[number] / counts[number], number))
