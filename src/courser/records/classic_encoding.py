"""Batches to classic messages: what a poll by an SDK from 0.5 to 0.8 returns."""

from struct import Struct

import numpy as np

from courser.records import layout
from courser.records.checksum import crc32, xxh3
from courser.records.classic_layout import FRAME_HEADER, Dialect, end_of_room, read_headers, write_headers
from courser.records.classic_single import encode_single
from courser.records.classic_tails import (
    Places,
    convert_user_headers,
    copy_tails,
    crc32_of_each,
    places_of,
    write_checksums,
    xxh3_of_each,
)
from courser.records.frame_walk import classic_from_frames
from courser.records.frames import FrameLayout, layout_of
from courser.records.user_headers import untyped_from_typed

_LENGTHS = Struct("<II")
"""user headers, payload"""
_LENGTHS_POSITION = 48
_CHECKSUM = Struct("<Q")


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
    if dialect is not Dialect.SDK_0_5 and position + classic_size_max(len(body), count, dialect) <= len(into):
        # Not for SDK 0.5, which uses CRC-32: that is not in the compiled part.
        bases = base_offset, base_timestamp, origin_timestamp
        end = classic_from_frames(body, into, position, count, dialect.header_size, *bases)
        if end is not None:
            return end
    frames = layout_of(body, count)
    encode = encode_single if count == 1 else encode_many
    return encode(
        body,
        frames,
        base_offset=base_offset,
        base_timestamp=base_timestamp,
        origin_timestamp=origin_timestamp,
        dialect=dialect,
        into=into,
        position=position,
    )


def encode_many(
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
    """``encode_classic`` for any messages, without its fast paths."""
    stored = read_headers(body, frames.starts, frames.frame_size, FRAME_HEADER)
    source = Places(body, layout.FRAME_HEADER_SIZE, frames.starts, frames.frame_size)
    converted: dict[int, bytes] = {}
    user_headers_lengths = stored["user_headers_length"].astype(np.int64)
    if not dialect.has_long_header and user_headers_lengths.any():
        user_headers_lengths, converted = convert_user_headers(source, stored, untyped_from_typed)
    starts, stride, size = places_of(user_headers_lengths + stored["payload_length"] + dialect.header_size)
    end = end_of_room(into, position, size)
    target = Places(into[position:end], dialect.header_size, starts, stride)

    headers = np.zeros(frames.count, dialect.header)
    headers["id"] = stored["id"]
    headers["offset"] = stored["offset_delta"] + np.uint64(base_offset)
    headers["timestamp"] = base_timestamp
    headers["origin_timestamp"] = stored["timestamp_delta"] + np.uint64(origin_timestamp)
    headers["user_headers_length"] = user_headers_lengths
    headers["payload_length"] = stored["payload_length"]
    write_headers(target.buffer, starts, stride, headers)
    copy_tails(source, target, converted)
    write_checksums(target, crc32_of_each(target) if dialect is Dialect.SDK_0_5 else xxh3_of_each(target))
    return end


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
            _CHECKSUM.pack_into(messages, target, crc32(covered) if dialect is Dialect.SDK_0_5 else xxh3(covered))
        source += size + user_headers_length
        target += size
    return target
