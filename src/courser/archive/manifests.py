"""How the manifest of a partition follows from the one before: pure functions for the writer."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice, takewhile
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import msgspec

from courser.archive.capture import CapturedPartition
from courser.archive.objects import Manifest, Piece, RelativeKey
from courser.records.stored_header import PartitionIdentity

Row = TypeVar("Row", bound=tuple[Any, ...])

_first_offset = attrgetter("first_offset")


def empty_manifest(identity: PartitionIdentity, purge_count: int) -> Manifest:
    """The manifest of a partition of which nothing is archived."""
    return Manifest(identity.topic_uuid, identity.partition_id, identity.incarnation, purge_count, ())


def without_the_gone(old: Manifest, partition: CapturedPartition) -> Manifest:
    """The manifest to continue: without what the partition no longer has, and with what it knows of gaps and damage."""
    lost = {piece.key for piece in lost_pieces(old, partition)}
    # The partition forgets what it knew of messages that it no longer has. The archive still has them.
    past_end = 0 if partition.purge_count > old.purge_count else partition.start_offset
    kept = [piece for piece in old.pieces if not _is_purged(piece, old, partition) and piece.key not in lost]
    return msgspec.structs.replace(
        old,
        purge_count=partition.purge_count,
        pieces=tuple(kept),
        gaps=_united(
            [gap for gap in old.gaps if gap[1] <= past_end],
            [(gap.first_offset, gap.end_offset, gap.is_loss) for gap in partition.gaps],
        ),
        damages=_united(
            [damage for damage in old.damages if damage[4] <= past_end],
            [
                (found.base_offset, found.position, found.end_position, found.first_offset, found.end_offset)
                for found in partition.damages
            ],
        ),
        corrections=_united(
            [correction for correction in old.corrections if correction[0] < past_end], partition.corrections
        ),
    )


def lost_pieces(old: Manifest, partition: CapturedPartition) -> list[Piece]:
    """The objects with messages that the partition should have, or have had, and that no purge has removed.

    There are some only if the partition is not what it was: set back, or shortened by a failing disk.
    """
    return [
        piece
        for piece in old.pieces
        if not _is_purged(piece, old, partition)
        and (piece.end_offset > partition.next_offset or _contradicts(piece, partition))
    ]


def _is_purged(piece: Piece, old: Manifest, partition: CapturedPartition) -> bool:
    return partition.purge_count > old.purge_count and piece.end_offset <= partition.start_offset


def is_alike(before: CapturedPartition, now: CapturedPartition) -> bool:
    """Whether a manifest that fitted before fits now: only messages were added or trimmed."""
    return (
        (before.purge_count, before.gaps, before.damages, before.corrections)
        == (now.purge_count, now.gaps, now.damages, now.corrections)
        and before.start_offset <= now.start_offset
        and before.next_offset <= now.next_offset
    )


def pieces_of(manifest: Manifest, base_offset: int) -> list[Piece]:
    """The objects with messages of one segment, found without a walk over those of the others."""
    pieces = manifest.pieces
    number = bisect_left(pieces, base_offset, key=_first_offset)
    return list(takewhile(lambda piece: piece.base_offset == base_offset, islice(pieces, number, None)))


def with_piece(old: Manifest, piece: Piece) -> Manifest:
    """The manifest with an object in the place of those that it replaces."""
    kept = [
        other
        for other in old.pieces
        if other.end_offset <= piece.first_offset or other.first_offset >= piece.end_offset
    ]
    return msgspec.structs.replace(old, pieces=tuple(sorted([*kept, piece], key=_first_offset)))


def versions_before(old: Manifest, piece: Piece) -> list[RelativeKey]:
    """The keys of the objects with the same offsets as ``piece``, which replaces them.

    Objects with fewer offsets need no mention: nobody names them again once there is one with more.
    """
    return [
        key
        for other in old.pieces
        if (other.first_offset, other.end_offset) == (piece.first_offset, piece.end_offset)
        for key in (other.key, other.index_key)
        if key and key not in (piece.key, piece.index_key)
    ]


def _united(old: Iterable[Row], new: Iterable[Row]) -> tuple[Row, ...]:
    """All rows, each once, in order."""
    return tuple(sorted({*old, *new}))


def _contradicts(piece: Piece, partition: CapturedPartition) -> bool:
    """Whether a piece overlaps a segment of the server in another way than a copy of it would."""
    segments = partition.local_segments
    number = bisect_right(segments, piece.first_offset, key=itemgetter(1))
    if number == len(segments):
        return False
    first, end = segments[number]
    return first < piece.end_offset and (piece.base_offset != first or piece.end_offset > end)
