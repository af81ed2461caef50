"""Where a consumer starts: turn words, offsets and times into one offset per partition."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

from courser.api import commands as c
from courser.api import replies as r
from courser.client.batch_view import batches_of
from courser.client.link import Link
from courser.client.messages import PollingStrategy, microseconds
from courser.errors import NotFound, OffsetsUnavailable
from courser.model.identifiers import Consumer as Reader
from courser.model.identifiers import ConsumerKind, Identifier
from courser.model.messaging import PollingKind

Start: TypeAlias = str | int | datetime | PollingStrategy | Mapping[int, int]
"""``next``, ``first``, ``last``, ``end``, ``earliest``, ``latest``; an offset, a time, or offsets by partition."""

_WORDS = {
    "next": PollingKind.NEXT,
    "first": PollingKind.FIRST,
    "earliest": PollingKind.FIRST,
    "last": PollingKind.LAST,
}
_ENDS = ("end", "latest")


class StartingPoint:
    """Where a consumer starts to read a partition that it has not read yet."""

    def __init__(self, link: Link, stream: Identifier, topic: Identifier, reader: Reader | None, start: Start) -> None:
        """``reader`` is None if no offsets are stored. Raises ``ValueError`` for an invalid start."""
        self._link = link
        self._stream, self._topic = stream, topic
        self._reader = reader
        self._offsets: Mapping[int, int] = {}
        self._kind: PollingKind | None
        self._kind, self._value = _understood(start)
        if isinstance(start, Mapping):
            self._offsets = start
        is_group = reader is not None and reader.kind is ConsumerKind.GROUP
        self._resumes = reader is not None and (is_group or self._kind is PollingKind.NEXT)
        """Whether a stored offset takes precedence. In a group it always does: other members may have read before."""

    async def bounds(self) -> dict[int, r.PartitionBounds]:
        """First and next offset of every partition."""
        reply = await self._link.request(c.GetPartitionBounds(self._stream, self._topic), patient=True)
        assert isinstance(reply, r.TopicBounds)
        return {row.partition_id: row for row in reply.partitions}

    async def offsets(self, partition_ids: Iterable[int]) -> dict[int, int]:
        """The first offset to read in each of these partitions."""
        bounds = await self.bounds()
        found = {}
        for partition_id in partition_ids:
            if partition_id in bounds:
                stored = await self.stored(partition_id) if self._resumes else None
                found[partition_id] = await self._begin(bounds[partition_id]) if stored is None else stored + 1
        return found

    async def stored(self, partition_id: int) -> int | None:
        """The committed offset."""
        if self._reader is None:
            return None
        command = c.GetConsumerOffset(self._reader, self._stream, self._topic, partition_id)
        try:
            reply = await self._link.request(command, patient=True)
        except NotFound:
            return None
        assert isinstance(reply, r.StoredOffset)
        return reply.stored_offset

    async def _begin(self, bounds: r.PartitionBounds) -> int:
        match self._kind:
            case None:
                return bounds.next_offset
            case PollingKind.OFFSET:
                return self._offsets.get(bounds.partition_id, bounds.first_offset if self._offsets else self._value)
            case PollingKind.LAST:
                # A power cut leaves gaps in the offsets, and only the server knows them.
                if bounds.next_offset - bounds.first_offset != bounds.message_count:
                    return await self._where(bounds, PollingKind.LAST, 0, self._value)
                return max(bounds.next_offset - self._value, bounds.first_offset)
            case PollingKind.TIMESTAMP:
                return await self._where(bounds, PollingKind.TIMESTAMP, self._value, 1)
        return bounds.first_offset

    async def _where(self, bounds: r.PartitionBounds, kind: PollingKind, value: int, count: int) -> int:
        """The offset of the first message that such a poll returns."""
        reader = Reader(ConsumerKind.CONSUMER, 0)
        poll = c.PollMessages(reader, self._stream, self._topic, bounds.partition_id, kind, value, count, False)
        try:
            polled = await self._link.request(c.WaitForMessages(poll, 0, 1), patient=True)
        except OffsetsUnavailable as gap:
            return gap.first_offset
        assert isinstance(polled, r.Polled)
        return next((view.first_offset for view in batches_of(polled)), bounds.next_offset)


def _understood(start: Start) -> tuple[PollingKind | None, int]:
    """Kind and value; None means the end."""
    if isinstance(start, str):
        if start in _ENDS:
            return None, 0
        if start not in _WORDS:
            raise ValueError(f'start must be {", ".join((*_WORDS, *_ENDS))}, an offset or a time, not "{start}"')
        return _WORDS[start], 1
    if isinstance(start, PollingStrategy):
        return start.kind, start.value or (1 if start.kind is PollingKind.LAST else 0)
    if isinstance(start, datetime):
        return PollingKind.TIMESTAMP, microseconds(start)
    return PollingKind.OFFSET, start if isinstance(start, int) else 0
