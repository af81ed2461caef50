"""From options and bounds to ranges, and from ranges to tasks: all that is decided before anything is read."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from courser.spark.errors import ReadFailed, beyond_the_head, partition_gone, retention_overtook
from courser.spark.option_kinds import EARLIEST, LATEST, Given
from courser.spark.places import Place, Span
from courser.spark.read_options import ReadOptions
from courser.spark.topics import Bounds, TopicFacts, TopicSource


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition: from ``start`` to below ``end``."""

    partition: int
    start: int
    end: int


def resolve_start(options: ReadOptions, source: TopicSource, facts: TopicFacts, *, unnamed: int) -> dict[int, int]:
    """Where to begin in every partition. ``unnamed``: ``EARLIEST`` or ``LATEST``, for those that no option names.

    Raises:
        DataLost: an offset that is not there, unless that is allowed.
        ReadFailed: a time for a partition that is not there.
    """
    if options.starting_time is not None:
        return _at_time(options.starting_time, options, source, facts, unnamed)
    starts = _named(options.starting, options, facts, unnamed)
    return {partition: _checked(options, partition, start, facts) for partition, start in starts.items()}


def resolve_end(options: ReadOptions, source: TopicSource, facts: TopicFacts) -> dict[int, int]:
    """Where a batch read ends in every partition: exclusive. Raises as ``resolve_start`` does."""
    ends = _named(options.ending, options, facts, LATEST)
    ends = {partition: _checked(options, partition, end, facts, is_end=True) for partition, end in ends.items()}
    if options.ending_time is None:
        return ends
    times = _at_time(options.ending_time, options, source, facts, LATEST)
    return {partition: min(end, times[partition]) for partition, end in ends.items()}


def _at_time(
    times: Given, options: ReadOptions, source: TopicSource, facts: TopicFacts, unnamed: int
) -> dict[int, int]:
    if not isinstance(times, Mapping):
        times = dict.fromkeys(facts.partitions, times)
    for partition in times:
        if partition not in facts.partitions:
            raise ReadFailed(f"{options.name}: a time is given for partition {partition}, which does not exist")
    offsets = {partition: _special(unnamed, bounds) for partition, bounds in facts.partitions.items()}
    for partition, time in times.items():
        found = source.offset_at_time(partition, time)
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
    """The offset if it is there, or the next one that is, if that is allowed."""
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

PlacesOf = Callable[[Range], Sequence[tuple[Range, tuple[Place, ...]]]]
"""Cuts a range where its places change."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a read wants of one topic."""

    topic: str
    ranges: Sequence[Range]
    facts: TopicFacts
    places_of: PlacesOf

    def size(self, wanted: Range) -> float:
        """Bytes of a range, about."""
        return (wanted.end - wanted.start) * self.facts.partitions[wanted.partition].message_size


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads: neighbouring spans of one partition."""

    topic: str
    spans: tuple[Span, ...]


def plan_tasks(parts: Sequence[Part], *, size_max: int, min_count: int | None) -> list[Task]:
    """Tasks of about ``size_max`` bytes at most; at least ``min_count`` of them if there are messages enough.

    Both hold for all topics together: the largest ranges are split first.
    """
    wanted = [(part, span) for part in parts for span in part.ranges if span.end > span.start]
    sizes = [part.size(span) for part, span in wanted]
    counts = [max(round(size / size_max), 1) for size in sizes]
    if min_count is not None:
        _raise_counts(counts, sizes, [span.end - span.start for _, span in wanted], min_count)
    return [
        Task(
            part.topic, tuple(Span(cut.partition, cut.start, cut.end, places) for cut, places in part.places_of(share))
        )
        for (part, span), count in zip(wanted, counts, strict=True)
        for share in _split(span, count)
    ]


def _raise_counts(counts: list[int], sizes: list[float], message_counts: list[int], min_count: int) -> None:
    """One more task for whichever range has the largest ones, until there are enough or each has a single message."""
    largest = [(-size / count, number) for number, (size, count) in enumerate(zip(sizes, counts, strict=True))]
    heapq.heapify(largest)
    missing = min_count - sum(counts)
    while missing > 0 and largest:
        _, number = heapq.heappop(largest)
        if counts[number] < message_counts[number]:
            counts[number] += 1
            missing -= 1
            heapq.heappush(largest, (-sizes[number] / counts[number], number))


def _split(part: Range, count: int) -> list[Range]:
    total = part.end - part.start
    count = min(count, total)
    bounds = [part.start + total * number // count for number in range(count + 1)]
    return [replace(part, start=start, end=end) for start, end in pairwise(bounds)]
