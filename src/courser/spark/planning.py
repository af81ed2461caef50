"""From options and bounds to ranges, and from ranges to tasks: all that is decided before anything is read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from courser.spark.errors import beyond_the_head, partition_gone, retention_overtook
from courser.spark.options import EARLIEST, LATEST, Offsets
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
    """
    if options.starting_time is not None:
        return _at_time(options.starting_time, source, facts)
    starts = _named(options.starting, options, facts, unnamed)
    return {partition: _checked(options, partition, start, facts) for partition, start in starts.items()}


def resolve_end(options: ReadOptions, source: TopicSource, facts: TopicFacts) -> dict[int, int]:
    """Where a batch read ends in every partition: exclusive. Raises ``DataLost``."""
    ends = _named(options.ending, options, facts, LATEST)
    ends = {partition: _checked(options, partition, end, facts, is_end=True) for partition, end in ends.items()}
    if options.ending_time is None:
        return ends
    times = _at_time(options.ending_time, source, facts)
    return {partition: min(end, times[partition]) for partition, end in ends.items()}


def _at_time(time: int, source: TopicSource, facts: TopicFacts) -> dict[int, int]:
    return {
        partition: bounds.next if (found := source.offset_at_time(partition, time)) is None else found
        for partition, bounds in facts.partitions.items()
    }


def _named(offsets: Offsets, options: ReadOptions, facts: TopicFacts, unnamed: int) -> dict[int, int]:
    named: Mapping[int, int]
    if isinstance(offsets, Mapping):
        named = offsets.get(options.topic, {})
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


def plan_tasks(
    ranges: Sequence[Range],
    facts: TopicFacts,
    places_of: PlacesOf,
    *,
    size_max: int,
    min_count: int | None,
) -> list[tuple[Span, ...]]:
    """Spans for tasks: none over about ``size_max`` bytes, at least ``min_count`` tasks if there are messages enough.

    Neighbouring spans of a partition that are small go to one task.
    """
    wanted = [part for part in ranges if part.end > part.start]
    sizes = [_size(part, facts) for part in wanted]
    total = sum(sizes)
    if min_count and total:
        size_max = max(min(size_max, -(-int(total) // min_count)), 1)
    tasks: list[tuple[Span, ...]] = []
    for part, size in zip(wanted, sizes, strict=True):
        tasks += [
            tuple(Span(cut.partition, cut.start, cut.end, places) for cut, places in places_of(share))
            for share in _split(part, max(round(size / size_max), 1))
        ]
    return tasks


def _size(part: Range, facts: TopicFacts) -> float:
    return (part.end - part.start) * facts.partitions[part.partition].message_size


def _split(part: Range, count: int) -> list[Range]:
    total = part.end - part.start
    count = min(count, total)
    bounds = [part.start + total * number // count for number in range(count + 1)]
    return [replace(part, start=start, end=end) for start, end in pairwise(bounds)]
