"""Convert classic messages, those of SDKs 0.5 to 0.8, to and from the stored form.

A classic message is a header of 56 bytes (0.5, 0.6) or 64 bytes (0.7, 0.8), the payload, and the user headers. The
64-byte header is the 56-byte header followed by eight reserved bytes. The *section* of a SendMessages command is its
index block and the messages after it. An index entry says where its message ends. The last entry is ignored, as in the
original servers: the end of the section counts.

The usual messages are converted in one compiled pass over all of them (``_classic_frames.h``). All others, and all
where the compiled part is missing, are converted one by one, which also finds out what is wrong with them.

Nothing is lost for 0.7 and 0.8. User headers of 0.5 and 0.6 are stored in the typed form and returned as they were
sent. If such a client sent a block in the typed form, it is returned untyped, which is the form that those clients can
read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, unique
from functools import cache
from struct import Struct
from typing import NamedTuple, NoReturn

import numpy as np

from courser.errors import ErrorCode, InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, batch_of
from courser.records.checksum import crc32, xxh3
from courser.records.frame_walk import classic_from_frames, frames_from_classic, survey_classic
from courser.records.frames import FrameLayout, layout_of
from courser.records.user_headers import USER_HEADERS_SIZE_MAX, typed_from_untyped, untyped_from_typed

SHORT_HEADER_SIZE = 56
LONG_HEADER_SIZE = 64
_HEADER = Struct("<Q16sQQQII")
"""checksum, id, offset, timestamp, origin_timestamp, user_headers_length, payload_length"""
assert _HEADER.size == SHORT_HEADER_SIZE
_COVERED_HEADER = Struct("<16sQQQII")
"""What the checksum covers of it."""
_COVERED_FRAME_HEADER = Struct("<16sIIIIQ")
"""The same of a frame: ``layout.FRAME_HEADER`` without its checksum."""
_LENGTHS = Struct("<II")
_LENGTHS_POSITION = 48
_CHECKSUM = Struct("<Q")
_INDEX_ENTRY = Struct("<IIQ")
"""offset, end, timestamp. The client leaves the first and the last at 0."""
_BODY_SIZE_MAX = layout.BATCH_SIZE_MAX - layout.BATCH_HEADER_SIZE
_NO_ID = bytes(16)


@unique
class Dialect(Enum):
    """Releases of SDKs with the same messages."""

    SDK_0_5 = "0.5"
    SDK_0_6 = "0.6"
    SDK_0_7 = "0.7"
    SDK_0_8 = "0.8"

    @property
    def has_long_header(self) -> bool:
        """64 bytes instead of 56, and user headers in the typed form: both were introduced in 0.7."""
        return self in (Dialect.SDK_0_7, Dialect.SDK_0_8)

    @property
    def header_size(self) -> int:
        """Bytes before the payload."""
        return LONG_HEADER_SIZE if self.has_long_header else SHORT_HEADER_SIZE

    @property
    def checksum(self) -> Callable[[Buffer], int]:
        """The hash of a message, from its id on."""
        return crc32 if self is Dialect.SDK_0_5 else xxh3


@dataclass(frozen=True, slots=True)
class ClassicLimits:
    """How large the parts of one message may be."""

    payload_size_max: int = 64_000_000
    user_headers_size_max: int = USER_HEADERS_SIZE_MAX


USUAL_LIMITS = ClassicLimits()
"""Those of the original servers from 0.6 on."""


# --- from a client ---


def header_size_of(section: memoryview, count: int) -> int:
    """56 or 64, from the structure of the first message.

    If neither size fits, ``decode_classic`` reports the same error with any dialect. The other messages are not
    checked: one with another header does not fit its index entry and is refused there. (A 64-byte message whose
    length fields are wrong by exactly eight cannot be distinguished from a 56-byte one.)

    Raises:
        InvalidBatch: the section is truncated, or the lengths of its first message contradict the index.
    """
    block = _block_of(section, count)
    end = _INDEX_ENTRY.unpack_from(section)[1] if count > 1 else len(block)
    if not SHORT_HEADER_SIZE <= end <= len(block):
        _refuse(ErrorCode.MISSING_INDEX, 0, f"its index entry says that it ends at byte {end} of {len(block)}")
    header_size: int = end - sum(_LENGTHS.unpack_from(block, _LENGTHS_POSITION))
    if header_size > LONG_HEADER_SIZE:
        _refuse(ErrorCode.INVALID_MESSAGES_SIZE, 0, "it is longer than its lengths say")
    if header_size not in (SHORT_HEADER_SIZE, LONG_HEADER_SIZE):
        _refuse(ErrorCode.MISSING_INDEX, 0, "its lengths reach beyond its end")
    return header_size


def decode_classic(
    section: memoryview,
    count: int,
    *,
    dialect: Dialect,
    ids: Callable[[int], bytes],
    limits: ClassicLimits = USUAL_LIMITS,
) -> list[Batch]:
    """The messages of a SendMessages command as batches: one, unless their creation times or sizes need several.

    Messages keep their order. Checksum, timestamp and offset from the client are dropped.

    Args:
        section: the index block and the messages, to the end of the command.
        count: the number of messages that the command declares.
        dialect: decides the size of the headers and the form of the user headers.
        ids: returns a number of random ids of 16 bytes, for messages without an id.
        limits: of the parts of a message.

    Raises:
        InvalidBatch: with the error number for the client, and the number of the message.
    """
    batch = decode_compiled(section, count, dialect=dialect, ids=ids, limits=limits)
    return [batch] if batch is not None else decode_each(section, count, dialect=dialect, ids=ids, limits=limits)


def decode_compiled(
    section: memoryview, count: int, *, dialect: Dialect, ids: Callable[[int], bytes], limits: ClassicLimits
) -> Batch | None:
    """Decode valid messages that fit into one batch and keep their user headers, in one compiled pass.

    None if that is not possible, or if the compiled part is missing: then ``decode_each`` does it or reports the error.
    """
    header_size = dialect.header_size
    found = survey_classic(section, count, header_size, limits.payload_size_max, limits.user_headers_size_max)
    if found is None:
        return None
    absent_id_count, size, origin_timestamp = found
    new_ids = ids(absent_id_count) if absent_id_count else b""
    # Not zeroed: every byte is overwritten.
    body = np.empty(size, np.uint8).data
    made = frames_from_classic(section, new_ids, body, count, header_size, origin_timestamp)
    assert made is not None, "the survey has looked at all lengths"
    frame_size, starts, checksums = made
    return Batch(origin_timestamp, count, body, FrameLayout(count, frame_size, starts, size), checksums)


def decode_each(
    section: memoryview, count: int, *, dialect: Dialect, ids: Callable[[int], bytes], limits: ClassicLimits
) -> list[Batch]:
    """``decode_classic`` for any messages, one by one."""
    messages = _checked_messages(section, count, dialect, limits)
    return [_build(part, ids) for part in _parts(messages)]


class _Message(NamedTuple):
    """A message that was checked, in its stored form but for its id."""

    id: bytes
    origin_timestamp: int
    payload: memoryview
    user_headers: bytes
    frame_size: int


def _refuse(code: ErrorCode, number: int, reason: str) -> NoReturn:
    raise InvalidBatch(code, f"message {number}: {reason}")


def _block_of(section: memoryview, count: int) -> memoryview:
    """The messages, which follow their index entries."""
    if count < 1:
        raise InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "it has no messages")
    index_size = count * _INDEX_ENTRY.size
    if len(section) < index_size:
        reason = f"an index of {count} messages does not fit into {len(section)} bytes"
        raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)
    return section[index_size:]


def _checked_messages(section: memoryview, count: int, dialect: Dialect, limits: ClassicLimits) -> list[_Message]:
    """The messages of a section. What is wrong with the index comes first, as in the original servers."""
    block = _block_of(section, count)
    # Producers often send the same block, so each distinct one is converted once.
    typed = cache(typed_from_untyped)
    converts, header_size = not dialect.has_long_header, dialect.header_size
    header = Struct(f"{_HEADER.format}{header_size - SHORT_HEADER_SIZE}s")
    messages: list[_Message] = []
    last_offset = 0
    for number, (start, end) in enumerate(_bounds(section, len(block), count, header_size)):
        _, message_id, offset, _, origin, headers_length, payload_length, reserved = header.unpack_from(block, start)
        tail = start + header_size
        payload_end = tail + payload_length
        missing = payload_end + headers_length - end
        if missing or payload_length > limits.payload_size_max or headers_length > limits.user_headers_size_max:
            _refuse_lengths(number, payload_length, missing, limits)
        if offset < last_offset:
            _refuse(ErrorCode.INVALID_OFFSET, number, "its offset is smaller than that of the message before")
        last_offset = offset
        if any(reserved):
            _refuse(ErrorCode.INVALID_RESERVED_FIELD, number, "its reserved bytes are not zero")
        user_headers = b""
        if headers_length:
            user_headers = typed(bytes(block[payload_end:end])) if converts else bytes(block[payload_end:end])
        frame_size = layout.FRAME_HEADER_SIZE + payload_length + len(user_headers)
        if frame_size > _BODY_SIZE_MAX:
            _refuse(ErrorCode.TOO_BIG_MESSAGE_PAYLOAD, number, "it does not fit into a batch")
        messages.append(_Message(message_id, origin, block[tail:payload_end], user_headers, frame_size))
    return messages


def _bounds(section: memoryview, block_size: int, count: int, header_size: int) -> list[tuple[int, int]]:
    """Start and end of each message, from the index."""
    bounds: list[tuple[int, int]] = []
    start = 0
    for number, (offset, end, timestamp) in enumerate(_INDEX_ENTRY.iter_unpack(section[: count * _INDEX_ENTRY.size])):
        if offset:
            _refuse(ErrorCode.NON_ZERO_OFFSET, number, "the offset in its index entry is not 0")
        if timestamp:
            _refuse(ErrorCode.NON_ZERO_TIMESTAMP, number, "the timestamp in its index entry is not 0")
        if number == count - 1:
            end = block_size
        if not start + header_size <= end <= block_size:
            _refuse(ErrorCode.MISSING_INDEX, number, "its index entry leaves no room for its header")
        bounds.append((start, end))
        start = end
    return bounds


def _refuse_lengths(number: int, payload_length: int, missing: int, limits: ClassicLimits) -> NoReturn:
    """Say what is wrong with the lengths in a header, which reach ``missing`` bytes beyond the end of the message."""
    if missing > 0:
        _refuse(ErrorCode.MISSING_INDEX, number, "its lengths reach beyond its end")
    if payload_length > limits.payload_size_max:
        reason = f"its payload has more than {limits.payload_size_max} bytes"
        _refuse(ErrorCode.TOO_BIG_MESSAGE_PAYLOAD, number, reason)
    if missing < 0:
        _refuse(ErrorCode.INVALID_MESSAGES_SIZE, number, "it is longer than its lengths say")
    reason = f"its user headers have more than {limits.user_headers_size_max} bytes"
    _refuse(ErrorCode.TOO_BIG_USER_HEADERS, number, reason)


def _parts(messages: list[_Message]) -> Iterator[list[_Message]]:
    """The messages of each batch: each batch takes as many as possible."""
    part: list[_Message] = []
    earliest = latest = size = 0
    for message in messages:
        origin = message.origin_timestamp
        if part:
            earliest, latest, size = min(earliest, origin), max(latest, origin), size + message.frame_size
            if latest - earliest <= layout.TIMESTAMP_DELTA_MAX and size <= _BODY_SIZE_MAX:
                part.append(message)
                continue
            yield part
        part, earliest, latest, size = [message], origin, origin, message.frame_size
    yield part


def _build(messages: list[_Message], ids: Callable[[int], bytes]) -> Batch:
    """The batch of messages that fit into one. Those without an id get a random one."""
    absent_count = sum(message.id == _NO_ID for message in messages)
    new_ids = ids(absent_count) if absent_count else b""
    new = (new_ids[start : start + len(_NO_ID)] for start in range(0, len(new_ids), len(_NO_ID)))
    origin = min(message.origin_timestamp for message in messages)
    pieces: list[bytes] = []
    for number, (message_id, sent_at, payload, user_headers, _) in enumerate(messages):
        header = _COVERED_FRAME_HEADER.pack(
            next(new) if message_id == _NO_ID else message_id,
            number,
            sent_at - origin,
            len(user_headers),
            len(payload),
            0,
        )
        covered = b"".join((header, payload, user_headers))
        pieces += (_CHECKSUM.pack(xxh3(covered)), covered)
    return batch_of(origin, len(messages), memoryview(b"".join(pieces)))


# --- to a client ---


def classic_size_max(body_size: int, count: int, dialect: Dialect) -> int:
    """The maximum number of bytes that ``encode_classic`` needs for ``count`` frames of ``body_size`` bytes together.

    It is exact, except for messages with user headers for SDKs 0.5 and 0.6, which need fewer.
    """
    return body_size + count * (dialect.header_size - layout.FRAME_HEADER_SIZE)


def encode_classic(
    body: memoryview,
    count: int,
    *,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
    dialect: Dialect,
    into: memoryview,
    position: int = 0,
) -> int:
    """Write the messages of a stored batch one after another, as in the poll reply of a classic client.

    The batch may be trimmed: every frame has its distance from ``base_offset``. The batches of one poll go into one
    buffer, each at the position that the previous call returned; ``classic_size_max`` is the required size.

    Args:
        body: the frames, well-formed.
        count: how many they are.
        base_offset: of the batch header, as are the next two.
        base_timestamp: becomes the timestamp of every message.
        origin_timestamp: the base of the frames' creation times.
        dialect: decides the size of the headers, the form of the user headers and the kind of checksum.
        into: where to write.
        position: where to start in the buffer.

    Returns:
        The position after the last message.

    Raises:
        ValueError: the buffer is too small; nothing was written.
    """
    if position + (size_max := classic_size_max(len(body), count, dialect)) > len(into):
        raise ValueError(f"{size_max} bytes at position {position} do not fit into a buffer of {len(into)}")
    bases = base_offset, base_timestamp, origin_timestamp
    if dialect is not Dialect.SDK_0_5:
        # Not for SDK 0.5, which uses CRC-32: that is not in the compiled part.
        end = classic_from_frames(body, into, position, count, dialect.header_size, *bases)
        if end is not None:
            return end
    layout_of(body, count)
    data = _encode_each(body, count, *bases, dialect)
    end = position + len(data)
    into[position:end] = data
    return end


def _encode_each(
    body: memoryview, count: int, base_offset: int, base_timestamp: int, origin_timestamp: int, dialect: Dialect
) -> bytes:
    """The messages of a stored batch, encoded one by one."""
    untyped, converts = cache(untyped_from_typed), not dialect.has_long_header
    reserved, checksum = bytes(dialect.header_size - SHORT_HEADER_SIZE), dialect.checksum
    unpack, pack = layout.FRAME_HEADER.unpack_from, _COVERED_HEADER.pack
    pieces: list[bytes] = []
    start = 0
    for _ in range(count):
        _, message_id, offset_delta, timestamp_delta, headers_length, payload_length, _ = unpack(body, start)
        payload_start = start + layout.FRAME_HEADER_SIZE
        start = payload_start + payload_length + headers_length
        user_headers = b""
        if headers_length:
            user_headers = bytes(body[start - headers_length : start])
            user_headers = untyped(user_headers) if converts else user_headers
        header = pack(
            message_id,
            # Both sums wrap around like their 64-bit fields: no client may make a poll fail with a wrong clock.
            (base_offset + offset_delta) % 2**64,
            base_timestamp,
            (origin_timestamp + timestamp_delta) % 2**64,
            len(user_headers),
            payload_length,
        )
        payload = body[payload_start : payload_start + payload_length]
        covered = b"".join((header, reserved, payload, user_headers))
        pieces += (_CHECKSUM.pack(checksum(covered)), covered)
    return b"".join(pieces)


def drop_user_headers(messages: memoryview, dialect: Dialect) -> int:
    """Remove the user headers from consecutive messages, in place.

    Returns:
        The size of the result in bytes, from the start. The bytes after it are garbage.
    """
    source = target = 0
    while source < len(messages):
        user_headers_length, payload_length = _LENGTHS.unpack_from(messages, source + _LENGTHS_POSITION)
        size = dialect.header_size + payload_length
        if source > target:
            messages[target : target + size] = messages[source : source + size]
        if user_headers_length:
            _LENGTHS.pack_into(messages, target + _LENGTHS_POSITION, 0, payload_length)
            covered = messages[target + _CHECKSUM.size : target + size]
            _CHECKSUM.pack_into(messages, target, dialect.checksum(covered))
        source += size + user_headers_length
        target += size
    return target
