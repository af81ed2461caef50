"""Limits on how many streams, topics and so on may exist: checked before one is created, never for existing ones.

The rules of the catalog apply to every entry of a journal, so lowering a limit there would reject what an older server
accepted. These limits are checked when it is a change's turn, before it is journaled.
"""

from courser.broker.settings import BrokerSettings
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode


class Quotas:
    """Checks before a creation. All methods raise ``CommandRejected``."""

    def __init__(self, state: CatalogState, settings: BrokerSettings) -> None:
        self._state = state
        self._group_count_max = settings.group_count_max
        self._limits = settings.limits

    def check_new_group(self, stream_id: int, topic_id: int) -> None:
        """20030 if a topic or the server has too many consumer groups."""
        topic = self._state.topic(stream_id, topic_id)
        if topic is not None and len(topic.groups) >= self._group_count_max:
            reason = f"a topic can have at most {self._group_count_max} consumer groups; delete unused ones first"
            raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)
        streams, limit = self._state.streams.values(), self._limits.group_count_of_server_max
        if sum(len(topic.groups) for stream in streams for topic in stream.topics.values()) >= limit:
            reason = f"the limit of {limit} consumer groups is reached; delete unused ones first"
            raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)

    def check_new_stream(self) -> None:
        """Raise 20032 if there are too many streams."""
        limit = self._limits.stream_count_max
        if len(self._state.streams) >= limit:
            raise CommandRejected(ErrorCode.TOO_MANY_STREAMS, f"the limit of {limit} streams is reached")

    def check_new_topic(self, stream_id: int) -> None:
        """Raise 20033 if the stream has too many topics."""
        stream, limit = self._state.streams.get(stream_id), self._limits.topic_count_of_stream_max
        if stream is not None and len(stream.topics) >= limit:
            raise CommandRejected(ErrorCode.TOO_MANY_TOPICS, f"a stream can have at most {limit} topics")

    def check_new_partitions(self, stream_id: int, topic_id: int, count: int) -> None:
        """Raise 2015 if the topic would have too many partitions."""
        topic, limit = self._state.topic(stream_id, topic_id), self._limits.partition_count_of_topic_max
        if topic is not None and len(topic.partitions) + count > limit:
            reason = f"a topic can have at most {limit} partitions; this one has {len(topic.partitions)}"
            raise CommandRejected(ErrorCode.TOO_MANY_PARTITIONS, reason)

    def check_new_sink(self, user_id: int, name: str) -> None:
        """20013 if a user has too many sinks."""
        sinks, limit = self._state.sinks, self._limits.sink_count_of_user_max
        if name in sinks or len(sinks) < limit:
            return
        if sum(sink.user_id == user_id for sink in sinks.values()) >= limit:
            raise CommandRejected(ErrorCode.TOO_MANY_SINKS, f"a user can have at most {limit} sinks; forget one first")
