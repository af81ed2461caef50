"""What is known about one partition's files, and every change that jobs make to it.

The thread that owns the partition calls everything here. A job's plan *begins* something; its completion *completes* or
*fails* it. Nothing outside this module and ``partition_log`` assigns to these attributes.
"""

from dataclasses import dataclass
from pathlib import Path

from courser.errors import PartitionReadOnly, StorageFailure
from courser.model.durability import Durability
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import SyncGuard, heals
from courser.storage.files import File, FileSystem
from courser.storage.jobs import PlannedRemoval, PlannedSync, SealedSegment, UnsyncedSegment
from courser.storage.ledger import LedgerDraft, OffsetsMark
from courser.storage.offset_table import OffsetTable
from courser.storage.recovery import RecoveredPartition
from courser.storage.recovery_cases import Finding
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
        self.findings: tuple[Finding, ...] = tuple(recovered.findings)
        self.failure: str | None = recovered.failure
        """Why the partition is read-only, or None."""
        self.is_incomplete = recovered.is_incomplete
        """Whether another partition's file stands where a file of this one may belong."""
        self.must_report_failure = False
        self.syncs = SyncGuard(file_system, directory)
        self.segments: tuple[Segment, ...] = tuple(recovered.segments)
        """Replaced as a whole, never changed: readers on other threads hold on to what they took."""
        self.is_as_left = recovered.is_as_left
        """Whether the open segment, its index and its recovery point on disk are as a clean stop leaves them."""
        self.departing: tuple[Segment, ...] = ()
        """Segments of a removal under way: readers no longer see them, but a crash may still bring them back."""
        self.marks = Watermarks(recovered.next_offset)
        self.start_offset = self.ledger.state.numbers.start_offset
        self.reserved_end = self.ledger.state.numbers.reserved_end
        """Offsets below it may be confirmed before they are synced."""
        self.is_directory_unsynced = False
        self.is_syncing = False
        self.is_writing_back = False
        """Whether a job of that kind is under way: the file system then keeps others waiting, for long."""
        self.synced_facts = self.ledger.state.progress
        """What the last sync made sure of, for the next recovery point."""
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
        """Where polls end: at ``synced`` a reader sees nothing that a crash could take away."""
        marks = self.marks
        return (marks.synced if self.settings.durability.level is _SYNCED else marks.written)[0]

    @property
    def size(self) -> int:
        """Bytes of all batches on disk."""
        return sum(segment.size for segment in self.segments)

    @property
    def message_count(self) -> int:
        """Messages on disk, damaged ones included."""
        return sum(segment.message_count for segment in self.segments)

    @property
    def closing_count(self) -> int:
        """Segments that wait to be sealed."""
        return sum(segment.state is SegmentState.CLOSING for segment in self.segments)

    @property
    def has_unrecorded_corrections(self) -> bool:
        """Whether more is known of the times of segments than the ledger says."""
        return self._corrections.are_unrecorded

    @property
    def open_segment(self) -> Segment | None:
        """The segment that takes the next batch, if there is one already."""
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.state is SegmentState.OPEN else None

    # --- what may be done ---

    def check_writable(self) -> None:
        """Raise ``PartitionReadOnly`` after a failure."""
        if self.failure is not None:
            raise PartitionReadOnly(self.directory, self.failure)

    def fail(self, reason: str, *, is_sync: bool = False) -> None:
        """Take no more writes. The first reason stays: it is the cause of the others.

        After a failed sync, ``upkeep`` records the failure in the ledger: the next start must not trust what the kernel
        shows of unsynced data.
        """
        if self.failure is None:
            self.failure = reason
        self.must_report_failure = self.must_report_failure or is_sync

    def use_settings(self, settings: LogSettings) -> None:
        """Let other settings hold from now on."""
        self.settings = settings

    # --- jobs: what their plans begin, and what completes or fails them ---

    def begin_sync(self) -> PlannedSync | None:
        """What has to be synced so that all that is written now is durable; None if it is."""
        segments = tuple(
            UnsyncedSegment(segment, segment.file, segment.size)
            for segment in (*self.departing, *self.segments)
            if segment.file is not None
            and (segment.synced_size < segment.size or segment.has_unsynced_cut)
            and segment.state is not SegmentState.SEALED
        )
        mark, with_names, offsets_file = self.marks.written, self.is_directory_unsynced, self.offsets.begin_sync()
        if not segments and not with_names and offsets_file is None and mark.offset == self.marks.synced.offset:
            # Otherwise a seal has synced what is written: there is nothing to do but to say so.
            return None
        for unsynced in segments:
            unsynced.segment.has_unsynced_cut = False
        self.is_directory_unsynced = False
        self.is_syncing = True
        facts = self.open_segment.facts() if self.open_segment is not None else None
        return PlannedSync(mark, segments, with_names, offsets_file, self.offsets.mark, facts)

    def complete_sync(self, planned: PlannedSync) -> None:
        """What was planned survives a power cut, and so does all before it."""
        self.is_syncing = False
        if self.syncs.has_failed:
            # Another job failed to sync what this sync may only seem to have synced.
            return
        self.offsets.end_sync()
        self.synced_offsets = planned.offsets_mark
        if planned.mark.offset < self.marks.synced.offset:
            # A purge was quicker: nothing is left of what was synced here.
            return
        for unsynced in planned.segments:
            unsynced.segment.note_synced(unsynced.size)
        self.marks.sync(planned.mark)
        if planned.facts is not None:
            self.synced_facts = planned.facts

    def fail_sync(self, planned: PlannedSync, failure: StorageFailure) -> None:
        """Nothing was reported as durable. If the failure heals, all of it is due again."""
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
        """The kernel is asked to write back: allocations should wait."""
        self.is_writing_back = True

    def complete_writeback(self, segment: Segment, size: int) -> None:
        """It was asked for the first ``size`` bytes of the segment."""
        self.is_writing_back = False
        segment.writeback_size = size

    def complete_reservation(self, draft: LedgerDraft) -> None:
        """The ledger has the new end, durably: offsets below it may be confirmed."""
        self.ledger.apply(draft)
        self.reserved_end = max(self.reserved_end, draft.numbers.reserved_end)

    def complete_seal(self, segment: Segment, draft: LedgerDraft, sealed: SealedSegment) -> None:
        """The segment, its index and the ledger's record of it are durable."""
        self.ledger.apply(draft)
        segment.seal()
        self.files.keep(segment.base_offset, sealed.file)
        keeps_index = self.settings.index_cache is IndexCache.ALL
        segment.index.note_flushed(sealed.index_block_count, None if keeps_index else sealed.index_file)
        segment.is_index_ready = not segment.index.is_partial

    def begin_corrections(self) -> LedgerDraft | None:
        """Records of the corrections that the ledger does not have; None if it has them all."""
        found = self._corrections.begin_recording(self.segments, self.ledger.state.corrections)
        return self.ledger.draft(*found) if found else None

    def fail_corrections(self) -> None:
        """The ledger could not take them: they are due again."""
        self._corrections.fail_recording()

    def complete_offsets_rewrite(self, replacement: File) -> None:
        """Use the new file of stored offsets, if no store has overtaken it. Its name is synced with the next data."""
        if self.offsets.finish_rewrite(replacement):
            self.is_directory_unsynced = True

    def begin_removal(self, count: int, epoch: int | None = None) -> PlannedRemoval:
        """Hide the first ``count`` segments from readers. A crash before the ledger knows brings them back, whole."""
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
        """The ledger has the new start, durably, and the files are gone."""
        self.ledger.apply(removal.draft)
        self.departing = ()
        self.writes.segment_deleted_count += len(removal.segments)
        for segment in removal.segments:
            segment.file = None

    def fail_removal(self, removal: PlannedRemoval, failure: StorageFailure, *, is_recorded: bool) -> None:
        """``is_recorded``: the ledger has the new start. Otherwise no file was removed, and the messages are back."""
        if is_recorded:
            self.ledger.apply(removal.draft)
        if heals(failure) and not is_recorded:
            self.departing, self.segments = (), (*removal.segments, *self.segments)
            self.start_offset = removal.old_start_offset
        else:
            self.fail(str(failure), is_sync=failure.operation == "sync")

    def complete_purge(self, removal: PlannedRemoval, offsets: OffsetTable, synced: Mark | None) -> None:
        """As ``complete_removal``. ``synced`` is what was written, if no message of it is left that could be lost."""
        self.use_offsets(offsets)
        if self.synced_facts is not None and self.synced_facts.base_offset < self.start_offset:
            self.synced_facts = None
        if synced is not None and synced.offset > self.marks.synced.offset:
            self.marks.sync(synced)
        self.complete_removal(removal)

    def use_offsets(self, offsets: OffsetTable) -> None:
        """Another file holds the stored offsets. The old one is not closed: a sync of it may be under way."""
        self.offsets = offsets

    def complete_failure_report(self, draft: LedgerDraft) -> None:
        """The ledger says, durably, that a sync failed."""
        self.ledger.apply(draft)
        self.must_report_failure = False

    def fail_failure_report(self) -> None:
        """The disk takes nothing any more. Do not try again: a restart of the kernel shows what the disk has."""
        self.must_report_failure = False
