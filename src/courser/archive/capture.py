"""What the server had at one moment: the input of an archive run.

It is taken on the event loop in one turn, so that catalog, logs and stored offsets fit together. The run then works
from it on another thread, without the broker.
"""

from dataclasses import dataclass
from pathlib import Path

from courser.records.stored_header import PartitionIdentity
from courser.storage.ledger import DamagedRange, OffsetGap, SegmentFacts
from courser.storage.offset_table import ConsumerKey


@dataclass(frozen=True, slots=True)
class CapturedSegment:
    """A segment, as far as it is synced."""

    facts: SegmentFacts
    is_sealed: bool
    damages: tuple[DamagedRange, ...] = ()
    """Damage in it that the server has recorded."""
    is_doubtful: bool = False
    """Whether it has other damage: it is not a copy to rely on, and what is archived of it must stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPartition:
    """A partition, as it was at that moment."""

    identity: PartitionIdentity
    directory: Path
    is_lost: bool = False
    """Whether the server does not have its files: what is archived of it stays archived, and the rest is unknown."""
    segments: tuple[CapturedSegment, ...]
    """Those to archive, oldest first."""
    local_segments: tuple[tuple[int, int], ...] = ()
    """First and end offset of all that the server has."""
    start_offset: int = 0
    next_offset: int = 0
    reserved_end: int = 0
    last_timestamp: int = 0
    purge_count: int = 0
    gaps: tuple[OffsetGap, ...] = ()
    damages: tuple[DamagedRange, ...] = ()
    corrections: tuple[tuple[int, int], ...] = ()
    offsets: tuple[tuple[ConsumerKey, int], ...] = ()

    @property
    def sealed_size(self) -> int:
        """Bytes of sealed segments to archive."""
        return sum(segment.facts.size for segment in self.segments if segment.is_sealed)


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a run, at the end of which a root is written."""

    number: int
    """From 1 on in an epoch, also for steps that failed. Manifests have it in their keys: no two processes write the
    same one, and a later one has a greater key, whoever writes it."""
    time: int
    """When everything was captured."""
    op: int
    """Of the last change of the catalog; -1 before the first."""
