"""Checks the batches of a local segment before they are archived.

A segment that is damaged on the disk must not become the archive's copy: a good one may still be there, in the archive
or in the next read of the disk.

Nearly all segments are good. So their batches are checked in large pieces, in compiled code that lets the event loop
run. Only a segment that this does not find good is scanned batch by batch, to learn what is wrong with it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import xxhash

from courser.archive.pacing import Pace
from courser.archive.transfers import Range, hash_file
from courser.records import layout
from courser.records.frame_walk import good_batches
from courser.records.stored_header import PartitionIdentity, blank_header
from courser.storage.files import read_into
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.scan import GoodBatch, scan

_PIECE_SIZE = 4 * 1024 * 1024
"""Bytes that are read and checked at a time. A larger batch takes more."""


class LocalDamage(Exception):
    """Bytes of a local segment are not good batches."""

    def __init__(self, identity: PartitionIdentity, facts: SegmentFacts, damages: Sequence[DamagedRange]) -> None:
        super().__init__(f"{len(damages)} damaged ranges")
        self.identity = identity
        self.facts = facts
        """The segment, as it was captured."""
        self.damages = tuple(damages)


def check_batches(
    source: Range,
    identity: PartitionIdentity,
    segment: SegmentFacts,
    first_offset: int,
    known: Sequence[DamagedRange],
    pace: Pace,
    *,
    piece_size: int = _PIECE_SIZE,
) -> bytes:
    """Check the batches in a range of a segment's file, which reaches to its end. Returns the XXH3-128 of the range.

    ``known`` is damage that the server has recorded: it is accepted. Reads ``piece_size`` bytes at a time.

    Raises:
        LocalDamage: there is other damage.
        OSError: the file cannot be read.
        ArchiveInterrupted: the server stops.
    """
    digest = _digest_if_good(source, identity, segment, first_offset, pace, piece_size)
    if digest is not None:
        return digest
    whole = xxhash.xxh3_128()
    damages: list[DamagedRange] = []
    for found in _with_end(source, identity, segment, first_offset):
        if isinstance(found, GoodBatch):
            whole.update(found.stored)
            pace.give_way(source.file.path.name)
        else:
            damages.append(found)
    new = [damage for damage in damages if not any(_includes(recorded, damage) for recorded in known)]
    if new:
        raise LocalDamage(identity, segment, new)
    return hash_file(source, pace) if damages else whole.digest()


def _digest_if_good(
    source: Range, identity: PartitionIdentity, segment: SegmentFacts, first_offset: int, pace: Pace, piece_size: int
) -> bytes | None:
    """The XXH3-128 of a range that is good batches up to its end; None if it is not, or if nobody can say."""
    whole, blank = xxhash.xxh3_128(), blank_header(identity)
    # Not a bytearray, which would be zeroed first.
    memory = np.empty(min(piece_size, source.size), np.uint8).data
    position, end, offset = source.position, source.position + source.size, first_offset
    kept = 0
    """Bytes at the start of the memory: of a batch that is not complete yet."""
    while position < end:
        wanted = min(len(memory), end - position)
        filled = kept + read_into(source.file, position + kept, memory[kept:wanted])
        size, offset = good_batches(memory[:filled], blank, offset)
        whole.update(memory[:size])
        position, kept = position + size, filled - size
        if not size:
            needed = _stored_length(memory[:filled])
            if not len(memory) < needed <= layout.STORED_SIZE_MAX:
                return None
            larger = np.empty(needed, np.uint8).data
            larger[:kept] = memory[:kept]
            memory = larger
        elif kept:
            memory[:kept] = bytes(memory[size:filled])
        pace.give_way(source.file.path.name)
    return whole.digest() if offset == segment.end_offset else None


def _stored_length(header: memoryview) -> int:
    """The size that a batch claims to have, whether that is true or not."""
    start = layout.STORED_LENGTH_POSITION
    return int.from_bytes(header[start : start + 8], "little")


def _with_end(
    source: Range, identity: PartitionIdentity, segment: SegmentFacts, first_offset: int
) -> Iterator[GoodBatch | DamagedRange]:
    """The batches and the damages of a range: bad bytes have the offsets between the good batches around them."""
    end, end_offset = source.position + source.size, first_offset
    for found in scan(source.file, identity, start=source.position, end=end, offset=first_offset):
        if isinstance(found, GoodBatch):
            yield found
            end_offset = found.header.end_offset
        else:
            damage = found.damage(segment.base_offset, segment.end_offset)
            yield damage
            end_offset = damage.end_offset
    if end_offset != segment.end_offset:
        yield DamagedRange(segment.base_offset, end, end, end_offset, segment.end_offset)


def _includes(recorded: DamagedRange, damage: DamagedRange) -> bool:
    return recorded.position <= damage.position and damage.end_position <= recorded.end_position
