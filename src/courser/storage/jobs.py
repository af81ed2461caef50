"""Work that waits for the disk, split so that storage needs no threads.

A job is planned on the thread that owns the partition, run on any thread, and completed or failed on the owner's thread
again. The plan captures everything that ``run`` needs. ``run`` reads and writes files and keeps its results to itself,
with one exception: ``SyncGuard`` learns of a failed sync at once, so that no other job trusts a later sync. Only the
plan, ``complete`` and ``fail`` change the partition, by named methods of ``PartitionLog``.

There are three kinds of jobs: large appends, syncs with hints to write back, and upkeep. Of each kind, at most one job
runs at a time, and only upkeep writes the ledger and removes files.
"""

from collections.abc import Callable
from dataclasses import dataclass

from courser.errors import StorageFailure
from courser.storage.acknowledgements import Mark
from courser.storage.files import File
from courser.storage.ledger import LedgerDraft, OffsetsMark, SegmentFacts
from courser.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of such work."""

    name: str
    run: Callable[[], None]
    """Raises ``StorageFailure``, never a bare ``OSError``."""
    complete: Callable[[], None]
    fail: Callable[[StorageFailure], None]


def perform(job: Job) -> bool:
    """Run a job on this thread, and return whether it succeeded. For tools, tests, and stopping servers."""
    try:
        job.run()
    except StorageFailure as failure:
        job.fail(failure)
        return False
    job.complete()
    return True


@dataclass(frozen=True, slots=True)
class UnsyncedSegment:
    """A segment to sync, and what is durable afterwards."""

    segment: Segment
    file: File
    size: int


@dataclass(frozen=True, slots=True)
class PlannedSync:
    """What one sync makes durable: everything that was written when it was planned."""

    mark: Mark
    segments: tuple[UnsyncedSegment, ...]
    """In the order of their offsets."""
    with_names: bool
    """Whether the directory has new names."""
    offsets_file: File | None
    offsets_mark: OffsetsMark | None
    facts: SegmentFacts | None
    """The facts about the open segment, for the next recovery point."""


@dataclass(frozen=True, slots=True)
class PlannedRemoval:
    """Segments that readers no longer see, and the ledger's records that make this durable."""

    segments: tuple[Segment, ...]
    old_start_offset: int
    draft: LedgerDraft


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """The result of sealing a segment: both files, synced."""

    file: File
    index_file: File
    index_block_count: int
