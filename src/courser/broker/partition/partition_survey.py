"""The figures of all partitions, for metrics: one walk before each scrape, because nobody keeps the sums.

The walk pauses every few partitions. Each partition has time series of its own up to a limit. Beyond that, those of a
topic are added up, and beyond the same number of topics, everything that is left.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_figures import (
    PartitionCounters,
    PartitionGauges,
    counters_of,
    gauges_of,
    sums_of,
)
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.waiting import Pause, let_others_run
from courser.catalog.state import CatalogState
from courser.model import metric_table as m
from courser.model.metrics import OTHER, Metric, Registry, Sample

STEP_COUNT = 100
"""Partitions that are looked at without a pause: some 5 us each."""

ReadFigure = Callable[[Any], int]
Figures = tuple[tuple[Metric, ReadFigure], ...]
PartitionNames = tuple[str, str, str]
"""Stream, topic and partition, as labels."""


class SeriesBudget:
    """How many time series a metric may still get."""

    def __init__(self, count_max: int) -> None:
        self._left = count_max

    def take(self, count: int) -> bool:
        """Whether as many more fit, all of them."""
        if count > self._left:
            return False
        self._left -= count
        return True


def topic_names(state: CatalogState, topic: OpenTopic) -> tuple[str, str] | None:
    """The names of a topic and its stream; None if it was deleted meanwhile."""
    stream = state.streams.get(topic.stream_id)
    found = None if stream is None else stream.topics.get(topic.topic_id)
    return None if stream is None or found is None else (stream.name, found.name)


class _Tally:
    """What one walk has found so far."""

    def __init__(self, removed: PartitionCounters) -> None:
        self.counters = removed
        self.gauges = PartitionGauges()
        self.segment_count_max = 0
        self.rows: dict[PartitionNames, tuple[PartitionCounters, PartitionGauges]] = {}

    def add(self, partitions: Sequence[Partition], topic: tuple[str, str] | None, *, is_single: bool) -> None:
        """Add some partitions of a topic to the sums, and to the rows of their own or to that of the topic."""
        counters, gauges = [counters_of(one) for one in partitions], [gauges_of(one) for one in partitions]
        counters_sum, gauges_sum = sums_of(PartitionCounters, counters), sums_of(PartitionGauges, gauges)
        self.counters = sums_of(PartitionCounters, (self.counters, counters_sum))
        self.gauges = sums_of(PartitionGauges, (self.gauges, gauges_sum))
        self.segment_count_max = max(self.segment_count_max, *(found.segment_count for found in gauges))
        if topic is None:
            return
        if is_single:
            for partition, own_counters, own_gauges in zip(partitions, counters, gauges, strict=True):
                self.rows[*topic, str(partition.log.identity.partition_id)] = own_counters, own_gauges
            return
        known = self.rows.get((*topic, OTHER), (PartitionCounters(), PartitionGauges()))
        self.rows[*topic, OTHER] = (
            sums_of(PartitionCounters, (known[0], counters_sum)),
            sums_of(PartitionGauges, (known[1], gauges_sum)),
        )


class PartitionSurvey:
    """Walks over all partitions, and registers what it finds."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        state: CatalogState,
        *,
        series_count_max: int,
        pause: Pause = let_others_run,
    ) -> None:
        self._partitions = partitions
        self._state = state
        self._series_count_max = series_count_max
        self._pause = pause
        self._found = _Tally(PartitionCounters())

    async def run(self) -> None:
        """Look at all partitions."""
        # Taken together: a partition that is deleted during the walk is counted once.
        tally = _Tally(self._partitions.removed)
        topics = [(topic, tuple(topic.partitions)) for topic in self._partitions]
        partitions_left, topics_left = SeriesBudget(self._series_count_max), SeriesBudget(self._series_count_max)
        step = 0
        for topic, partitions in topics:
            names = topic_names(self._state, topic)
            is_single = names is not None and partitions_left.take(len(partitions))
            if names is not None and not is_single and not topics_left.take(1):
                names = OTHER, OTHER
            for begin in range(0, len(partitions), STEP_COUNT):
                some = partitions[begin : begin + STEP_COUNT]
                if step + len(some) > STEP_COUNT:
                    step = 0
                    await self._pause()
                step += len(some)
                tally.add(some, names, is_single=is_single)
        self._found = tally

    @property
    def counters(self) -> PartitionCounters:
        """The sums over all partitions, those that are deleted included."""
        return self._found.counters

    @property
    def gauges(self) -> PartitionGauges:
        """The sums over all partitions."""
        return self._found.gauges

    def register(self, registry: Registry) -> None:
        """Name what is found."""
        registry.surveys.append(self.run)
        registry.value_of(m.SEGMENTS_MAX, lambda: self._found.segment_count_max)
        for metric, read_counter in _COUNTERS:
            registry.value_of(metric, partial(self._counter, read_counter))
        for metric, read_gauge in _GAUGES:
            registry.value_of(metric, partial(self._gauge, read_gauge))
        for metric, read_counter in _COUNTERS_OF_EACH:
            registry.collected(metric, partial(self._counters_of_each, metric, read_counter))
        for metric, read_gauge in _GAUGES_OF_EACH:
            registry.collected(metric, partial(self._gauges_of_each, metric, read_gauge))

    def _counter(self, read: ReadFigure) -> int:
        return read(self.counters)

    def _gauge(self, read: ReadFigure) -> int:
        return read(self.gauges)

    def _counters_of_each(self, metric: Metric, read: ReadFigure) -> Iterator[Sample]:
        rows = self._found.rows
        return (Sample(metric.labeled(*names), read(counters)) for names, (counters, _) in rows.items())

    def _gauges_of_each(self, metric: Metric, read: ReadFigure) -> Iterator[Sample]:
        rows = self._found.rows
        return (Sample(metric.labeled(*names), read(gauges)) for names, (_, gauges) in rows.items())


_COUNTERS: Figures = (
    (m.APPENDED_MESSAGES, attrgetter("appended_count")),
    (m.APPENDED_BYTES, attrgetter("appended_size")),
    (m.POLLED_MESSAGES, attrgetter("polled_count")),
    (m.POLLED_BYTES, attrgetter("polled_size")),
    (m.SEGMENTS_CREATED, attrgetter("segment_created_count")),
    (m.READ_BYTES, attrgetter("read_size")),
    (m.INDEX_LOOKUPS, attrgetter("index_lookup_count")),
    (m.INDEX_REBUILDS, attrgetter("index_rebuild_count")),
    (m.CHECKSUM_FAILURES, attrgetter("checksum_failure_count")),
)
_GAUGES: Figures = (
    (m.PARTITIONS, attrgetter("partition_count")),
    (m.READ_ONLY, attrgetter("read_only_count")),
    (m.UNSYNCED_BYTES, attrgetter("unsynced_size")),
    (m.SEGMENTS, attrgetter("segment_count")),
    (m.STORED_BYTES, attrgetter("size")),
    (m.STORED_MESSAGES, attrgetter("message_count")),
)
_COUNTERS_OF_EACH: Figures = (
    (m.PARTITION_APPENDED_MESSAGES, attrgetter("appended_count")),
    (m.PARTITION_APPENDED_BYTES, attrgetter("appended_size")),
    (m.PARTITION_POLLED_MESSAGES, attrgetter("polled_count")),
    (m.PARTITION_POLLED_BYTES, attrgetter("polled_size")),
)
_GAUGES_OF_EACH: Figures = (
    (m.PARTITION_MESSAGES, attrgetter("message_count")),
    (m.PARTITION_BYTES, attrgetter("size")),
    (m.PARTITION_SEGMENTS, attrgetter("segment_count")),
)
