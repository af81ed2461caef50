"""The frames of a batch: their positions, and their fields as arrays.

A *body* is the consecutive frames of one batch. One walk (``frame_walk``) finds everything that a send needs to know
about them. Nothing on the path of a send or a poll creates an object per message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from courser.errors import ErrorCode, InvalidBatch
from courser.records import frame_walk, layout
from courser.records.checksum import xxh3
from courser.records.frame_walk_pure import follow_lengths, pick


class FrameLayout(msgspec.Struct, gc=False):
    """Where the frames of a body start. Immutable by convention; no frozen dataclass, because each send creates one."""

    count: int
    frame_size: int
    """Size of every frame if all are equal, else 0."""
    packed_starts: bytes
    """Position of each frame in the body, 64 bits each; empty if it follows from ``frame_size``."""
    size: int
    """Size of the whole body in bytes."""

    @property
    def starts(self) -> NDArray[np.int64]:
        """Position of each frame in the body."""
        if self.frame_size:
            return np.arange(0, self.size, self.frame_size, dtype=np.int64)
        return np.frombuffer(self.packed_starts, np.int64)

    def end_of(self, number: int) -> int:
        """Position after frame ``number``."""
        return int(self.starts[number + 1]) if number + 1 < self.count else self.size


def survey_frames(body: memoryview, count: int) -> tuple[FrameLayout, bytes, bool, bool]:
    """Walk over a body that must consist of exactly ``count`` frames.

    Returns where the frames start; their checksum fields in order, which the batch checksum covers; whether a reserved
    byte is not zero; whether the offset deltas are 0, 1, 2, ...

    Raises:
        InvalidBatch: the lengths do not fill the body, or the count does not match.
    """
    found = frame_walk.survey(body, count)
    if found is None:
        raise _why_not(body, count)
    frame_size, starts, checksums, has_reserved, is_numbered = found
    return FrameLayout(count, frame_size, starts, len(body)), checksums, has_reserved, is_numbered


def _why_not(body: memoryview, count: int) -> InvalidBatch:
    """The error for a body that ``count`` frames do not fill."""
    if count < 1:
        return InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "it has no messages")
    # A wrong count must not decide how much memory is allocated: every frame needs its header.
    if count * layout.FRAME_HEADER_SIZE > len(body):
        reason = f"{count} messages do not fit into {len(body)} bytes of frames"
        return InvalidBatch(ErrorCode.INVALID_MESSAGES_SIZE, reason)
    starts, end = follow_lengths(body, count)
    if end > len(body):
        reason = f"the lengths of frame {max(len(starts) - 1, 0)} reach beyond the batch"
        return InvalidBatch(ErrorCode.INVALID_MESSAGES_SIZE, reason)
    return InvalidBatch(ErrorCode.INVALID_MESSAGES_SIZE, f"{len(body) - end} bytes follow the last of {count} frames")


def layout_of(body: memoryview, count: int) -> FrameLayout:
    """Only where the frames start. Raises like ``survey_frames``."""
    return survey_frames(body, count)[0]


def uniform_layout(count: int, frame_size: int) -> FrameLayout:
    """The layout of ``count`` frames of one size."""
    return FrameLayout(count, frame_size, b"", count * frame_size)


def frame_fields(body: memoryview, frames: FrameLayout, position: int, dtype: str) -> NDArray[np.unsignedinteger]:
    """One header field of every frame, as an array: ``position`` inside the frame, ``dtype`` "<u4" or "<u8"."""
    starts = None if frames.frame_size else frames.starts
    return pick(body, starts, frames.frame_size, frames.count, position, dtype)


def checksum_fields(body: memoryview, frames: FrameLayout) -> bytes:
    """The checksum fields of all frames in order: what the batch checksum covers."""
    if frames.count == 1:
        return bytes(body[: layout.FRAME_ID_POSITION])
    return frame_fields(body, frames, layout.FRAME_CHECKSUM_POSITION, "<u8").tobytes()


def frame_checksum(body: memoryview, start: int, end: int) -> int:
    """The expected checksum of the frame at ``start``."""
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
    """One message of a batch: for tools and tests, never on the path of a send or a poll."""

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


def iterate_messages(pieces: Iterable[memoryview]) -> Iterator[tuple[int, int, int, Frame]]:
    """Every message of batch records: its offset, its time at the server and at its producer, and what it contains."""
    for piece in pieces:
        start = 0
        while start < len(piece):
            _, base_offset, timestamp, origin, length, _, count = layout.WIRE_HEADER.unpack_from(piece, start)
            for frame in iterate_frames(piece[start + layout.BATCH_HEADER_SIZE : start + length], count):
                yield base_offset + frame.offset_delta, timestamp, origin + frame.timestamp_delta, frame
            start += length
