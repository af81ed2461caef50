"""Where a consumer starts: turn words, offsets and times into one offset per partition."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeAlias

from courser.api import commands as c
from courser.api import replies as r
from courser.client.batch_view import batches_of
from courser.client.link import Link
from courser.client.messages import PollingStrategy, microseconds
from courser.client.outbox import now_in_microseconds
from courser.errors import NotAssigned, NotFound, OffsetsUnavailable
from courser.model.identifiers import Consumer as Reader
from courser.model.identifiers import ConsumerKind, Identifier
from courser.model.messaging import PollingKind

Start: TypeAlias = str | int | datetime | timedelta | PollingStrategy | Mapping[int, int]
"""``next``, ``first``, ``last``, ``end``, ``earliest``, ``latest``; an offset, a time, how long ago by this machine's
clock, or offsets by partition."""

_WORDS = {
    "next": PollingKind.NEXT,
    "first": PollingKind.FIRST,
    "earliest": PollingKind.FIRST,
    "last": PollingKind.LAST,
}
_ENDS = ("end", "latest")


class StartingPoint:
    """Where a consumer starts to read a partition that it has not read yet."""

    def __init__(
        self,
        link: Link,
        stream: Identifier,
        topic: Identifier,
        reader: Reader | None,
        start: Start,
        *,
        patient: bool = True,
    ) -> None:
        """``reader`` is None if no offsets are stored. ``patient``: wait for a connection without a time limit.

        Raises:
            ValueError: an unknown word, or a negative offset or duration.
            TypeError: ``start`` is none of the types of ``Start``.
        """
        self._link = link
        self._is_patient = patient
        self._stream, self._topic = stream, topic
        self._reader = reader
        self._offsets: Mapping[int, int] = {}
        self._kind: PollingKind | None
        self._kind, self._value = _understood(start)
        if isinstance(start, Mapping):
            self._offsets = start
        self._is_group = reader is not None and reader.kind is ConsumerKind.GROUP
        self._resumes = reader is not None and (self._is_group or self._kind is PollingKind.NEXT)
        """Whether a stored offset takes precedence. In a group it always does: other members may have read before."""

    async def bounds(self) -> dict[int, r.PartitionBounds]:
        """First and next offset of every partition."""
        command = c.GetPartitionBounds(self._stream, self._topic)
        reply = await self._link.ask(command, r.TopicBounds, patient=self._is_patient)
        return {row.partition_id: row for row in reply.partitions}

    async def offsets(self, partition_ids: Iterable[int]) -> dict[int, int]:
        """The first offset to read in each of these partitions."""
        bounds = await self.bounds()
        found = {}
        for partition_id in partition_ids:
            if partition_id in bounds:
                stored = await self.stored(partition_id) if self._resumes else None
                found[partition_id] = await self._first(bounds[partition_id]) if stored is None else stored + 1
        return found

    async def _first(self, bounds: r.PartitionBounds) -> int:
        """Where a reader without a stored offset begins.

        A group stores it at once. Otherwise the messages before it would count as lag, and a member that takes over
        before the first commit would begin somewhere else.
        """
        begin = await self._begin(bounds)
        if self._is_group and self._reader is not None and bounds.first_offset < begin <= bounds.next_offset:
            place = (self._stream, self._topic, bounds.partition_id)
            with suppress(NotAssigned):
                await self._link.request(c.StoreConsumerOffset(self._reader, *place, begin - 1), patient=True)
        return begin

    async def stored(self, partition_id: int) -> int | None:
        """The offset that is stored for the reader; None if there is none."""
        if self._reader is None:
            return None
        command = c.GetConsumerOffset(self._reader, self._stream, self._topic, partition_id)
        try:
            return (await self._link.ask(command, r.StoredOffset, patient=self._is_patient)).stored_offset
        except NotFound:
            return None

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
            polled = await self._link.ask(c.WaitForMessages(poll, 0, 1), r.Polled, patient=self._is_patient)
        except OffsetsUnavailable as gap:
            return gap.first_offset
        return next((view.first_offset for view in batches_of(polled)), bounds.next_offset)


def _understood(start: Start) -> tuple[PollingKind | None, int]:
    """Kind and value; None means the end."""
    match start:
        case str():
            if start in _ENDS:
                return None, 0
            if start not in _WORDS:
                raise ValueError(f'start must be {", ".join((*_WORDS, *_ENDS))}, an offset or a time, not "{start}"')
            return _WORDS[start], 1
        case PollingStrategy():
            return start.kind, start.value or (1 if start.kind is PollingKind.LAST else 0)
        case datetime():
            return PollingKind.TIMESTAMP, microseconds(start)
        case timedelta():
            if start < timedelta():
                raise ValueError(
                    f"start must be a time in the past: a timedelta means so long ago, and {start} is negative"
                )
            return PollingKind.TIMESTAMP, max(now_in_microseconds() - start // timedelta(microseconds=1), 0)
        case Mapping():
            for partition_id, offset in start.items():
                _check_offset(partition_id, "a partition of start")
                _check_offset(offset, f"the offset of partition {partition_id} in start")
            return PollingKind.OFFSET, 0
        case _:
            return PollingKind.OFFSET, _check_offset(start, "start")


def _check_offset(value: object, what: str) -> int:
    # True is an int, but no offset.
    if not isinstance(value, int) or isinstance(value, bool):
        kinds = "a word, an offset, a datetime, a timedelta or offsets by partition" if what == "start" else "an int"
        raise TypeError(f"{what} must be {kinds}, not {value!r}")
    if value < 0:
        raise ValueError(f"{what} must not be negative: {value}")
    return value
