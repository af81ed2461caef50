"""The frames inside a batch: where they begin, and their fields as arrays.

A *body* is the frames of one batch behind one another. Frames of equal size are found with one comparison and read
with strided views; mixed sizes need one walk over the length fields. Nothing here makes an object per message.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from courser.errors import ErrorCode, InvalidBatch
from courser.records import layout
from courser.records.checksum import xxh3

_ONE_START = np.zeros(1, np.int64)
_ONE_START.setflags(write=False)
_unpack_lengths = layout.FRAME_LENGTHS.unpack_from
_unpack_leading_lengths = struct.Struct(f"<{layout.FRAME_LENGTHS_POSITION}xII").unpack_from
"""The lengths of the frame that begins at a position."""


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """Where the frames of a body begin."""

    count: int
    frame_size: int
    """Size of every frame if all are equal, else 0."""
    starts: NDArray[np.int64]
    """Position of each frame in the body."""
    size: int
    """Bytes of the whole body."""

    def end_of(self, number: int) -> int:
        """Position behind frame ``number``."""
        return int(self.starts[number + 1]) if number + 1 < self.count else self.size


def layout_of(body: memoryview, count: int) -> FrameLayout:
    """Find the frames of a body that must hold exactly ``count`` of them, without a byte left over.

    Raises:
        InvalidBatch: the lengths do not tile the body, or the count is another.
    """
    if count < 1:
        raise InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "it has no messages")
    # A count that lies must not decide how much memory is taken: every frame needs its header.
    if count * layout.FRAME_HEADER_SIZE > len(body):
        raise InvalidBatch(
            ErrorCode.INVALID_MESSAGES_SIZE, f"{count} messages do not fit into {len(body)} bytes of frames"
        )
    frame_size = uniform_frame_size(body, count)
    if frame_size:
        return uniform_layout(count, frame_size)
    starts, end = _walk(body, count)
    if end != len(body):
        raise InvalidBatch(
            ErrorCode.INVALID_MESSAGES_SIZE, f"{len(body) - end} bytes follow the last of {count} frames"
        )
    return FrameLayout(count, 0, np.array(starts, np.int64), len(body))


def uniform_layout(count: int, frame_size: int) -> FrameLayout:
    """The layout of ``count`` frames of one size."""
    size = count * frame_size
    if count == 1:
        return FrameLayout(1, frame_size, _ONE_START, size)
    return FrameLayout(count, frame_size, np.arange(0, size, frame_size, dtype=np.int64), size)


def uniform_frame_size(body: memoryview, count: int) -> int:
    """The size of every frame, or 0 if they differ (or do not tile the body)."""
    user_headers_length, payload_length = _unpack_lengths(body, layout.FRAME_LENGTHS_POSITION)
    frame_size: int = layout.FRAME_HEADER_SIZE + user_headers_length + payload_length
    if frame_size * count != len(body):
        return 0
    if count == 1:
        return frame_size
    # Both lengths are compared at once: a frame of the same size with another split is not a uniform frame.
    lengths = np.ndarray((count,), "<u8", body, layout.FRAME_LENGTHS_POSITION, (frame_size,))
    return frame_size if bool((lengths == lengths[0]).all()) else 0


def _walk(body: memoryview, count: int) -> tuple[list[int], int]:
    """Follow the length fields from frame to frame; return where each begins and where the last ends.

    The one loop over messages on the path of a send: every operation in it is paid a thousand times per batch.
    """
    unpack, header_size = _unpack_leading_lengths, layout.FRAME_HEADER_SIZE
    starts: list[int] = []
    add = starts.append
    position = 0
    try:
        for _ in repeat(None, count):
            user_headers_length, payload_length = unpack(body, position)
            add(position)
            position += header_size + user_headers_length + payload_length
    except struct.error:
        # The frame before this one reached so far that no header fits behind it.
        position = len(body) + 1
    if position > len(body):
        raise InvalidBatch(
            ErrorCode.INVALID_MESSAGES_SIZE, f"the lengths of frame {max(len(starts) - 1, 0)} reach beyond the batch"
        )
    return starts, position


def frame_fields(body: memoryview, frames: FrameLayout, position: int, dtype: str) -> NDArray[np.unsignedinteger]:
    """One header field of every frame, as an array: ``position`` inside the frame, ``dtype`` "<u4" or "<u8"."""
    if frames.frame_size:
        return np.ndarray((frames.count,), dtype, body, position, (frames.frame_size,))
    # Numbers that begin at every single byte of the body, overlapping: picking from them reads any position.
    every_byte: NDArray[np.unsignedinteger] = np.ndarray(
        (len(body) - np.dtype(dtype).itemsize + 1,), dtype, body, 0, (1,)
    )
    picked: NDArray[np.unsignedinteger] = every_byte[frames.starts + position]
    return picked


def checksum_fields(body: memoryview, frames: FrameLayout) -> bytes:
    """The checksum fields of all frames in order: what the batch checksum covers."""
    if frames.count == 1:
        return bytes(body[: layout.FRAME_ID_POSITION])
    return frame_fields(body, frames, layout.FRAME_CHECKSUM_POSITION, "<u8").tobytes()


def frame_checksum(body: memoryview, start: int, end: int) -> int:
    """What the checksum field of the frame at ``start`` should hold."""
    return xxh3(body[start + layout.FRAME_ID_POSITION : end])


def wrong_frame_checksums(body: memoryview, frames: FrameLayout) -> list[int]:
    """Numbers of the frames whose checksum does not match their bytes. A hash per message: not for hot paths."""
    claimed = frame_fields(body, frames, layout.FRAME_CHECKSUM_POSITION, "<u8").tolist()
    starts = frames.starts.tolist()
    ends = [*starts[1:], frames.size]
    return [
        number
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        if frame_checksum(body, start, end) != claimed[number]
    ]


@dataclass(frozen=True, slots=True)
class Frame:
    """One message taken out of a batch: for tools and tests, never on the path of a send or a poll."""

    checksum: int
    message_id: int
    offset_delta: int
    timestamp_delta: int
    payload: memoryview
    user_headers: memoryview


def iterate_frames(body: memoryview, count: int) -> Iterator[Frame]:
    """Every message of a well-formed body as an object."""
    position = 0
    for _ in range(count):
        checksum, message_id, offset_delta, timestamp_delta, user_headers_length, payload_length, _reserved = (
            layout.FRAME_HEADER.unpack_from(body, position)
        )
        payload_end = position + layout.FRAME_HEADER_SIZE + payload_length
        yield Frame(
            checksum=checksum,
            message_id=int.from_bytes(message_id, "little"),
            offset_delta=offset_delta,
            timestamp_delta=timestamp_delta,
            payload=body[position + layout.FRAME_HEADER_SIZE : payload_end],
            user_headers=body[payload_end : payload_end + user_headers_length],
        )
        position = payload_end + user_headers_length
