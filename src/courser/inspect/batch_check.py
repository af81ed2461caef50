"""Further checks of a batch whose stored hashes are correct."""

from dataclasses import dataclass

from courser.records import layout
from courser.records.frames import checksum_fields, wrong_frame_checksums
from courser.records.stored_header import has_valid_batch_checksum
from courser.storage.scan import GoodBatch


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """The result of checking one batch."""

    problems: tuple[str, ...]
    """Contradictions that the server never writes."""
    lying_frames: tuple[int, ...]
    """Indexes of the frames whose own checksum is wrong: the client sent them that way."""


def check_batch(batch: GoodBatch) -> BatchCheck:
    """Check the wire checksum and the checksums of all frames. Hashes every message."""
    problems = []
    wire = memoryview(layout.STORED_HEADER.pack(*batch.header))
    if not has_valid_batch_checksum(wire, batch.header, checksum_fields(batch.body, batch.frames)):
        problems.append("the batch checksum for clients does not match")
    return BatchCheck(tuple(problems), tuple(wrong_frame_checksums(batch.body, batch.frames)))
