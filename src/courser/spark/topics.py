"""What can be read of a topic now: its identity, and the bounds and segments of its partitions.

``TopicFacts`` is what planning works with; the server answers it, or the files of a data directory do.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from courser.client.messages import PollingStrategy
from courser.client.targets import Target
from courser.errors import NotFound
from courser.spark.connections import Connection, connection_to, patiently
from courser.spark.errors import ReadFailed

_WAIT_COUNT_MAX = 1000
"""Partitions that one request can wait for."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition holds the offsets from ``first`` to below ``next``."""

    first: int
    next: int
    size: int
    """Bytes."""
    message_count: int

    @property
    def message_size(self) -> float:
        """Bytes of a message, on average."""
        return max(self.size / self.message_count, 1.0) if self.message_count else 1.0


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic at one moment."""

    uuid: bytes
    partitions: dict[int, Bounds]


@dataclass(frozen=True, slots=True)
class Segment:
    """A closed segment of a partition, or what is known of one."""

    first: int
    next: int
    size: int
    directory: str
    """Of the partition, below the data directory."""
    is_sealed: bool


class TopicSource(Protocol):
    """Who knows a topic."""

    def facts(self) -> TopicFacts:
        """What is there now."""
        ...

    def segments(self, partition: int) -> list[Segment]:
        """The segments of a partition, oldest first."""
        ...

    def is_reserved(self, partition: int, first: int, end: int) -> bool:
        """Whether no message ever had these offsets: they were skipped after a power cut."""
        ...

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        """The first offset that was appended at ``moment`` (microseconds) or later; None if there is none yet."""
        ...


class ServerTopic:
    """A topic, as the server knows it."""

    def __init__(self, target: Target, stream: str, topic: str, retries: int) -> None:
        self._target = target
        self._stream = stream
        self._topic = topic
        self._retries = retries

    @property
    def connection(self) -> Connection:
        """Made when it is first needed: readers are built in several processes, and most of them ask nothing."""
        return patiently(lambda: connection_to(self._target), self._retries)

    def facts(self) -> TopicFacts:
        """One request for all partitions. Raises ``ReadFailed`` if the topic does not exist."""
        connection = self.connection
        try:
            bounds = connection.sync.get_partition_bounds(self._stream, self._topic)
        except NotFound as error:
            raise ReadFailed(f"{self._target.address}: there is no {self._stream}/{self._topic}: {error}") from error
        partitions = {
            row.partition_id: Bounds(row.first_offset, row.next_offset, row.size, row.message_count)
            for row in bounds.partitions
        }
        return TopicFacts(bounds.topic_uuid, partitions)

    def segments(self, partition: int) -> list[Segment]:
        """See ``TopicSource``."""
        found = self.connection.sync.get_segments(self._stream, self._topic, partition)
        return [
            Segment(row.first_offset, row.next_offset, row.size, found.directory, row.is_sealed)
            for row in found.segments
        ]

    def is_reserved(self, partition: int, first: int, end: int) -> bool:  # noqa: ARG002
        """See ``TopicSource``. The server says nothing about it before it is asked for the messages."""
        return False

    def wait(self, following: Mapping[int, int], seconds: float) -> bool:
        """Wait until a partition has a message at the offset that follows, but not for long. Whether one has."""
        if not following or len(following) > _WAIT_COUNT_MAX:
            time.sleep(seconds)
            return True
        try:
            arrivals = self.connection.sync.wait_for_arrivals(
                self._stream, self._topic, following, consumer=0, wait=seconds
            )
        except NotFound:
            # The next question tells what is gone: a partition, or the topic.
            return True
        return bool(arrivals.partition_ids)

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        """See ``TopicSource``."""
        polled = self.connection.sync.poll_batches(
            self._stream, self._topic, partition, PollingStrategy.Timestamp(moment), 1, consumer=0
        )
        return polled.views[0].first_offset if polled.views else None
