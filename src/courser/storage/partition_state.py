"""The state of one partition's files, and every change that jobs make to it.

Only the thread that owns the partition calls these methods. The plan of a job *begins* something, and its completion
*completes* or *fails* it. Nothing outside this module and ``partition_log`` assigns to these attributes.
"""

from dataclasses import dataclass
from pathlib import Path

from courser.errors import PartitionReadOnly, StorageFailure
from courser.model.durability import Durability
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import SyncGuard, heals
from courser.storage.files import File, FileSystem
from courser.storage.jobs import PlannedRemoval, PlannedSync, SealedSegment, UnsyncedSegment
from courser.storage.ledger import LedgerDraft, OffsetsMark, SegmentFacts
from courser.storage.offset_table import OffsetTable
from courser.storage.recovery import RecoveredPartition
from courser.storage.recovery_cases import RecoveryFinding
from courser.storage.sealed_files import SealedFiles
from courser.storage.segment import Segment, SegmentState
from courser.storage.segment_index import IndexCache
from courser.storage.settings import LogSettings
from courser.storage.time_corrections import TimeCorrections
from courser.storage.watermarks import Mark, Watermarks

_SYNCED = Durability.SYNCED


@dataclass(slots=True)
class WriteCounters:
    """What the owner of a partition has done."""

    segment_created_count: int = 0
    segment_deleted_count: int = 0
    """Those that were purged included."""
    segment_purged_count: int = 0


class PartitionState:
    """The state of an open partition. ``PartitionLog`` adds appends and reads."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        identity: PartitionIdentity,
        settings: LogSettings,
        recovered: RecoveredPartition,
    ) -> None:
        self.file_system = file_system
        self.directory = directory
        self.identity = identity
        self.settings = settings
        self.ledger = recovered.ledger
        self.offsets = recovered.offsets
        self.findings: tuple[RecoveryFinding, ...] = tuple(recovered.findings)
        self.failure: str | None = recovered.failure
        """Why the partition is read-only, or None."""
        self.is_incomplete = recovered.is_incomplete
        """Whether another partition's file is in the place of one of this partition's files."""
        self.must_report_failure = False
        self.syncs = SyncGuard(file_system, directory)
        self.segments: tuple[Segment, ...] = tuple(recovered.segments)
        """Replaced as a whole and never modified, because readers on other threads may use it."""
        self.is_as_left = recovered.is_as_left
        """Whether the open segment, its index and its recovery point on disk are as a clean stop leaves them."""
        self.departing: tuple[Segment, ...] = ()
        """Segments that are being removed. Readers no longer see them, but a crash may still restore them."""
        self.marks = Watermarks(recovered.next_offset)
        self.start_offset = self.ledger.state.numbers.start_offset
        self.reserved_end = self.ledger.state.numbers.reserved_end
        """Offsets below it may be confirmed before they are synced."""
        self.is_directory_unsynced = False
        self.is_syncing = False
        self.is_writing_back = False
        """Whether such a job is running. The file system then delays other operations."""
        self.synced_facts = self.ledger.state.progress
        """What the last sync made durable, for the next recovery point."""
        self.synced_offsets: OffsetsMark | None = None
        """The same for the stored offsets."""
        self.writes = WriteCounters()
        self._corrections = TimeCorrections(session_start=recovered.next_offset)
        self.files = SealedFiles(file_system, directory, identity, settings)

    # --- facts ---

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        return self.marks.written.offset

    @property
    def epoch(self) -> int:
        """How often the partition was purged."""
        return self.ledger.state.numbers.epoch

    @property
    def visible_end(self) -> int:
        """Where polls end. At ``synced``, readers see nothing that a crash could remove."""
        marks = self.marks
        return (marks.synced if self.settings.durability.level is _SYNCED else marks.written)[0]

    @property
    def size(self) -> int:
        """Bytes of all batches on disk."""
        return sum(segment.size for segment in self.segments)

    @property
    def message_count(self) -> int:
        """Messages on disk, including damaged ones."""
        return sum(segment.message_count for segment in self.segments)

    @property
    def closing_count(self) -> int:
        """Segments that wait to be sealed."""
        return sum(segment.state is SegmentState.CLOSING for segment in self.segments)

    @property
    def has_unrecorded_corrections(self) -> bool:
        """Whether there are corrections of segment times that the ledger does not have."""
        return self._corrections.are_unrecorded

    @property
    def open_segment(self) -> Segment | None:
        """The segment for the next batch, if it exists."""
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.state is SegmentState.OPEN else None

    # --- what may be done ---

    def check_writable(self) -> None:
        """Raise ``PartitionReadOnly`` after a failure."""
        if self.failure is not None:
            raise PartitionReadOnly(self.directory, self.failure)

    def fail(self, reason: str, *, is_sync: bool = False) -> None:
        """Accept no more writes. The first reason is kept, because it causes the others.

        After a failed sync, ``upkeep`` records the failure in the ledger: the next start must not trust unsynced data
        in the page cache.
        """
        if self.failure is None:
            self.failure = reason
        self.must_report_failure = self.must_report_failure or is_sync

    def use_settings(self, settings: LogSettings) -> None:
        """Use other settings from now on."""
        self.settings = settings

    # --- jobs: what their plans begin, and what completes or fails them ---

    def begin_sync(self) -> PlannedSync | None:
        """What to sync so that everything written so far is durable; None if it already is."""
        segments = tuple(
            UnsyncedSegment(segment, segment.file, segment.size)
            for segment in (*self.departing, *self.segments)
            if segment.file is not None
            and (segment.synced_size < segment.size or segment.has_unsynced_cut)
            and segment.state is not SegmentState.SEALED
        )
        mark, with_names, offsets_file = self.marks.written, self.is_directory_unsynced, self.offsets.begin_sync()
        if not segments and not with_names and offsets_file is None and mark.offset == self.marks.synced.offset:
            # If only the offset differs, a seal has synced the data, and completing the sync just records that.
            return None
        for unsynced in segments:
            unsynced.segment.has_unsynced_cut = False
        self.is_directory_unsynced = False
        self.is_syncing = True
        facts = self.open_segment.facts() if self.open_segment is not None else None
        return PlannedSync(mark, segments, with_names, offsets_file, self.offsets.mark, facts)

    def complete_sync(self, planned: PlannedSync) -> None:
        """Record that the planned data and everything before it survives a power cut."""
        self.is_syncing = False
        if self.syncs.has_failed:
            # The sync of another job has failed, so this one may have succeeded without writing everything. The kernel
            # reports a failure once: whoever waits for this job must not take it for a success.
            self.fail("an earlier sync failed", is_sync=True)
            return
        self.offsets.end_sync()
        self.synced_offsets = planned.offsets_mark
        if planned.mark.offset < self.marks.synced.offset:
            # A purge has removed the synced messages meanwhile.
            return
        for unsynced in planned.segments:
            unsynced.segment.note_synced(unsynced.size)
        self.marks.sync(planned.mark)
        if planned.facts is not None:
            self.synced_facts = planned.facts

    def fail_sync(self, planned: PlannedSync, failure: StorageFailure) -> None:
        """Nothing was reported as durable. After a temporary failure, all of it is due again."""
        self.is_syncing = False
        if not heals(failure):
            self.fail(str(failure), is_sync=True)
            return
        self.is_directory_unsynced |= planned.with_names
        if planned.offsets_file is not None:
            self.offsets.fail_sync()
        for unsynced in planned.segments:
            unsynced.segment.has_unsynced_cut = True

    def begin_writeback(self) -> None:
        """Note that a write-back has started, during which allocations should wait."""
        self.is_writing_back = True

    def complete_writeback(self, segment: Segment, size: int) -> None:
        """Note that the first ``size`` bytes of the segment were written back."""
        self.is_writing_back = False
        segment.writeback_size = size

    def complete_reservation(self, draft: LedgerDraft) -> None:
        """The new end is durable in the ledger. Offsets below it may be confirmed."""
        self.ledger.apply(draft)
        self.reserved_end = max(self.reserved_end, draft.numbers.reserved_end)

    def complete_seal(self, segment: Segment, draft: LedgerDraft, sealed: SealedSegment) -> None:
        """The segment, its index and the ledger's record of it are durable."""
        self.ledger.apply(draft)
        segment.seal()
        self.files.keep(segment, sealed.file)
        keeps_index = self.settings.index_cache is IndexCache.ALL
        segment.index.note_flushed(sealed.index_block_count, None if keeps_index else sealed.index_file)
        segment.is_index_ready = not segment.index.is_partial

    def complete_condensing(self, old: Segment, facts: SegmentFacts, draft: LedgerDraft | None) -> None:
        """A condensed file has the name of the segment's. Without ``draft``, the ledger does not say so yet."""
        if draft is not None:
            self.ledger.apply(draft)
        new = old.replaced_by(facts, self.identity, self.settings)
        self.segments = tuple(new if segment is old else segment for segment in self.segments)

    def begin_corrections(self) -> LedgerDraft | None:
        """Records of the corrections that the ledger does not have; None if it has them all."""
        found = self._corrections.begin_recording(self.segments, self.ledger.state.corrections)
        return self.ledger.draft(*found) if found else None

    def fail_corrections(self) -> None:
        """The ledger could not be written, so they are due again."""
        self._corrections.fail_recording()

    def complete_offsets_rewrite(self, replacement: File) -> None:
        """Use the new file of stored offsets. Its name is synced with the next data."""
        self.offsets.finish_rewrite(replacement)
        self.is_directory_unsynced = True

    def begin_removal(self, count: int, epoch: int | None = None) -> PlannedRemoval:
        """Hide the first ``count`` segments from readers. A crash before the ledger is written restores them all."""
        gone, kept = self.segments[:count], self.segments[count:]
        start_offset = self.start_offset
        if gone:
            start_offset = kept[0].base_offset if kept else self.next_offset
        draft = self.ledger.draft(
            start_offset=start_offset,
            epoch=self.epoch if epoch is None else epoch,
            last_timestamp=max((segment.last_timestamp for segment in gone), default=0),
        )
        removal = PlannedRemoval(gone, self.start_offset, draft)
        self.departing, self.segments = gone, kept
        self.start_offset = start_offset
        return removal

    def complete_removal(self, removal: PlannedRemoval) -> None:
        """The new start is durable in the ledger, and the files are removed."""
        self.ledger.apply(removal.draft)
        self.departing = ()
        self.writes.segment_deleted_count += len(removal.segments)
        for segment in removal.segments:
            segment.file = None

    def fail_removal(self, removal: PlannedRemoval, failure: StorageFailure, *, is_recorded: bool) -> None:
        """If ``is_recorded``, the ledger has the new start. Otherwise no file was removed, and the messages remain."""
        if is_recorded:
            self.ledger.apply(removal.draft)
        if heals(failure) and not is_recorded:
            self.departing, self.segments = (), (*removal.segments, *self.segments)
            self.start_offset = removal.old_start_offset
        else:
            self.fail(str(failure), is_sync=failure.operation == "sync")

    def complete_purge(self, removal: PlannedRemoval, offsets: OffsetTable, synced: Mark | None) -> None:
        """Like ``complete_removal``. ``synced`` is the end of what was written, if no unsynced message remains."""
        self.use_offsets(offsets)
        if self.synced_facts is not None and self.synced_facts.base_offset < self.start_offset:
            self.synced_facts = None
        if synced is not None and synced.offset > self.marks.synced.offset:
            self.marks.sync(synced)
        self.writes.segment_purged_count += len(removal.segments)
        self.complete_removal(removal)

    def use_offsets(self, offsets: OffsetTable) -> None:
        """Use another file of stored offsets. The old one is not closed, because it may be being synced."""
        self.offsets = offsets

    def complete_failure_report(self, draft: LedgerDraft) -> None:
        """The failed sync is durably recorded in the ledger."""
        self.ledger.apply(draft)
        self.must_report_failure = False

    def fail_failure_report(self) -> None:
        """The disk accepts no more writes. Do not retry: only a restart shows what is on disk."""
        self.must_report_failure = False
