"""Courser's own commands: the same payloads in both protocol generations, ids from 0 in every dialect.

``docs/formats/private-commands.md`` has the layouts.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from msgspec.structs import astuple

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import encode_batch, parse_batch
from courser.wire.reading import Malformed, Reader
from courser.wire.writing import consumer, identifier, partitioning, text8, text32, write_poll

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
_PART = Struct("<QIQ")
"""batch, part, attempt"""
_PUBLISHED_PART = Struct("<IQ")
"""part, attempt"""
_WRITE_PUBLISH = Struct("<QQI")
"""batch, keep, parts_count"""
_DISCARD = Struct("<?Q?")
"""is_one_batch, batch, forget"""
_STAGED = Struct("<QQ")
"""messages_count, size"""
_PUBLISHED = Struct("<?QQ")
"""is_repeated, messages_count, size"""
_SINK = Struct("<?Q?QIQ")
"""has_published, batch, is_open, published_at, parts_count, staged_size"""
_SINK_ROW = Struct("<I?Q?QQIQ")
"""user_id, has_published, batch, is_open, published_at, expires_at, parts_count, staged_size"""
_STAGED_ROW = Struct("<IQIQIQQ?Q")
"""user_id, batch, part, attempt, chunks_count, messages_count, size, is_finished, touched_at"""
POSITION_COUNT_MAX = 1000
"""Rows of a wait for arrivals: as many partitions as a topic is made with."""
PUBLISHED_PART_COUNT_MAX = 100_000
"""Parts of one publish, as the rules of the catalog allow them: told before a row of each is made."""


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
    if count > POSITION_COUNT_MAX:
        raise Malformed(f"a wait for {count} partitions, where {POSITION_COUNT_MAX} are allowed")
    # Each partition once: a wait lasts for seconds, and its rows stay in memory meanwhile.
    positions: dict[int, int] = {}
    for partition_id, offset in _POSITION.iter_unpack(reader.take(count * _POSITION.size)):
        positions[partition_id] = min(offset, positions.get(partition_id, offset))
    return c.WaitForArrivals(who, stream, topic, tuple(positions.items()), generation, wait)


def _part_name(reader: Reader) -> c.StagedPartName:
    return c.StagedPartName(reader.name(), *_PART.unpack(reader.take(_PART.size)))


def _stage_messages(reader: Reader) -> c.StageMessages:
    name, chunk = _part_name(reader), reader.u32()
    stream, topic, partitioning = reader.identifier(), reader.identifier(), reader.partitioning()
    ahead = reader.peek(layout.BATCH_HEADER_SIZE)
    size = layout.WIRE_HEADER.unpack_from(ahead)[4]
    try:
        batch = parse_batch(reader.take(size))
    except InvalidBatch as error:
        raise Malformed(error.reason, error.code) from error
    return c.StageMessages(name, chunk, stream, topic, partitioning, batch)


def _finish_stage(reader: Reader) -> c.FinishStage:
    return c.FinishStage(_part_name(reader), reader.u32())


def _publish_staged(reader: Reader) -> c.PublishStaged:
    sink, batch, keep, count = reader.name(), reader.u64(), reader.u64(), reader.u32()
    if count > PUBLISHED_PART_COUNT_MAX:
        raise Malformed(f"a publish of {count} parts, where {PUBLISHED_PART_COUNT_MAX} are allowed")
    parts = tuple(_PUBLISHED_PART.iter_unpack(reader.take(count * _PUBLISHED_PART.size)))
    return c.PublishStaged(sink, batch, parts, keep)


def _discard_staged(reader: Reader) -> c.DiscardStaged:
    sink, is_one, batch = reader.name(), reader.is_present(), reader.u64()
    return c.DiscardStaged(sink, batch if is_one else None, reader.flag())


def _get_sink(reader: Reader) -> c.GetSink:
    return c.GetSink(reader.name())


def _get_sinks(reader: Reader) -> c.GetSinks:
    del reader
    return c.GetSinks()


def _get_staged_parts(reader: Reader) -> c.GetStagedParts:
    return c.GetStagedParts(reader.name())


PRIVATE_DECODERS: dict[int, Callable[[Reader], c.Command]] = {
    60001: _wait_for_messages,
    60002: _get_partition_bounds,
    60003: _get_segments,
    60004: _wait_for_arrivals,
    60005: _stage_messages,
    60006: _finish_stage,
    60007: _publish_staged,
    60008: _discard_staged,
    60009: _get_sink,
    60010: _get_sinks,
    60011: _get_staged_parts,
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


def staged_part(reply: r.StagedPart) -> bytes:
    """What a part holds."""
    return _STAGED.pack(reply.message_count, reply.size)


def published(reply: r.Published) -> bytes:
    """What a publish did."""
    return _PUBLISHED.pack(reply.is_repeated, reply.message_count, reply.size)


def sink_info(reply: r.SinkInfo) -> bytes:
    """A sink."""
    has_published, batch = reply.batch is not None, reply.batch or 0
    return _SINK.pack(has_published, batch, reply.is_open, reply.published_at, reply.part_count, reply.staged_size)


def sinks(reply: r.SinkList) -> bytes:
    """All sinks."""
    return _U32.pack(len(reply.sinks)) + b"".join(map(_sink_row, reply.sinks))


def _sink_row(row: r.SinkSummary) -> bytes:
    has_published, batch = row.batch is not None, row.batch or 0
    times = row.published_at, row.expires_at
    return text8(row.name) + _SINK_ROW.pack(
        row.user_id, has_published, batch, row.is_open, *times, row.part_count, row.staged_size
    )


def staged_parts(reply: r.StagedPartList) -> bytes:
    """The staged parts of a sink."""
    return _U32.pack(len(reply.parts)) + b"".join(_STAGED_ROW.pack(*astuple(row)) for row in reply.parts)


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


def _write_part_name(name: c.StagedPartName) -> bytes:
    return text8(name.sink) + _PART.pack(name.batch, name.part, name.attempt)


def stage_head(command: c.StageMessages) -> bytes:
    """What stands before the batch."""
    return b"".join(
        (
            _write_part_name(command.name),
            _U32.pack(command.chunk),
            identifier(command.stream),
            identifier(command.topic),
            partitioning(command.partitioning),
        )
    )


def _write_stage(command: c.StageMessages) -> bytes:
    return stage_head(command) + encode_batch(command.batch)


def _write_finish(command: c.FinishStage) -> bytes:
    return _write_part_name(command.name) + _U32.pack(command.chunk_count)


def _write_publish(command: c.PublishStaged) -> bytes:
    head = text8(command.sink) + _WRITE_PUBLISH.pack(command.batch, command.keep, len(command.parts))
    return head + b"".join(_PUBLISHED_PART.pack(*part) for part in command.parts)


def _write_discard(command: c.DiscardStaged) -> bytes:
    return text8(command.sink) + _DISCARD.pack(command.batch is not None, command.batch or 0, command.forget)


def _write_sink_name(command: c.GetSink | c.GetStagedParts) -> bytes:
    return text8(command.sink)


PRIVATE_WRITERS: dict[type[c.Command], Callable[[Any], bytes]] = {
    c.WaitForMessages: _write_wait,
    c.GetPartitionBounds: _write_topic,
    c.GetSegments: _write_get_segments,
    c.WaitForArrivals: _write_wait_for_arrivals,
    c.StageMessages: _write_stage,
    c.FinishStage: _write_finish,
    c.PublishStaged: _write_publish,
    c.DiscardStaged: _write_discard,
    c.GetSink: _write_sink_name,
    c.GetSinks: lambda _: b"",
    c.GetStagedParts: _write_sink_name,
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


def read_staged_part(reader: Reader) -> r.StagedPart:
    """The way back of ``staged_part``."""
    return r.StagedPart(*_STAGED.unpack(reader.take(_STAGED.size)))


def read_published(reader: Reader) -> r.Published:
    """The way back of ``published``."""
    return r.Published(*_PUBLISHED.unpack(reader.take(_PUBLISHED.size)))


def read_sink_info(reader: Reader) -> r.SinkInfo:
    """The way back of ``sink_info``."""
    has_published, batch, *rest = _SINK.unpack(reader.take(_SINK.size))
    return r.SinkInfo(batch if has_published else None, *rest)


def read_sinks(reader: Reader) -> r.SinkList:
    """The way back of ``sinks``."""
    return r.SinkList([_read_sink_row(reader) for _ in range(reader.u32())])


def _read_sink_row(reader: Reader) -> r.SinkSummary:
    name = reader.text8()
    user_id, has_published, batch, *rest = _SINK_ROW.unpack(reader.take(_SINK_ROW.size))
    return r.SinkSummary(name, user_id, batch if has_published else None, *rest)


def read_staged_parts(reader: Reader) -> r.StagedPartList:
    """The way back of ``staged_parts``."""
    rows = _STAGED_ROW.iter_unpack(reader.take(reader.u32() * _STAGED_ROW.size))
    return r.StagedPartList([r.StagedPartInfo(*row) for row in rows])
