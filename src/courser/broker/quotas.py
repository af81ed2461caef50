"""Limits on how many streams, topics and so on may exist: checked before one is created, never for existing ones.

The rules of the catalog apply to every entry of a journal, so lowering a limit there would reject what an older server
accepted. These limits are checked when it is a change's turn, before it is journaled.
"""

from courser.broker.settings import BrokerSettings
from courser.catalog.rules import SINK_COUNT_MAX
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode

GROUP_COUNT_MAX = 100_000
"""Consumer groups of all topics: limits the snapshot, and what a user who may read many topics can add to it."""
STREAM_COUNT_MAX = 10_000
TOPIC_COUNT_OF_STREAM_MAX = 10_000
"""Streams, and topics of a stream: each is a directory and a row in the lists that clients request."""
PARTITION_COUNT_OF_TOPIC_MAX = 10_000
"""Partitions of a topic: each is a directory, open files and about 10 KiB of memory."""
SINK_COUNT_OF_USER_MAX = SINK_COUNT_MAX * 3 // 4
"""Sinks of one user: a quarter of all is left for other users."""


class Quotas:
    """Checks before a creation. All methods raise ``CommandRejected``."""

    def __init__(self, state: CatalogState, settings: BrokerSettings) -> None:
        self._state = state
        self._group_count_max = settings.group_count_max

    def check_new_group(self, stream_id: int, topic_id: int) -> None:
        """20030 if a topic or the server has too many consumer groups."""
        topic = self._state.topic(stream_id, topic_id)
        if topic is not None and len(topic.groups) >= self._group_count_max:
            reason = f"a topic can have at most {self._group_count_max} consumer groups; delete unused ones first"
            raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)
        streams = self._state.streams.values()
        if sum(len(topic.groups) for stream in streams for topic in stream.topics.values()) >= GROUP_COUNT_MAX:
            reason = f"the limit of {GROUP_COUNT_MAX} consumer groups is reached; delete unused ones first"
            raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)

    def check_new_stream(self) -> None:
        """20032."""
        if len(self._state.streams) >= STREAM_COUNT_MAX:
            raise CommandRejected(ErrorCode.TOO_MANY_STREAMS, f"the limit of {STREAM_COUNT_MAX} streams is reached")

    def check_new_topic(self, stream_id: int) -> None:
        """20033."""
        stream = self._state.streams.get(stream_id)
        if stream is not None and len(stream.topics) >= TOPIC_COUNT_OF_STREAM_MAX:
            reason = f"a stream can have at most {TOPIC_COUNT_OF_STREAM_MAX} topics"
            raise CommandRejected(ErrorCode.TOO_MANY_TOPICS, reason)

    def check_new_partitions(self, stream_id: int, topic_id: int, count: int) -> None:
        """2015."""
        topic = self._state.topic(stream_id, topic_id)
        if topic is not None and len(topic.partitions) + count > PARTITION_COUNT_OF_TOPIC_MAX:
            limit = PARTITION_COUNT_OF_TOPIC_MAX
            reason = f"a topic can have at most {limit} partitions; this one has {len(topic.partitions)}"
            raise CommandRejected(ErrorCode.TOO_MANY_PARTITIONS, reason)


def check_new_sink(state: CatalogState, user_id: int, name: str) -> None:
    """Raise ``CommandRejected`` (20013) if a user has too many sinks."""
    if name in state.sinks or len(state.sinks) < SINK_COUNT_OF_USER_MAX:
        return
    if sum(sink.user_id == user_id for sink in state.sinks.values()) >= SINK_COUNT_OF_USER_MAX:
        reason = f"a user can have at most {SINK_COUNT_OF_USER_MAX} sinks; forget one first"
        raise CommandRejected(ErrorCode.TOO_MANY_SINKS, reason)
