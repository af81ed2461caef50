"""All topics with their figures, for lists: sizes, counts, rates and lag, in one walk with pauses."""

from courser.api.operating_replies import TopicFigureList, TopicFigures
from courser.broker.figures.lag import position_of
from courser.broker.messages.consuming import group_key
from courser.broker.partition.partition_figures import counters_of
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.partition_survey import Pause, let_others_run
from courser.broker.partition.topic_settings import durability_of, effective_options
from courser.broker.settings import BrokerSettings
from courser.catalog.entities import Stream, Topic
from courser.catalog.state import CatalogState
from courser.model.identifiers import TopicAddress
from courser.model.quantities import NEVER

_STEP_COUNT = 100
"""Topics that are looked at without a pause: some 10 us each, and more with consumer groups."""


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
        for number, (stream, topic) in enumerate(places, 1):
            rows.append(self._row(stream, topic))
            if number % _STEP_COUNT == 0:
                await self._pause()
        return TopicFigureList(rows)

    def _row(self, stream: Stream, topic: Topic) -> TopicFigures:
        opened = self._partitions.topics.get(TopicAddress(stream.stream_id, topic.topic_id))
        effective = effective_options(topic.options, self._settings.topic_defaults)
        appended = 0 if opened is None else sum(counters_of(one).appended_count for one in opened.partitions)
        return TopicFigures(
            stream.stream_id,
            stream.name,
            topic.topic_id,
            topic.name,
            len(topic.partitions),
            0 if opened is None else opened.message_count,
            0 if opened is None else opened.size,
            appended,
            effective.message_expiry or NEVER,
            effective.max_topic_size or NEVER,
            durability_of(topic.options, self._settings).level.value,
            len(topic.groups),
            None if opened is None else _lag(opened, topic),
        )


def _lag(opened: OpenTopic, topic: Topic) -> int | None:
    """Of the group that is furthest behind."""
    lags = [
        sum(position_of(partition, group_key(group_id))[2] for partition in opened.partitions)
        for group_id in tuple(topic.groups)
    ]
    return max(lags, default=None)
