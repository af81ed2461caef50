"""Read a topic for ``courser tail``: from a position to the end, and then as messages arrive.

First it reads the messages that exist at the start, all partitions merged by time. Then it follows, if requested.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from courser.api.replies import PartitionBounds
from courser.cli.explaining import without_partitions
from courser.cli.naming import TopicPath
from courser.cli.quantity_words import LATEST
from courser.cli.terminal import say
from courser.client.client import Client
from courser.client.consumer import ConsumedMessage
from courser.client.consumer import Consumer as GroupMember
from courser.client.messages import Message, PollingStrategy
from courser.errors import ErrorCode, NotFound, OffsetsUnavailable
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import PollingKind
from courser.records.message_filter import MessageFilter

_POLL_COUNT = 1000
_WAIT = 10.0
"""Seconds of one long poll. After each poll, new partitions are looked up."""
_NOBODY = Consumer(ConsumerKind.CONSUMER, 0)


@dataclass(frozen=True, slots=True)
class TailRequest:
    """Which messages of a topic to read."""

    place: TopicPath
    start: PollingStrategy | str | None = None
    """Where to start; ``LATEST`` means only messages that arrive later."""
    last: int | None = None
    """Read this many of the newest messages, instead of ``start``."""
    is_followed: bool = False
    """Whether to continue with messages that arrive."""
    wanted: MessageFilter | None = None
    """Only messages that match; ``last`` then counts these."""


@dataclass(slots=True)
class _Reader:
    """The progress in one partition."""

    partition_id: int
    position: int
    """The next offset to read."""
    end: int
    """The offset after the last message that existed at the start."""
    waiting: deque[Message] = field(default_factory=deque)


async def read(client: Client, reading: TailRequest) -> AsyncIterator[list[Message]]:
    readers = [await _begin(client, reading, bounds) for bounds in await _bounds(client, reading.place)]
    newest: deque[Message] = deque(maxlen=reading.last)
    async for messages in _read_history(client, reading, readers):
        if reading.last is None:
            yield messages
        else:
            newest.extend(messages)
    if newest:
        yield list(newest)
    if reading.is_followed:
        async for messages in _follow(client, reading, readers):
            yield messages


async def _bounds(client: Client, place: TopicPath) -> list[PartitionBounds]:
    bounds = (await client.get_partition_bounds(*place.names)).partitions
    if not bounds:
        raise without_partitions(place)
    if place.partition_id is None:
        return bounds
    chosen = [entry for entry in bounds if entry.partition_id == place.partition_id]
    if not chosen:
        raise NotFound(ErrorCode.PARTITION_NOT_FOUND, f"partition {place.partition_id} not found")
    return chosen


async def _begin(client: Client, reading: TailRequest, bounds: PartitionBounds) -> _Reader:
    first, end = bounds.first_offset, bounds.next_offset
    position = first
    start = reading.start
    if reading.last is not None and reading.wanted is not None:
        # Which messages are the newest that match is known only at the end.
        position = first
    elif reading.last is not None:
        position = await _offset_of_last(client, reading.place, bounds, reading.last)
    elif start == LATEST:
        position = end
    elif isinstance(start, PollingStrategy) and start.kind is PollingKind.OFFSET:
        position = start.value
    elif isinstance(start, PollingStrategy) and start.kind is PollingKind.TIMESTAMP:
        position = await _offset_at(client, reading.place, bounds, start)
    return _Reader(bounds.partition_id, position, end)


async def _offset_of_last(client: Client, place: TopicPath, bounds: PartitionBounds, count: int) -> int:
    """The offset of the first of the newest ``count`` messages. Only the server knows gaps left by a power cut."""
    first, end = bounds.first_offset, bounds.next_offset
    if end - first == bounds.message_count:
        return max(first, end - count)
    try:
        found = await client.poll_messages(
            *place.names,
            bounds.partition_id,
            PollingStrategy.Last(),
            count,
            auto_commit=False,
            consumer=_NOBODY,
            size_max=1,
        )
    except OffsetsUnavailable as gone:
        return gone.first_offset
    return found[0].offset if found else end


async def _offset_at(client: Client, place: TopicPath, bounds: PartitionBounds, start: PollingStrategy) -> int:
    found = await client.poll_messages(
        *place.names, bounds.partition_id, start, 1, auto_commit=False, consumer=_NOBODY, skip_missing=True
    )
    return found[0].offset if found else bounds.next_offset


async def _next_messages(client: Client, reading: TailRequest, reader: _Reader) -> list[Message]:
    """The next messages of a partition; none at its end. Deleted and damaged messages are skipped and reported."""
    while True:
        try:
            if reading.wanted is None:
                return await _poll(client, reading.place, reader, _POLL_COUNT)
            before = reader.position
            messages = await _search(client, reading.place, reader, reading.wanted)
            if messages or reader.position == before:
                return messages
        except OffsetsUnavailable as gone:
            say(f"partition {reader.partition_id}: {gone}")
            reader.position = max(gone.end_offset, reader.position + 1)


async def _poll(client: Client, place: TopicPath, reader: _Reader, count: int) -> list[Message]:
    messages = await client.poll_messages(
        *place.names,
        reader.partition_id,
        PollingStrategy.Offset(reader.position),
        count,
        auto_commit=False,
        consumer=_NOBODY,
    )
    if messages:
        reader.position = messages[-1].offset + 1
    return messages


async def _search(client: Client, place: TopicPath, reader: _Reader, wanted: MessageFilter) -> list[Message]:
    """Matching messages of the part that the server looks at with one request. It may return others, too."""
    found = await client.find_messages(*place.names, reader.partition_id, reader.position, wanted.conditions)
    matching: list[Message] = []
    reader.position = found.first_offset
    while reader.position < found.end_offset:
        messages = await _poll(client, place, reader, found.end_offset - reader.position)
        if not messages:
            break
        matching += [message for message in messages if wanted.matches(message.payload, message.raw_headers)]
    reader.position = found.next_offset
    return matching


# --- existing messages ---


async def _read_history(client: Client, reading: TailRequest, readers: list[_Reader]) -> AsyncIterator[list[Message]]:
    """All partitions, merged by time, up to the ends they had at the start."""
    while True:
        for reader in readers:
            if not reader.waiting:
                await _fill(client, reading, reader)
        active = [reader for reader in readers if reader.waiting]
        if not active:
            return
        yield _merge(active)


async def _fill(client: Client, reading: TailRequest, reader: _Reader) -> None:
    if reader.position >= reader.end:
        return
    messages = await _next_messages(client, reading, reader)
    if not messages:
        # The rest up to the end is a gap.
        reader.position = max(reader.position, reader.end)
        return
    reader.waiting.extend(messages)


def _merge(readers: list[_Reader]) -> list[Message]:
    """All messages that are certainly older than unread ones: stop when one partition has none left."""
    if len(readers) == 1:
        messages = list(readers[0].waiting)
        readers[0].waiting.clear()
        return messages
    merged = []
    while all(reader.waiting for reader in readers):
        oldest = min(readers, key=lambda reader: (reader.waiting[0].timestamp, reader.partition_id))
        merged.append(oldest.waiting.popleft())
    return merged


# --- new messages ---


async def _follow(client: Client, reading: TailRequest, readers: list[_Reader]) -> AsyncIterator[list[Message]]:
    """Never returns. Partitions that are added later are read from their beginning."""
    place = reading.place
    loop = asyncio.get_running_loop()
    looked_at = loop.time()
    while True:
        positions = {reader.partition_id: reader.position for reader in readers}
        arrived = (await client.wait_for_arrivals(*place.names, positions, wait=_WAIT)).partition_ids
        for reader in readers:
            if reader.partition_id in arrived and (messages := await _next_messages(client, reading, reader)):
                yield messages
        if loop.time() - looked_at >= _WAIT:
            looked_at = loop.time()
            readers += [
                _Reader(bounds.partition_id, bounds.first_offset, bounds.next_offset)
                for bounds in await _bounds(client, place)
                if bounds.partition_id not in positions
            ]


# --- groups ---


async def read_as_member(
    client: Client, place: TopicPath, group: Identifier, *, is_followed: bool, limit: int | None = None
) -> AsyncIterator[list[Message]]:
    """Read messages of the partitions assigned to this member, at most ``limit``.

    A list is committed when the caller asks for the next one. The caller has to do so after the last list, too.
    """

    async def keep_to_the_partition(partition_ids: tuple[int, ...]) -> None:
        others = [number for number in partition_ids if place.partition_id not in (None, number)]
        if others:
            await member.pause(*others)

    left = limit
    member = client.consumer(
        *place.names,
        group=group,
        create_group=False,
        commit="manual",
        stop_at_end=not is_followed,
        batch_count=_POLL_COUNT if limit is None else min(_POLL_COUNT, limit),
        on_assigned=keep_to_the_partition,
    )
    async with member:
        while left != 0 and (messages := (await member.take())[:left]):
            yield list(messages)
            await _commit(member, messages)
            left = None if left is None else left - len(messages)


async def _commit(member: GroupMember, messages: list[ConsumedMessage]) -> None:
    """Store the offsets of the group. Ctrl-C does not interrupt this: printed messages are committed."""
    newest = {message.partition_id: message for message in messages}
    storing = asyncio.gather(*(member.commit(message) for message in newest.values()))
    try:
        await asyncio.shield(storing)
    except asyncio.CancelledError:
        await asyncio.wait({storing}, timeout=_WAIT)
        raise
