"""The lag of consumer groups: how many messages a group has not committed yet, and how old the oldest of them is."""

from collections.abc import Iterator, Mapping

from courser.api.replies import GroupLag, PartitionLag
from courser.broker.figures.message_counts import MessageCounts
from courser.broker.groups.groups import GroupKey
from courser.broker.messages.consuming import group_key
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.partition_survey import SeriesBudget, topic_names
from courser.broker.partition.waiting import Pause, Steps, let_others_run
from courser.catalog.entities import ConsumerGroup
from courser.catalog.state import CatalogState
from courser.errors import CourserError
from courser.model import metric_table as m
from courser.model.clock import Clock
from courser.model.identifiers import TopicAddress
from courser.model.metrics import OTHER, Metric, Registry, Sample
from courser.storage.offset_table import ConsumerKey

STEP_COUNT = 100
"""Topics, segments, and partitions of groups that are looked at without a pause: some 10 us each."""
_SECOND = 1_000_000

GroupNames = tuple[str, str, str, str]
"""Stream, topic, group and partition, as labels."""


def position_of(partition: Partition, key: ConsumerKey) -> tuple[int | None, int]:
    """What a group has stored, and the offset that it comes to next."""
    log = partition.log
    stored = log.offsets.get(key)
    try:
        start_offset = partition.reader.start_offset
    except CourserError:
        # The archive cannot be reached. What is here can be counted.
        start_offset = log.start_offset
    position = start_offset if stored is None else max(stored + 1, start_offset)
    return stored, position


async def _time_at(partition: Partition, offset: int) -> int | None:
    try:
        return await partition.reader.time_at(offset)
    except CourserError:
        # Polls of the group get the same error. Here it must not hide the lag of all others.
        return None


class Lags:
    """Looks at the groups: at one on request, and at all before each scrape, with pauses."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        state: CatalogState,
        clock: Clock,
        *,
        series_count_max: int,
        pause: Pause = let_others_run,
    ) -> None:
        self._partitions = partitions
        self._state = state
        self._clock = clock
        self._series_count_max = series_count_max
        self._steps = Steps(pause, STEP_COUNT)
        self._times: dict[tuple[Partition, int], tuple[int, int | None]] = {}
        """Offset and time of the message that a group comes to next, by partition and group: most do not move."""
        self._counts: dict[GroupNames, int] = {}
        self._ages: dict[GroupNames, float] = {}

    async def of_group(self, key: GroupKey) -> GroupLag:
        """The lag of one group in all partitions of its topic. Raises 2010 if the topic was deleted."""
        *address, group_id = key
        partitions = tuple(self._partitions.at(TopicAddress(*address)).partitions)
        rows, counts = [], MessageCounts(self._steps)
        for partition in partitions:
            await self._steps.take()
            rows.append(await self._partition_lag(partition, group_id, counts))
        return GroupLag(rows)

    async def _partition_lag(self, partition: Partition, group_id: int, counts: MessageCounts) -> PartitionLag:
        log = partition.log
        number = log.identity.partition_id
        if log.is_offline:
            return PartitionLag(number, None, None, None, None)
        stored, position = position_of(partition, group_key(group_id))
        count = await counts.count_from(partition, position)
        age: int | None = 0
        if count:
            time = await _time_at(partition, position)
            age = None if time is None else max(self._clock.now() - time, 0)
        return PartitionLag(number, stored, log.visible_end, count, age)

    async def run(self) -> None:
        """Look at all groups in all partitions."""
        counts: dict[GroupNames, int] = {}
        ages: dict[GroupNames, float] = {}
        times: dict[tuple[Partition, int], tuple[int, int | None]] = {}
        rows_left, groups_left = SeriesBudget(self._series_count_max), SeriesBudget(self._series_count_max)
        for topic in tuple(self._partitions):
            await self._steps.take()
            behind = MessageCounts(self._steps)
            for names, group in self._groups_of(topic):
                partitions, key = tuple(topic.partitions), group_key(group.group_id)
                is_single = rows_left.take(len(partitions))
                of_group = (*names, group.name) if is_single or groups_left.take(1) else (OTHER, OTHER, OTHER)
                for partition in partitions:
                    await self._steps.take()
                    row = (*of_group, str(partition.log.identity.partition_id) if is_single else OTHER)
                    _, position = position_of(partition, key)
                    count = await behind.count_from(partition, position)
                    counts[row] = counts.get(row, 0) + count
                    if is_single:
                        # Beyond the limit it would take too long: each may have to read from the disk.
                        time = await self._time_of(partition, group.group_id, position, times) if count else None
                        if time is not None or not count:
                            ages[row] = 0 if time is None else max(self._clock.now() - time, 0) / _SECOND
        self._counts, self._ages, self._times = counts, ages, times

    def _groups_of(self, topic: OpenTopic) -> Iterator[tuple[tuple[str, str], ConsumerGroup]]:
        names, found = topic_names(self._state, topic), self._state.topic(topic.stream_id, topic.topic_id)
        if names is not None and found is not None:
            for group in tuple(found.groups.values()):
                yield names, group

    async def _time_of(
        self,
        partition: Partition,
        group_id: int,
        position: int,
        times: dict[tuple[Partition, int], tuple[int, int | None]],
    ) -> int | None:
        key = partition, group_id
        known = self._times.get(key)
        if known is None or known[0] != position:
            known = position, await _time_at(partition, position)
        times[key] = known
        return known[1]

    def register(self, registry: Registry) -> None:
        """Name what is found."""
        registry.surveys.append(self.run)
        registry.collected(m.GROUP_LAG, lambda: _samples(m.GROUP_LAG, self._counts))
        registry.collected(m.GROUP_LAG_SECONDS, lambda: _samples(m.GROUP_LAG_SECONDS, self._ages))


def _samples(metric: Metric, rows: Mapping[GroupNames, float]) -> Iterator[Sample]:
    return (Sample(metric.labeled(*names), value) for names, value in rows.items())
