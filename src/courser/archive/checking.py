"""Checks the batches of a local segment before they are archived.

A segment that is damaged on the disk must not become the archive's copy: a good one may still be there, in the archive
or in the next read of the disk.
"""

from collections.abc import Iterator, Sequence

import xxhash

from courser.archive.uploading import Range, hash_file
from courser.records.stored_header import PartitionIdentity
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.scan import BadRange, GoodBatch, ZeroTail, scan


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
) -> bytes:
    """Check the batches in a range of a segment's file, which reaches to its end. Returns the XXH3-128 of the range.

    ``known`` is damage that the server has recorded: it is accepted.

    Raises:
        LocalDamage: there is other damage.
        OSError: the file cannot be read.
    """
    whole = xxhash.xxh3_128()
    damages: list[DamagedRange] = []
    for found in _with_end(source, identity, segment, first_offset):
        if isinstance(found, GoodBatch):
            whole.update(found.stored)
        else:
            damages.append(found)
    new = [damage for damage in damages if not any(_includes(recorded, damage) for recorded in known)]
    if new:
        raise LocalDamage(identity, segment, new)
    return hash_file(source) if damages else whole.digest()


def _with_end(
    source: Range, identity: PartitionIdentity, segment: SegmentFacts, first_offset: int
) -> Iterator[GoodBatch | DamagedRange]:
    """The batches and the damages of a range: bad bytes have the offsets between the good batches around them."""
    end, end_offset = source.position + source.size, first_offset
    bad: BadRange | ZeroTail | None = None
    for found in scan(source.file, identity, start=source.position, end=end, offset=first_offset):
        if not isinstance(found, GoodBatch):
            bad = found
            continue
        if bad is not None:
            place = bad.position, bad.end_position, end_offset, found.header.base_offset
            yield DamagedRange(segment.base_offset, *place)
            bad = None
        yield found
        end_offset = found.header.end_offset
    if bad is not None:
        yield DamagedRange(segment.base_offset, bad.position, bad.end_position, end_offset, segment.end_offset)
    elif end_offset != segment.end_offset:
        yield DamagedRange(segment.base_offset, end, end, end_offset, segment.end_offset)


def _includes(recorded: DamagedRange, damage: DamagedRange) -> bool:
    return recorded.position <= damage.position and damage.end_position <= recorded.end_position
