"""How many of something there may be: asked before it is made, and never of what is there already.

The rules of the catalog hold for every entry of a journal, so a limit that is lowered there would refuse what an older
server has accepted. These limits are asked when a command has its turn, before it is journaled.
"""

from courser.broker.settings import BrokerSettings
from courser.catalog.rules import SINK_COUNT_MAX
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode

GROUP_COUNT_MAX = 100_000
"""Consumer groups of all topics: bounds the snapshot, and what a user who may read many topics can add to it."""
STREAM_COUNT_MAX = 10_000
TOPIC_COUNT_OF_STREAM_MAX = 10_000
"""Streams, and topics of a stream: each is a directory, and a row of a list that clients ask for."""
PARTITION_COUNT_OF_TOPIC_MAX = 10_000
"""Partitions of a topic, after all additions: each is a directory, open files and some 10 KiB of memory."""
SINK_COUNT_OF_USER_MAX = SINK_COUNT_MAX * 3 // 4
"""Sinks of one user that are remembered: a quarter of all is left to the others."""


class Quotas:
    """What may be made. All raise ``CommandRejected``."""

    def __init__(self, state: CatalogState, settings: BrokerSettings) -> None:
        self._state = state
        self._group_count_max = settings.group_count_max

    def check_new_group(self, stream_id: int, topic_id: int) -> None:
        """20030 if a topic, or the server, has as many consumer groups as it may."""
        topic = self._state.topic(stream_id, topic_id)
        if topic is not None and len(topic.groups) >= self._group_count_max:
            reason = f"a topic has at most {self._group_count_max} consumer groups: delete unused ones first"
            raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)
        streams = self._state.streams.values()
        if sum(len(topic.groups) for stream in streams for topic in stream.topics.values()) >= GROUP_COUNT_MAX:
            reason = f"there are {GROUP_COUNT_MAX} consumer groups already: delete unused ones first"
            raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)

    def check_new_stream(self) -> None:
        """20032."""
        if len(self._state.streams) >= STREAM_COUNT_MAX:
            raise CommandRejected(ErrorCode.TOO_MANY_STREAMS, f"there are {STREAM_COUNT_MAX} streams already")

    def check_new_topic(self, stream_id: int) -> None:
        """20033."""
        stream = self._state.streams.get(stream_id)
        if stream is not None and len(stream.topics) >= TOPIC_COUNT_OF_STREAM_MAX:
            reason = f"a stream has at most {TOPIC_COUNT_OF_STREAM_MAX} topics"
            raise CommandRejected(ErrorCode.TOO_MANY_TOPICS, reason)

    def check_new_partitions(self, stream_id: int, topic_id: int, count: int) -> None:
        """2015."""
        topic = self._state.topic(stream_id, topic_id)
        if topic is not None and len(topic.partitions) + count > PARTITION_COUNT_OF_TOPIC_MAX:
            reason = (
                f"a topic has at most {PARTITION_COUNT_OF_TOPIC_MAX} partitions, this one has {len(topic.partitions)}"
            )
            raise CommandRejected(ErrorCode.TOO_MANY_PARTITIONS, reason)


def check_new_sink(state: CatalogState, user_id: int, name: str) -> None:
    """Raise ``CommandRejected`` (20013) if a user has as many sinks as one may."""
    if name in state.sinks or len(state.sinks) < SINK_COUNT_OF_USER_MAX:
        return
    if sum(sink.user_id == user_id for sink in state.sinks.values()) >= SINK_COUNT_OF_USER_MAX:
        reason = f"a user has at most {SINK_COUNT_OF_USER_MAX} sinks: forget one first"
        raise CommandRejected(ErrorCode.TOO_MANY_SINKS, reason)
