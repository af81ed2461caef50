"""Sends and polls of SDKs 0.5 to 0.8, the two requests that must be fast, and the reply with messages.

A send is ``metadata length | stream | topic | partitioning | count | index | messages``; the length counts what follows
it, up to and including the count. ``records.classic`` converts whole batches.
"""

import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from courser.api.commands import PollMessages, SendMessages
from courser.api.replies import Polled
from courser.errors import ErrorCode, InvalidBatch
from courser.model.identifiers import Identifier
from courser.model.messaging import Partitioning
from courser.records.batch import Batch
from courser.records.classic import (
    ClassicLimits,
    Dialect,
    decode_classic,
    drop_user_headers,
    encode_classic,
    header_size_of,
)
from courser.records.frame_walk import take_classic_send
from courser.records.frames import FrameLayout
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE, WIRE_HEADER
from courser.wire.classic_dialect import DialectEvidence
from courser.wire.classic_requests import HEADER_SIZE, observe_tail
from courser.wire.reading import (
    POLL_HEAD_SIZE_MAX,
    POLLING_KINDS,
    ROUTE_COUNT_MAX,
    ROUTE_SIZE_MAX,
    Malformed,
    identifier_at,
    partitioning_at,
    route_of_poll,
)
from courser.wire.writing import shifted

_U32 = struct.Struct("<I")
_POLL_TAIL = struct.Struct(
    "<"
    "B"  # whether a partition is named
    "I"  # partition
    "B"  # kind of the strategy
    "Q"  # its value
    "I"  # count
    "B"  # auto_commit
)
_POLL_TAIL_FROM_ONE = struct.Struct("<IBQIB")
"""SDK 0.5 has no flag: the partition 0 is "none"."""
_POLL_REPLY = struct.Struct(
    "<"
    "I"  # status
    "I"  # size of what follows
    "I"  # partition
    "Q"  # current offset
    "I"  # count
)
_STATUS_SIZE = 8
"""Status and length are not part of the size."""
NOTHING_POLLED = _POLL_REPLY.pack(0, _POLL_REPLY.size - _STATUS_SIZE, 0, 0, 0)
"""The reply to a member without a partition."""

_IN_PLACE_SIZE_MAX = 256 * 1024
"""Bytes of messages that are converted where they are: the processor still has them in its cache. Larger ones go to
memory that is used for one after the other, which stays in the cache better than the buffers of many connections."""

_METADATA_POSITION = HEADER_SIZE + _U32.size
_unpack_u32 = _U32.unpack_from
_unpack_batch_header = WIRE_HEADER.unpack_from


@lru_cache(maxsize=ROUTE_COUNT_MAX)
def _route_of_send(metadata: bytes, first_id: int) -> tuple[Identifier, Identifier, Partitioning, int]:
    """Stream, topic, partitioning, number of messages."""
    view = memoryview(metadata)
    try:
        stream, position = identifier_at(view, 0, first_id)
        topic, position = identifier_at(view, position, first_id)
    except Malformed as error:
        raise Malformed(error.reason, ErrorCode.INVALID_IDENTIFIER) from None
    partitioning, position = partitioning_at(view, position, first_id)
    if position + _U32.size > len(metadata):
        raise Malformed("its metadata ends before the number of messages")
    return stream, topic, partitioning, _unpack_u32(view, position)[0]


def decode_send(
    frame: memoryview, evidence: DialectEvidence, ids: Callable[[int], bytes], limits: ClassicLimits
) -> SendMessages:
    """The command of a SendMessages frame.

    Raises:
        Malformed: the metadata is invalid.
        InvalidBatch: the messages are invalid.
        struct.error: the frame is too short.
    """
    first_id = evidence.first_id
    metadata_end = _METADATA_POSITION + _unpack_u32(frame, HEADER_SIZE)[0]
    if metadata_end > len(frame):
        raise Malformed("its metadata ends after the frame")
    metadata = frame[_METADATA_POSITION:metadata_end]
    route_of = _route_of_send if len(metadata) <= ROUTE_SIZE_MAX else _route_of_send.__wrapped__
    stream, topic, partitioning, count = route_of(metadata.tobytes(), first_id)
    section = frame[metadata_end:]
    if not evidence.is_header_proven:
        _observe_header(section, count, evidence)
        if evidence.first_id != first_id:
            # The messages showed that the ids above were decoded with the wrong dialect.
            return decode_send(frame, evidence, ids, limits)
    batches = decode_classic(section, count, dialect=evidence.dialect, ids=ids, limits=limits)
    return SendMessages(stream, topic, partitioning, batches)


def decode_usual_send(
    frame: memoryview, header_size: int, first_id: int, ids: Callable[[int], bytes], limits: ClassicLimits
) -> SendMessages | None:
    """``decode_send`` in one compiled step, for a client whose header is proven; None if it is not that simple.

    A small frame is lost if it can be written to: it is converted in place.

    Raises:
        Malformed: the metadata is invalid.
    """
    taken = take_classic_send(
        frame, ids, header_size, limits.payload_size_max, limits.user_headers_size_max, _IN_PLACE_SIZE_MAX
    )
    if taken is None:
        return None
    metadata, count, origin_timestamp, body, frame_size, starts, checksums = taken
    stream, topic, partitioning, _ = _route_of_send(metadata, first_id)
    frames = FrameLayout(count, frame_size, starts, len(body))
    return SendMessages(stream, topic, partitioning, [Batch(origin_timestamp, count, body, frames, checksums)])


def promised_count(frame: memoryview) -> int:
    """The number of messages that a SendMessages frame declares; 0 if it is malformed."""
    metadata_end: int = _METADATA_POSITION + _unpack_u32(frame, HEADER_SIZE)[0]
    if not _METADATA_POSITION + _U32.size <= metadata_end <= len(frame):
        return 0
    count: int = _unpack_u32(frame, metadata_end - _U32.size)[0]
    return count


def _observe_header(section: memoryview, count: int, evidence: DialectEvidence) -> None:
    """Learn the size of the header from the first message."""
    try:
        evidence.note_header(header_size_of(section, count))
    except InvalidBatch:
        # Neither header fits: ``decode_classic`` reports what is wrong, in the order in which clients expect it.
        return


def decode_poll(frame: memoryview, evidence: DialectEvidence) -> PollMessages:
    """The command of a PollMessages frame.

    Raises:
        Malformed: it is invalid.
        struct.error: it is too short.
    """
    if not evidence.is_numbering_proven:
        observe_tail(frame, evidence, from_one=_POLL_TAIL_FROM_ONE.size)
    first_id = evidence.first_id
    tail = _POLL_TAIL_FROM_ONE if first_id else _POLL_TAIL
    head = frame[HEADER_SIZE : min(len(frame) - tail.size, HEADER_SIZE + POLL_HEAD_SIZE_MAX)]
    consumer, stream, topic, head_size = route_of_poll(head.tobytes(), first_id)
    fields = tail.unpack_from(frame, HEADER_SIZE + head_size)
    number, kind_number, value, count, auto_commit = fields[-5:]
    if first_id:
        partition_id = number - first_id if number else None
    else:
        partition_id = number if fields[0] == 1 else None
    kind = POLLING_KINDS.get(kind_number)
    if kind is None:
        raise Malformed(f"unknown polling strategy {kind_number}")
    return PollMessages(consumer, stream, topic, partition_id, kind, value, count, auto_commit != 0)


def encode_polled(polled: Polled, evidence: DialectEvidence) -> memoryview | bytes:
    """The whole reply frame, status included."""
    dialect = evidence.dialect
    partition_id = shifted(polled.partition_id, evidence.first_id)
    if not polled.pieces:
        size = _POLL_REPLY.size - _STATUS_SIZE
        return _POLL_REPLY.pack(0, size, partition_id, polled.current_offset, 0)
    # More than enough: a batch header is not sent, and every message gets a longer header of its own.
    room = _POLL_REPLY.size + polled.size + polled.message_count * (dialect.header_size - FRAME_HEADER_SIZE)
    # Not zeroed: every byte is overwritten below or cut off.
    reply = np.empty(room, np.uint8).data
    end = _POLL_REPLY.size
    for piece in polled.pieces:
        end = _encode_batches(piece, dialect, reply, end)
    if not evidence.reads_user_headers:
        end = _POLL_REPLY.size + drop_user_headers(reply[_POLL_REPLY.size : end], dialect)
    size = end - _STATUS_SIZE
    _POLL_REPLY.pack_into(reply, 0, 0, size, partition_id, polled.current_offset, polled.message_count)
    return reply[:end]


def _encode_batches(piece: memoryview, dialect: Dialect, reply: memoryview, position: int) -> int:
    """Write the messages of all batches of a piece at ``position``; return the position after them."""
    start = 0
    while start < len(piece):
        _, base_offset, base_timestamp, origin, batch_length, _, count = _unpack_batch_header(piece, start)
        body = piece[start + BATCH_HEADER_SIZE : start + batch_length]
        position = encode_classic(
            body,
            count,
            base_offset=base_offset,
            base_timestamp=base_timestamp,
            origin_timestamp=origin,
            dialect=dialect,
            into=reply,
            position=position,
        )
        start += batch_length
    return position
