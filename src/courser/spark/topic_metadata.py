"""What can be read of a topic now: its identity, and the bounds and segments of its partitions.

Planning works with ``TopicFacts``. They come from the server, from the files of a data directory, or
from the archive.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from courser.api.replies import LOCAL, PartitionBounds
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
    gaps: tuple[tuple[int, int], ...] = ()
    """Offsets between segments, oldest first, each up to, but not including, the second: no message has them.

    A restore leaves out a trillion of them, a power cut those that were reserved.
    """

    def count_between(self, start: int, end: int) -> int:
        """How many offsets from ``start`` up to, but not including, ``end`` can have messages."""
        missing = sum(max(min(behind, end) - max(first, start), 0) for first, behind in self.gaps)
        return max(end - start, 0) - missing

    def end_of(self, start: int, count: int) -> int:
        """The end of so many offsets that can have messages, from ``start`` on."""
        end = start + count
        for first, behind in self.gaps:
            if first >= end:
                break
            if behind > start:
                end += behind - max(first, start)
        return end

    @property
    def message_size(self) -> float:
        """Average bytes per message."""
        return max(self.size / self.message_count, 1.0) if self.message_count else 1.0

    def size_of(self, offset_count: int) -> float:
        """Approximate bytes of so many offsets. In condensed segments, most of them may have no message."""
        return min(offset_count * self.message_size, max(self.size, 1))


def gaps_between(first: int, end: int, segments: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The offsets from ``first`` up to, but not including, ``end`` that no segment covers."""
    gaps = []
    for start, behind in (*segments, (end, end)):
        if first < start:
            gaps.append((first, start))
        first = max(first, behind)
    return tuple(gaps)


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
    """Metadata of a topic that a stream waits for."""

    def wait(self, following: Following, seconds: float) -> bool:
        """Wait up to ``seconds`` for a message in this or another topic. Returns whether to look again."""
        ...


@dataclass(frozen=True, slots=True)
class _KnownGaps:
    """The gaps of a partition, and what the partition looked like when they were asked for."""

    first: int
    missing_count: int
    """Offsets without a message."""
    gaps: tuple[tuple[int, int], ...]


class ServerTopic:
    """The metadata of a topic, from the server."""

    def __init__(self, target: Target, stream: str, topic: str, retries: int) -> None:
        self._target = target
        self._stream = stream
        self._topic = topic
        self._retries = retries
        self._gaps: dict[int, _KnownGaps] = {}

    @property
    def connection(self) -> BackgroundClient:
        """Connects when first needed: Spark builds readers in several processes, and most of them ask nothing."""
        return with_retries(lambda: connection_to(self._target), self._retries)

    def facts(self) -> TopicFacts:
        """One request for all partitions, and one for each with new gaps. Raises ``SourceMissing``."""
        connection = self.connection
        try:
            bounds = connection.get_partition_bounds(self._stream, self._topic)
        except NotFound as error:
            raise SourceMissing(
                f"topic {self._stream}/{self._topic} does not exist on {self._target.address}: {error}"
            ) from error
        partitions = {
            row.partition_id: Bounds(
                row.first_offset, row.next_offset, row.size, row.message_count, self._gaps_of(connection, row)
            )
            for row in bounds.partitions
        }
        return TopicFacts(bounds.topic_uuid, partitions)

    def _gaps_of(self, connection: BackgroundClient, row: PartitionBounds) -> tuple[tuple[int, int], ...]:
        """The gaps of a partition. Asks again only if there are more: new messages do not change them."""
        missing_count = row.next_offset - row.first_offset - row.message_count
        if missing_count <= 0:
            return ()
        known = self._gaps.get(row.partition_id)
        if known is None or known.first != row.first_offset or known.missing_count < missing_count:
            listed = connection.get_segments(self._stream, self._topic, row.partition_id).segments
            segments = ((segment.first_offset, segment.next_offset) for segment in listed)
            gaps = gaps_between(row.first_offset, row.next_offset, segments)
            known = self._gaps[row.partition_id] = _KnownGaps(row.first_offset, missing_count, gaps)
        return known.gaps

    def segments(self, partition: int) -> list[ListedSegment]:
        found = self.connection.get_segments(self._stream, self._topic, partition)
        return [
            ListedSegment(row.first_offset, row.next_offset, row.size, found.directory, row.is_sealed)
            for row in found.segments
            if row.location == LOCAL
        ]

    def is_reserved(self, partition: int, first: int, end: int) -> bool:  # noqa: ARG002
        """Unknown here: the server tells only when it is asked for the messages."""
        return False

    def wait(self, following: Following, seconds: float) -> bool:
        """Wait up to ``seconds`` for a message in this or another topic of its server. Returns whether one arrived."""
        if not 0 < sum(map(len, following.values())) <= _WAIT_COUNT_MAX:
            time.sleep(seconds)
            return True
        try:
            return bool(self.connection.wait_for_topics(following, wait=seconds))
        except NotFound:
            # The caller's next request finds out what is gone: a partition or a topic.
            return True

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        polled = self.connection.poll_batches(
            self._stream, self._topic, partition, PollingStrategy.Timestamp(moment), 1, consumer=0
        )
        return polled.views[0].first_offset if polled.views else None
