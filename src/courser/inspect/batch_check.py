"""Everything that can be said of one batch whose stored hashes are right."""

from dataclasses import dataclass

import numpy as np

from courser.errors import InvalidBatch
from courser.records import layout
from courser.records.frames import FrameLayout, checksum_fields, frame_fields, layout_of, wrong_frame_checksums
from courser.records.stored_header import has_valid_batch_checksum
from courser.storage.scan import GoodBatch


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """What came of it."""

    frames: FrameLayout | None
    """None if the frames do not fill the body."""
    problems: tuple[str, ...]
    """Contradictions that the server never writes."""
    lying_frames: tuple[int, ...]
    """Numbers of the frames whose own checksum is wrong: the client sent them so."""


def check_batch(batch: GoodBatch) -> BatchCheck:
    """Check the frames and the wire checksum. Hashes every message."""
    header, body = batch.header, batch.body
    try:
        frames = layout_of(body, header.message_count)
    except InvalidBatch as error:
        return BatchCheck(None, (error.reason,), ())
    problems = []
    if header.frame_size not in (0, frames.frame_size):
        problems.append(f"the header says that every frame has {header.frame_size} bytes, which is not so")
    deltas = frame_fields(body, frames, layout.FRAME_OFFSET_DELTA_POSITION, "<u4")
    if not np.array_equal(deltas, np.arange(frames.count, dtype=np.uint32)):
        problems.append("the offsets inside the batch are not consecutive")
    wire = memoryview(layout.STORED_HEADER.pack(*header))
    if not has_valid_batch_checksum(wire, header, checksum_fields(body, frames)):
        problems.append("the batch checksum that clients see does not match")
    return BatchCheck(frames, tuple(problems), tuple(wrong_frame_checksums(body, frames)))
