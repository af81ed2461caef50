"""Courser's own commands: the same payloads in both protocol generations, ids from 0 in every dialect.

``docs/formats/private-commands.md`` has the layouts.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from courser.api import commands as c
from courser.api import replies as r
from courser.model.buffers import Buffer
from courser.wire.reading import Malformed, Reader
from courser.wire.writing import consumer, identifier, text32, write_poll

POLLED = Struct("<IQI")
"""partition_id, current_offset, messages_count: what every poll reply begins with"""
_BOUNDS = Struct("<II16sI")
"""stream_id, topic_id, topic_uuid, partitions_count"""
_BOUNDS_ROW = Struct("<IQQQQ")
"""partition_id, first_offset, next_offset, size, messages_count"""
_SEGMENT = Struct("<QQQQQQB")
"""first_offset, next_offset, size, messages_count, first_timestamp, last_timestamp, is_sealed"""
_U32 = Struct("<I")
_WAIT = Struct("<QI")
"""wait, size_max"""
_POSITION = Struct("<IQ")
"""partition_id, offset"""
_POSITIONS_HEAD = Struct("<QQI")
"""generation, wait, number of positions"""
_ARRIVALS = Struct("<QI")
"""generation, number of partitions"""
_POSITION_COUNT_MAX = 1000
"""A topic has no more partitions."""


def read_poll(reader: Reader) -> c.PollMessages:
    """The request of a poll, as SDKs from 0.6 on write it."""
    consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
    partition_id = reader.optional_partition()
    kind, value = reader.strategy()
    return c.PollMessages(consumer, stream, topic, partition_id, kind, value, reader.u32(), reader.flag())


def _wait_for_messages(reader: Reader) -> c.WaitForMessages:
    return c.WaitForMessages(read_poll(reader), wait=reader.u64(), size_max=reader.u32())


def _get_partition_bounds(reader: Reader) -> c.GetPartitionBounds:
    return c.GetPartitionBounds(reader.identifier(), reader.identifier())


def _get_segments(reader: Reader) -> c.GetSegments:
    return c.GetSegments(reader.identifier(), reader.identifier(), reader.u32())


def _wait_for_arrivals(reader: Reader) -> c.WaitForArrivals:
    who, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
    generation, wait, count = _POSITIONS_HEAD.unpack(reader.take(_POSITIONS_HEAD.size))
    if count > _POSITION_COUNT_MAX:
        raise Malformed(f"a wait for {count} partitions, where {_POSITION_COUNT_MAX} are allowed")
    positions = tuple(_POSITION.iter_unpack(reader.take(count * _POSITION.size)))
    return c.WaitForArrivals(who, stream, topic, positions, generation, wait)


PRIVATE_DECODERS: dict[int, Callable[[Reader], c.Command]] = {
    60001: _wait_for_messages,
    60002: _get_partition_bounds,
    60003: _get_segments,
    60004: _wait_for_arrivals,
}
"""By command code."""


def batches(reply: r.Polled) -> Sequence[Buffer]:
    """Polled messages as they are stored: nothing is copied."""
    return (POLLED.pack(reply.partition_id, reply.current_offset, reply.message_count), *reply.pieces)


def bounds(reply: r.TopicBounds) -> bytes:
    """The bounds of the partitions of a topic."""
    parts = [_BOUNDS.pack(reply.stream_id, reply.topic_id, reply.topic_uuid, len(reply.partitions))]
    parts += [
        _BOUNDS_ROW.pack(row.partition_id, row.first_offset, row.next_offset, row.size, row.message_count)
        for row in reply.partitions
    ]
    return b"".join(parts)


def segments(reply: r.SegmentList) -> bytes:
    """The segments of a partition."""
    parts = [_U32.pack(reply.partition_id), text32(reply.directory), _U32.pack(len(reply.segments))]
    parts += [
        _SEGMENT.pack(
            row.first_offset,
            row.next_offset,
            row.size,
            row.message_count,
            row.first_timestamp,
            row.last_timestamp,
            row.is_sealed,
        )
        for row in reply.segments
    ]
    return b"".join(parts)


def arrivals(reply: r.Arrivals) -> bytes:
    """The partitions that have something to read."""
    head = _ARRIVALS.pack(reply.generation, len(reply.partition_ids))
    return head + b"".join(map(_U32.pack, reply.partition_ids))


# --- the client's side --------------------------------------------------------------------------------


def _write_wait(command: c.WaitForMessages) -> bytes:
    return write_poll(command.poll) + _WAIT.pack(command.wait, command.size_max)


def _write_topic(command: c.GetPartitionBounds | c.GetSegments) -> bytes:
    return identifier(command.stream) + identifier(command.topic)


def _write_get_segments(command: c.GetSegments) -> bytes:
    return _write_topic(command) + _U32.pack(command.partition_id)


def _write_wait_for_arrivals(command: c.WaitForArrivals) -> bytes:
    head = _POSITIONS_HEAD.pack(command.generation, command.wait, len(command.positions))
    positions = [_POSITION.pack(*position) for position in command.positions]
    return b"".join(
        (consumer(command.consumer), identifier(command.stream), identifier(command.topic), head, *positions)
    )


PRIVATE_WRITERS: dict[type[c.Command], Callable[[Any], bytes]] = {
    c.WaitForMessages: _write_wait,
    c.GetPartitionBounds: _write_topic,
    c.GetSegments: _write_get_segments,
    c.WaitForArrivals: _write_wait_for_arrivals,
}


def read_bounds(reader: Reader) -> r.TopicBounds:
    """The way back of ``bounds``."""
    stream_id, topic_id, topic_uuid, count = _BOUNDS.unpack(reader.take(_BOUNDS.size))
    rows = [r.PartitionBounds(*_BOUNDS_ROW.unpack(reader.take(_BOUNDS_ROW.size))) for _ in range(count)]
    return r.TopicBounds(stream_id, topic_id, topic_uuid, rows)


def read_segments(reader: Reader) -> r.SegmentList:
    """The way back of ``segments``."""
    partition_id, directory = reader.u32(), reader.text32()
    rows = []
    for _ in range(reader.u32()):
        first, end, size, count, first_time, last_time, is_sealed = _SEGMENT.unpack(reader.take(_SEGMENT.size))
        rows.append(r.SegmentInfo(first, end, size, count, first_time, last_time, is_sealed != 0))
    return r.SegmentList(partition_id, directory, rows)


def read_arrivals(reader: Reader) -> r.Arrivals:
    """The way back of ``arrivals``."""
    generation, count = _ARRIVALS.unpack(reader.take(_ARRIVALS.size))
    return r.Arrivals(generation, tuple(reader.u32() for _ in range(count)))
