"""All topics with their figures, for lists: sizes, counts, rates and lag, in one walk with pauses."""

from courser.api.operating_replies import TopicFigureList, TopicFigures
from courser.broker.figures.figures import sums_of_topic
from courser.broker.figures.lag import position_of
from courser.broker.figures.message_counts import MessageCounts
from courser.broker.messages.consuming import group_key
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.peers import TopicSums
from courser.broker.partition.topic_settings import durability_of, effective_options
from courser.broker.partition.waiting import Pause, Steps, let_others_run
from courser.broker.settings import BrokerSettings
from courser.catalog.entities import Stream, Topic
from courser.catalog.state import CatalogState
from courser.model.identifiers import TopicAddress
from courser.model.quantities import NEVER

_STEP_COUNT = 100
"""Topics, partitions, segments and groups of partitions that are looked at without a pause: some 10 us each."""


class TopicFigureTable:
    """Reads the figures off the open partitions; keeps nothing."""

    def __init__(
        self,
        state: CatalogState,
        partitions: PartitionRegistry,
        settings: BrokerSettings,
        *,
        pause: Pause = let_others_run,
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._settings = settings
        self._pause = pause

    async def read(self) -> TopicFigureList:
        """All topics, by the ids of streams and topics."""
        rows: list[TopicFigures] = []
        places = [
            (stream, stream.topics[topic_id])
            for stream in sorted(self._state.streams.values(), key=lambda stream: stream.stream_id)
            for topic_id in sorted(stream.topics)
        ]
        steps = Steps(self._pause, _STEP_COUNT)
        for stream, topic in places:
            await steps.take()
            rows.append(await self._row(stream, topic, steps))
        return TopicFigureList(rows)

    async def _row(self, stream: Stream, topic: Topic, steps: Steps) -> TopicFigures:
        opened = self._partitions.topics.get(TopicAddress(stream.stream_id, topic.topic_id))
        effective = effective_options(topic.options, self._settings.topic_defaults)
        sums, appended, lag = TopicSums(0, 0, 0), 0, None
        if opened is not None:
            sums, lag = await sums_of_topic(opened, steps), await _lag(opened, topic, steps)
            for partition in list(opened.partitions):
                await steps.take()
                appended += partition.log.marks.written.message_count
        return TopicFigures(
            stream.stream_id,
            stream.name,
            topic.topic_id,
            topic.name,
            len(topic.partitions),
            sums.message_count,
            sums.size,
            appended,
            effective.message_expiry or NEVER,
            effective.max_topic_size or NEVER,
            durability_of(topic.options, self._settings).level.value,
            len(topic.groups),
            lag,
        )


async def _lag(opened: OpenTopic, topic: Topic, steps: Steps) -> int | None:
    """The lag of the group that is furthest behind."""
    furthest: int | None = None
    counts, partitions = MessageCounts(steps), tuple(opened.partitions)
    for group_id in tuple(topic.groups):
        lag, key = 0, group_key(group_id)
        for partition in partitions:
            await steps.take()
            lag += await counts.count_from(partition, position_of(partition, key)[1])
        furthest = lag if furthest is None else max(furthest, lag)
    return furthest
