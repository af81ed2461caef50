"""What can be read of a topic now: its identity, and the bounds and segments of its partitions.

Planning works with ``TopicFacts``. They come from the server, from the files of a data directory, or
from the archive.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from courser.api.replies import LOCAL
from courser.client.messages import PollingStrategy
from courser.client.targets import Target
from courser.errors import NotFound
from courser.model.identifiers import Identifier
from courser.spark.background_clients import BackgroundClient, connection_to, with_retries
from courser.spark.errors import SourceMissing

_WAIT_COUNT_MAX = 1000
"""Partitions that one request can wait on."""
Following: TypeAlias = Mapping[str | tuple[Identifier, Identifier], Mapping[int, int]]
"""The next offset of each partition, by stream and topic."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets that a partition holds: from ``first`` up to, but not including, ``next``."""

    first: int
    next: int
    size: int
    """Bytes."""
    message_count: int

    @property
    def message_size(self) -> float:
        """Average bytes per message."""
        return max(self.size / self.message_count, 1.0) if self.message_count else 1.0

    def size_of(self, offset_count: int) -> float:
        """Approximate bytes of so many offsets. A restore leaves out a trillion of them, which have no messages."""
        return min(offset_count * self.message_size, max(self.size, 1))


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic at one point in time."""

    uuid: bytes
    partitions: dict[int, Bounds]


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment of a partition. Of an open one, this is what was known when it was listed."""

    first: int
    next: int
    size: int
    directory: str
    """The partition's directory, relative to the data directory."""
    is_sealed: bool


class TopicMetadata(Protocol):
    """Answers questions about a topic."""

    def facts(self) -> TopicFacts:
        """The bounds of all partitions now."""
        ...

    def segments(self, partition: int) -> list[ListedSegment]:
        """The segments of a partition, oldest first."""
        ...

    def is_reserved(self, partition: int, first: int, end: int) -> bool:
        """Whether these offsets were reserved but never used: the server skips such offsets after a power cut."""
        ...

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        """The first offset appended at ``moment`` (microseconds since 1970) or later; None if there is none yet."""
        ...


class LiveTopic(TopicMetadata, Protocol):
    """The same for streams, which wait for more."""

    def wait(self, following: Following, seconds: float) -> bool:
        """Wait up to ``seconds`` for a message in this or another topic. Returns whether to look again."""
        ...


class ServerTopic:
    """The metadata of a topic, from the server."""

    def __init__(self, target: Target, stream: str, topic: str, retries: int) -> None:
        self._target = target
        self._stream = stream
        self._topic = topic
        self._retries = retries

    @property
    def connection(self) -> BackgroundClient:
        """Connects when first needed: Spark builds readers in several processes, and most of them ask nothing."""
        return with_retries(lambda: connection_to(self._target), self._retries)

    def facts(self) -> TopicFacts:
        """One request for all partitions. Raises ``SourceMissing`` if the topic does not exist."""
        connection = self.connection
        try:
            bounds = connection.sync.get_partition_bounds(self._stream, self._topic)
        except NotFound as error:
            raise SourceMissing(
                f"topic {self._stream}/{self._topic} does not exist on {self._target.address}: {error}"
            ) from error
        partitions = {
            row.partition_id: Bounds(row.first_offset, row.next_offset, row.size, row.message_count)
            for row in bounds.partitions
        }
        return TopicFacts(bounds.topic_uuid, partitions)

    def segments(self, partition: int) -> list[ListedSegment]:
        """See ``TopicMetadata``."""
        found = self.connection.sync.get_segments(self._stream, self._topic, partition)
        return [
            ListedSegment(row.first_offset, row.next_offset, row.size, found.directory, row.is_sealed)
            for row in found.segments
            if row.location == LOCAL
        ]

    def is_reserved(self, partition: int, first: int, end: int) -> bool:  # noqa: ARG002
        """See ``TopicMetadata``. Unknown here: the server tells only when it is asked for the messages."""
        return False

    def wait(self, following: Following, seconds: float) -> bool:
        """Wait up to ``seconds`` for a message in this or another topic of its server. Returns whether one arrived."""
        if not 0 < sum(map(len, following.values())) <= _WAIT_COUNT_MAX:
            time.sleep(seconds)
            return True
        try:
            return bool(self.connection.sync.wait_for_topics(following, wait=seconds))
        except NotFound:
            # The caller's next request finds out what is gone: a partition or a topic.
            return True

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        """See ``TopicMetadata``."""
        polled = self.connection.sync.poll_batches(
            self._stream, self._topic, partition, PollingStrategy.Timestamp(moment), 1, consumer=0
        )
        return polled.views[0].first_offset if polled.views else None
