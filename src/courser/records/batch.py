"""A batch as clients send and receive it: build, check, merge, cut to an offset range.

A ``Batch`` is well-formed by construction and not yet stamped: it has no partition, offset or time.
``stored_header.stamp`` adds them and produces the stored form.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from courser.errors import ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.checksum import xxh3
from courser.records.frame_walk import check_batch
from courser.records.frames import (
    FrameLayout,
    frame_checksum,
    frame_fields,
    survey_frames,
    uniform_layout,
    wrong_frame_checksums,
)
from courser.records.producers import BatchProducer, checksummed, read_section, section_of, write_section

_CHECKSUMMED = struct.Struct("<QQQQQI")
"""The wire fields that the batch checksum covers, in order."""
_U32 = struct.Struct("<I")
_DELTAS = struct.Struct("<II")
"""offset_delta, timestamp_delta"""
_FACT_COUNT = 5
"""What ``check_batch`` says of a batch without an idempotent producer."""


class Batch(msgspec.Struct, gc=False):
    """Incoming messages. Immutable by convention; not a frozen dataclass, because one is created per send."""

    origin_timestamp: int
    count: int
    body: memoryview
    """The frames."""
    frames: FrameLayout
    checksums: bytes
    """The checksum fields of the frames, in order."""
    producer: BatchProducer | None = None
    """The idempotent producer that sent it, if any."""

    @property
    def size(self) -> int:
        """Bytes on the wire and, uncompressed, on disk."""
        return layout.BATCH_HEADER_SIZE + len(self.body)


def checksum_of_wire_fields(
    partition_id: int,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
    batch_length: int,
    count: int,
    checksums: Buffer,
) -> int:
    """The batch checksum of a header that is not written yet."""
    fields = _CHECKSUMMED.pack(partition_id, base_offset, base_timestamp, origin_timestamp, batch_length, count)
    return xxh3(fields + checksums)


def parse_batch(data: Buffer, verify_frames: bool = False, may_be_idempotent: bool = False) -> Batch:
    """Check a batch from a producer.

    The batch checksum is always checked. ``verify_frames`` also hashes every message. ``may_be_idempotent`` says
    whether the header may name an idempotent producer.

    Raises:
        InvalidBatch: with the error number for the client.
    """
    view = data if isinstance(data, memoryview) else memoryview(data)
    found = check_batch(view)
    if found is None or (len(found) > _FACT_COUNT and not may_be_idempotent):
        raise _what_is_wrong(view, may_be_idempotent)
    origin_timestamp, count, frame_size, starts, checksums, *section = found
    body = view[layout.BATCH_HEADER_SIZE :]
    frames = FrameLayout(count, frame_size, starts, len(body))
    if verify_frames and (wrong := wrong_frame_checksums(body, frames)):
        raise InvalidBatch(ErrorCode.INVALID_MESSAGE_CHECKSUM, f"the checksum of message {wrong[0]} does not match")
    producer = read_section(section[0], count) if section else None
    return Batch(origin_timestamp, count, body, frames, checksums, producer)


def _what_is_wrong(view: memoryview, may_be_idempotent: bool) -> InvalidBatch:
    """The first error in a batch that ``check_batch`` refused."""
    if len(view) < layout.BATCH_HEADER_SIZE:
        return InvalidBatch(ErrorCode.INVALID_COMMAND, f"{len(view)} bytes are too few for a batch header")
    _, _, _, _, batch_length, _, count = layout.WIRE_HEADER.unpack_from(view)
    if batch_length != len(view):
        reason = f"its length field says {batch_length}, but {len(view)} bytes were received"
        return InvalidBatch(ErrorCode.INVALID_MESSAGES_SIZE, reason)
    if batch_length > layout.BATCH_SIZE_MAX:
        reason = f"{batch_length} bytes are more than the limit of {layout.BATCH_SIZE_MAX}"
        return InvalidBatch(ErrorCode.INVALID_MESSAGES_SIZE, reason)
    section = section_of(view)
    if section is None or (section and not may_be_idempotent):
        return InvalidBatch(ErrorCode.INVALID_RESERVED_FIELD, "reserved bytes of the batch header are not zero")
    try:
        _, _, has_reserved, is_numbered = survey_frames(view[layout.BATCH_HEADER_SIZE :], count)
    except InvalidBatch as error:
        return error
    if has_reserved:
        return InvalidBatch(ErrorCode.INVALID_RESERVED_FIELD, "reserved bytes of a message header are not zero")
    if not is_numbered:
        return InvalidBatch(ErrorCode.INVALID_OFFSET, "the offset deltas are not 0, 1, 2, ...")
    return InvalidBatch(ErrorCode.INVALID_BATCH_CHECKSUM, "the batch checksum does not match")


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to put into a batch."""

    payload: Buffer
    message_id: int = 0
    origin_timestamp: int = 0
    user_headers: Buffer = b""
    """The encoded block."""


def build_batch(messages: Sequence[NewMessage]) -> Batch:
    """Build a batch from messages. One object per message: for clients, tools and tests.

    Raises:
        InvalidBatch: no messages, or creation times too far apart for one batch.
    """
    if not messages:
        raise InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "it has no messages")
    origin_timestamp = min(message.origin_timestamp for message in messages)
    if max(message.origin_timestamp for message in messages) - origin_timestamp > layout.TIMESTAMP_DELTA_MAX:
        raise InvalidBatch(
            ErrorCode.INVALID_COMMAND, "the creation times of its messages are more than 71 minutes apart"
        )
    pieces: list[Buffer] = []
    for number, message in enumerate(messages):
        header = layout.FRAME_HEADER.pack(
            0,
            message.message_id.to_bytes(16, "little"),
            number,
            message.origin_timestamp - origin_timestamp,
            len(message.user_headers),
            len(message.payload),
            0,
        )
        covered = b"".join((header[layout.FRAME_ID_POSITION :], message.payload, message.user_headers))
        pieces += (xxh3(covered).to_bytes(8, "little"), covered)
    return batch_of(origin_timestamp, len(messages), memoryview(b"".join(pieces)))


def batch_in_place(frame: memoryview, message_id: int, origin_timestamp: int) -> Batch:
    """A batch of one message without user headers, whose payload follows ``FRAME_HEADER_SIZE`` free bytes.

    The header is written there: nothing is copied.
    """
    payload_size = len(frame) - layout.FRAME_HEADER_SIZE
    layout.FRAME_HEADER.pack_into(frame, 0, 0, message_id.to_bytes(16, "little"), 0, 0, 0, payload_size, 0)
    checksum = frame_checksum(frame, 0, len(frame)).to_bytes(8, "little")
    frame[: layout.FRAME_ID_POSITION] = checksum
    return Batch(origin_timestamp, 1, frame, uniform_layout(1, len(frame)), checksum)


def batch_of(origin_timestamp: int, count: int, body: memoryview) -> Batch:
    """A batch from frames that the caller built."""
    frames, checksums, _, _ = survey_frames(body, count)
    return Batch(origin_timestamp, count, body, frames, checksums)


def encode_batch(batch: Batch, *, partition_id: int = 0, base_offset: int = 0, base_timestamp: int = 0) -> bytes:
    """The batch in wire form. A producer leaves the last three at 0."""
    header = wire_header(
        partition_id, base_offset, base_timestamp, batch.origin_timestamp, batch.size, batch.count, batch.checksums
    )
    return b"".join((header, batch.body))


def sent_header(batch: Batch) -> bytearray:
    """The header of a batch as its producer sends it."""
    producer = batch.producer
    if producer is None:
        return wire_header(0, 0, 0, batch.origin_timestamp, batch.size, batch.count, batch.checksums)
    covered = checksummed(*producer[:3]) + batch.checksums
    header = wire_header(0, 0, 0, batch.origin_timestamp, batch.size, batch.count, covered)
    write_section(producer, header)
    return header


def wire_header(
    partition_id: int,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
    batch_length: int,
    count: int,
    checksums: Buffer,
) -> bytearray:
    """A 256-byte header with its batch checksum, the extension blank."""
    header = bytearray(layout.BATCH_HEADER_SIZE)
    fields = (partition_id, base_offset, base_timestamp, origin_timestamp, batch_length)
    layout.WIRE_HEADER.pack_into(header, 0, *fields, checksum_of_wire_fields(*fields, count, checksums), count)
    return header


def select_messages(batch: Batch, numbers: Sequence[int]) -> Batch:
    """A batch of some of the messages, renumbered from 0 on. Checksums are recomputed, as in ``merge_batches``."""
    starts = [*batch.frames.starts.tolist(), len(batch.body)]
    pieces = [bytearray(batch.body[starts[number] : starts[number + 1]]) for number in numbers]
    for number, piece in enumerate(pieces):
        _U32.pack_into(piece, layout.FRAME_OFFSET_DELTA_POSITION, number)
        piece[: layout.FRAME_ID_POSITION] = frame_checksum(memoryview(piece), 0, len(piece)).to_bytes(8, "little")
    return batch_of(batch.origin_timestamp, len(pieces), memoryview(b"".join(pieces)))


def merge_batches(batches: Iterable[Batch]) -> Batch:
    """Merge batches into one, in order. Frames are renumbered, so their checksums are recomputed.

    A message with a wrong checksum gets a correct one: callers that must detect this verify first.

    Raises:
        InvalidBatch: the creation times do not fit into one batch.
    """
    parts = list(batches)
    origin_timestamp = min(part.origin_timestamp for part in parts)
    body = bytearray().join(part.body for part in parts)
    view = memoryview(body)
    starts: list[int] = []
    position = 0
    number = 0
    for part in parts:
        shift = part.origin_timestamp - origin_timestamp
        deltas = (
            frame_fields(part.body, part.frames, layout.FRAME_TIMESTAMP_DELTA_POSITION, "<u4").astype(np.int64) + shift
        )
        if int(deltas.max()) > layout.TIMESTAMP_DELTA_MAX:
            raise InvalidBatch(
                ErrorCode.INVALID_COMMAND, "the creation times of its messages are more than 71 minutes apart"
            )
        for start, delta in zip((part.frames.starts + position).tolist(), deltas.tolist(), strict=True):
            _DELTAS.pack_into(body, start + layout.FRAME_OFFSET_DELTA_POSITION, number, delta)
            starts.append(start)
            number += 1
        position += len(part.body)
    for start, end in zip(starts, [*starts[1:], position], strict=True):
        body[start : start + 8] = frame_checksum(view, start, end).to_bytes(8, "little")
    return batch_of(origin_timestamp, number, view)
