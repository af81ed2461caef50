"""Convert a single message to and from the stored form: the same as for many, without numpy.

Used where the compiled part is missing or does not convert the message: user headers of SDKs 0.5 and 0.6, and the
CRC-32 of 0.5. Programs that send one message per command are common, and a poll of such messages gets one batch per
message. The fixed cost of numpy would be ten times the work there. Tests compare both implementations.
"""

from collections.abc import Callable
from struct import Struct

from courser.records import layout
from courser.records.batch import Batch
from courser.records.checksum import crc32, xxh3
from courser.records.classic_layout import INDEX_ENTRY_SIZE, Dialect, end_of_room
from courser.records.frames import FrameLayout, uniform_layout
from courser.records.user_headers import typed_from_untyped, untyped_from_typed

_INDEX_ENTRY = Struct("<I4xQ")
"""offset, timestamp"""
_HEADER = Struct("<Q16sQQQII")
"""The 56 bytes at the start of both classic headers."""
_CHECKSUM = Struct("<Q")
_ID_POSITION = _CHECKSUM.size
_NO_ID = bytes(16)
_NOTHING_RESERVED = bytes(8)


def decode_single(
    section: memoryview,
    *,
    dialect: Dialect,
    ids: Callable[[int], bytes],
    payload_size_max: int,
    user_headers_size_max: int,
) -> Batch | None:
    """The only message of a section, or None if it is invalid: the code for many messages reports the error."""
    header_size = dialect.header_size
    tail_position = INDEX_ENTRY_SIZE + header_size
    if len(section) < tail_position or any(_INDEX_ENTRY.unpack_from(section)):
        return None
    _, message_id, _, _, origin, user_headers_length, payload_length = _HEADER.unpack_from(section, INDEX_ENTRY_SIZE)
    payload_end = tail_position + payload_length
    if (
        payload_end + user_headers_length != len(section)
        or payload_length > payload_size_max
        or user_headers_length > user_headers_size_max
        or section[INDEX_ENTRY_SIZE + _HEADER.size : tail_position] not in (b"", _NOTHING_RESERVED)
    ):
        return None
    user_headers = bytes(section[payload_end:])
    if not dialect.has_long_header:
        user_headers = typed_from_untyped(user_headers)
    if message_id == _NO_ID:
        message_id = ids(1)
    header = layout.FRAME_HEADER.pack(0, message_id, 0, 0, len(user_headers), payload_length, 0)
    frame = bytearray().join((header, section[tail_position:payload_end], user_headers))
    body = memoryview(frame)
    if layout.BATCH_HEADER_SIZE + len(frame) > layout.BATCH_SIZE_MAX:
        return None
    checksum = _CHECKSUM.pack(xxh3(body[_ID_POSITION:]))
    body[:_ID_POSITION] = checksum
    return Batch(origin, 1, body, uniform_layout(1, len(frame)), checksum)


def encode_single(
    body: memoryview,
    frames: FrameLayout,
    *,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
    dialect: Dialect,
    into: memoryview,
    position: int,
) -> int:
    """``encode_classic`` for a batch of one message."""
    _, message_id, offset_delta, timestamp_delta, user_headers_length, payload_length, _ = (
        layout.FRAME_HEADER.unpack_from(body)
    )
    payload_end = layout.FRAME_HEADER_SIZE + payload_length
    user_headers = bytes(body[payload_end : frames.size])
    if user_headers_length and not dialect.has_long_header:
        user_headers = untyped_from_typed(user_headers)
    end = end_of_room(into, position, dialect.header_size + payload_length + len(user_headers))
    # Both sums wrap around like their 64-bit fields: no client may make a poll fail with a wrong clock.
    offset, origin = (base_offset + offset_delta) % 2**64, (origin_timestamp + timestamp_delta) % 2**64
    _HEADER.pack_into(into, position, 0, message_id, offset, base_timestamp, origin, len(user_headers), payload_length)
    if dialect.has_long_header:
        into[position + _HEADER.size : position + dialect.header_size] = _NOTHING_RESERVED
    tail_position = position + dialect.header_size
    into[tail_position : tail_position + payload_length] = body[layout.FRAME_HEADER_SIZE : payload_end]
    into[tail_position + payload_length : end] = user_headers
    covered = into[position + _ID_POSITION : end]
    _CHECKSUM.pack_into(into, position, crc32(covered) if dialect is Dialect.SDK_0_5 else xxh3(covered))
    return end
