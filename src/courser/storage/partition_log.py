"""The log of one partition: its segments, how far it is written and synced, and how it is changed.

One owner calls everything here from one thread; ``LogReader`` reads, on any thread. Appends are positional writes on
the caller's thread. All other work that waits for the disk is a job, planned by ``syncing`` and ``upkeep``: its plan
*begins* something, and its completion *completes* or *fails* it, by methods of ``PartitionLog``. Nothing outside this
module assigns to attributes of a log. Messages below ``marks.synced`` are durable.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from courser.errors import DiskFull, InvalidOffset, PartitionOffline, PartitionReadOnly, StorageFailure
from courser.model.clock import CLOCK_LEAD_MAX, Clock
from courser.model.durability import Durability
from courser.records.batch import Batch
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.producers import with_producer
from courser.records.stored_body import EncodedBatch, stamp_encoded
from courser.records.stored_header import NO_PRODUCER, PartitionIdentity, blank_header, stamp
from courser.storage.acknowledgements import Mark, Watermarks
from courser.storage.durable_files import SyncGuard, heals, make_directories, replace_file, storage_failure
from courser.storage.files import File, FileSystem, write_all, write_rest
from courser.storage.jobs import Job, PlannedRemoval, PlannedSync, SealedSegment, UnsyncedSegment
from courser.storage.ledger import (
    Ledger,
    LedgerDraft,
    LedgerNumbers,
    LedgerReading,
    LedgerState,
    OffsetsMark,
    SegmentFacts,
    encode_record,
)
from courser.storage.offset_table import ConsumerKey, OffsetTable
from courser.storage.paths import LEDGER, OFFSETS, log_path
from courser.storage.recovery import RecoveredPartition, recover_partition
from courser.storage.recovery_cases import Oddity, RecoveryFinding, StopKind
from courser.storage.sealed_files import SealedFiles
from courser.storage.segment import Segment, SegmentState, TimeCorrections
from courser.storage.segment_index import IndexCache, SegmentIndex
from courser.storage.settings import LogSettings

_OPEN = SegmentState.OPEN
_SYNCED = Durability.SYNCED
_new_tuple = tuple.__new__
"""Creates an ``Appended`` faster than its constructor."""


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    message_count: int
    timestamp: int


@dataclass(slots=True)
class WriteCounters:
    """What the owner of a partition has done."""

    segment_created_count: int = 0
    segment_deleted_count: int = 0
    """Those that were purged included."""
    segment_purged_count: int = 0


class PartitionLog:
    """The messages of one partition on disk."""

    def __init__(
        self,
        *,
        file_system: FileSystem,
        directory: Path,
        identity: PartitionIdentity,
        settings: LogSettings,
        clock: Clock,
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
        self.lack_of_room = recovered.lack_of_room
        """What the recovery could not write to the full disk, or None. It is repeated until it can."""
        self._last_stop = recovered.stop
        """How the session before ended."""
        self.is_incomplete = recovered.is_incomplete
        """Whether another partition's file is in the place of one of this partition's files."""
        self.is_offline = recovered.is_offline
        """Whether nothing can be read or written, because the files belong to another partition."""
        self.must_report_failure = False
        self.syncs = SyncGuard(file_system, directory)
        self.segments: tuple[Segment, ...] = tuple(recovered.segments)
        """Replaced as a whole and never modified, because readers on other threads may use it."""
        self.unsealed = _unsealed_of(self.segments)
        """Those of them that are not sealed. The last one may be open; the others wait to be sealed."""
        self._found_size, self._found_message_count = _totals_of(self.segments)
        """Bytes and messages that were found when the partition was opened, less those that were removed since."""
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
        self._blank_header = blank_header(identity)
        self._clock = clock
        self._last_timestamp = recovered.last_timestamp
        self._clock_step = clock.step
        """The clock step up to which segment times are corrected."""
        self.is_appending = False
        """Whether a job appends a batch. The open segment stays open until it is done."""
        if self.segments:
            self.follow_clock()

    # --- opening ---

    @staticmethod
    def create(
        file_system: FileSystem, directory: Path, identity: PartitionIdentity, *, below: Path, epoch: int = 0
    ) -> None:
        """Create an empty partition that is durable on return. ``below`` is an existing parent directory.

        ``epoch`` is how often its topic was purged before.

        Raises:
            StorageFailure: the partition already exists.
        """
        make_directories(file_system, directory, below=below)
        PartitionLog.begin(file_system, directory, identity, epoch=epoch)

    @staticmethod
    def begin(file_system: FileSystem, directory: Path, identity: PartitionIdentity, *, epoch: int = 0) -> None:
        """``create`` for a directory that exists and whose name is synced."""
        if any(entry.name == LEDGER for entry in file_system.list_directory(directory)):
            error = FileExistsError(errno.EEXIST, "the partition already exists", str(directory))
            raise storage_failure("create", directory, error)
        replace_file(file_system, directory / LEDGER, encode_record(identity, 1, LedgerNumbers(epoch=epoch)))

    @classmethod
    def new(
        cls,
        file_system: FileSystem,
        directory: Path,
        identity: PartitionIdentity,
        *,
        settings: LogSettings,
        clock: Clock,
        epoch: int = 0,
    ) -> "PartitionLog":
        """Open a partition that ``begin`` has just created, without a look at the disk: there is nothing else."""
        limits = settings.limits
        reading = LedgerReading(LedgerState(LedgerNumbers(epoch=epoch)), 1, 1, (), exists=True)
        recovered = RecoveredPartition(
            ledger=Ledger(file_system, directory / LEDGER, identity, reading, limits),
            offsets=OffsetTable(file_system, directory / OFFSETS, identity, epoch, limits),
            segments=[],
            next_offset=0,
            last_timestamp=0,
            findings=[],
            is_as_left=True,
        )
        return cls(
            file_system=file_system,
            directory=directory,
            identity=identity,
            settings=settings,
            clock=clock,
            recovered=recovered,
        )

    @classmethod
    def open(
        cls,
        file_system: FileSystem,
        directory: Path,
        identity: PartitionIdentity,
        *,
        settings: LogSettings,
        clock: Clock,
        stop: StopKind,
    ) -> "PartitionLog":
        """Open and recover a partition. ``findings`` lists what was found and done."""
        recovered = recover_partition(file_system, directory, identity, settings, stop)
        log = cls(
            file_system=file_system,
            directory=directory,
            identity=identity,
            settings=settings,
            clock=clock,
            recovered=recovered,
        )
        if log.has_unrecorded_corrections:
            log._report_future_times()
        return log

    def _report_future_times(self) -> None:
        known = self.ledger.state.corrections
        count = sum(segment.correction != known.get(segment.base_offset, 0) for segment in self.segments)
        text = f"{count} segments have timestamps in the future; their messages count as stored now"
        self.findings += (
            RecoveryFinding(Oddity.FUTURE_TIME.value, self.directory, text, is_damage=False, is_warning=True),
        )

    def recover_again(self) -> RecoveredPartition:
        """What the start could not do on a full disk. Waits for the disk, and changes nothing here."""
        return recover_partition(self.file_system, self.directory, self.identity, self.settings, self._last_stop)

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
    def readable_end(self) -> int:
        """The offset after the last visible message. After a power cut, it is below ``visible_end``.

        The numbering then continues after a gap, and no message follows the gap until the next one is appended.
        """
        end, gaps = self.visible_end, self.ledger.state.gaps
        for gap in reversed(gaps):
            if gap.end_offset == end:
                end = gap.first_offset
        return end

    @property
    def size(self) -> int:
        """Bytes of all batches on disk."""
        return self._found_size + self.marks.written.size

    @property
    def message_count(self) -> int:
        """Messages on disk, including damaged ones."""
        return self._found_message_count + self.marks.written.message_count

    def count_from(self, offset: int) -> int:
        """The number of visible messages from ``offset`` on. Gaps in the numbering do not count.

        If ``offset`` is in a condensed segment, the number is an upper bound.
        """
        end, count = self.visible_end, 0
        for segment in reversed(self.segments):
            if segment.end_offset <= offset:
                break
            span = max(min(segment.end_offset, end) - max(segment.base_offset, offset), 0)
            # In a condensed segment, only the headers would tell how many of its messages are below the offset.
            count += min(span, segment.message_count)
        return count

    @property
    def closing_count(self) -> int:
        """Segments that wait to be sealed."""
        return len(self.unsealed) - (self.open_segment is not None)

    @property
    def has_unrecorded_corrections(self) -> bool:
        """Whether there are corrections of segment times that the ledger does not have."""
        return self._corrections.are_unrecorded

    @property
    def open_segment(self) -> Segment | None:
        """The segment for the next batch, if it exists."""
        last = self.unsealed[-1] if self.unsealed else None
        return last if last is not None and last.state is _OPEN else None

    # --- what may be done ---

    def check_readable(self) -> None:
        """Raise ``PartitionOffline`` if nothing can be read."""
        if self.is_offline:
            self.check_writable()

    def check_writable(self) -> None:
        """Raise ``PartitionReadOnly`` after a failure, and ``DiskFull`` until the recovery has found room."""
        self.check_removable()
        if self.lack_of_room is not None:
            raise DiskFull("recover", self.directory, OSError(errno.ENOSPC, self.lack_of_room))

    def check_removable(self) -> None:
        """Raise ``PartitionReadOnly`` after a failure. What frees space is possible before the recovery has found room.

        A removal changes the ledger, which is appended to as it was found, and files that the recovery kept.
        """
        if self.failure is not None:
            raise (PartitionOffline if self.is_offline else PartitionReadOnly)(self.directory, self.failure)

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

    # --- appending ---

    def needs_reservation(self, message_count: int) -> bool:
        """Whether these messages must wait for ``upkeep.plan_reservation``, because their offsets are not reserved."""
        # At `synced`, an offset is confirmed only after its message is synced.
        return (
            self.marks.written[0] + message_count > self.reserved_end and self.settings.durability.level is not _SYNCED
        )

    def append(self, batch: Batch, producer: bytes = NO_PRODUCER, sequence: int = 0, timestamp: int = 0) -> Appended:
        """Write a batch. On return it survives a kill, and a power cut once ``marks.synced`` has passed it.

        ``producer`` and ``sequence`` are those of a publish. Without a ``timestamp``, it gets the current time.

        Raises:
            DiskFull: nothing was written. Later appends may succeed.
            PartitionReadOnly: a sync or repair failed earlier.
            StorageFailure: the write failed. The partition is read-only until a restart.
        """
        if self.failure is not None or self.lack_of_room is not None:
            self.check_writable()
        # Cache attributes in locals and do little after the write: a large batch evicts the CPU cache.
        marks, segments, body, frames, count = self.marks, self.segments, batch.body, batch.frames, batch.count
        size = BATCH_HEADER_SIZE + len(body)
        base_offset = marks.written[0]
        assert base_offset + count <= self.reserved_end or not self.needs_reservation(count), "reserve first"
        clock = self._clock
        timestamp = timestamp or clock.now()
        if timestamp < self._last_timestamp or clock.step != self._clock_step:
            timestamp = self._time_after_a_step(timestamp)
        segment, settings = segments[-1] if segments else None, self.settings
        if (
            segment is None
            or segment.file is None
            or segment.state is not _OPEN
            # As ``_is_due``, but for an empty segment.
            or segment.size + size > settings.segment_size
            or timestamp - segment.first_timestamp >= settings.segment_age_max
        ):
            segment = self._next_segment(size, timestamp)
        file, position = segment.file, segment.size
        assert file is not None
        entries = segment.index.entries_of(base_offset, position, frames)
        blank = self._blank_header
        if batch.producer is not None:
            blank = with_producer(blank, batch.producer)
        elif producer is not NO_PRODUCER:
            blank = blank_header(self.identity, producer, sequence)
        # Hash and write last: a large body evicts everything else from the CPU cache.
        if isinstance(batch, EncodedBatch):
            buffers = stamp_encoded(batch, blank, base_offset, timestamp), body
        else:
            buffers = stamp(batch, blank, base_offset, timestamp), body
        try:
            taken = file.write_at(position, buffers)
            if taken != size:
                write_rest(file, position, buffers, taken)
        except OSError as error:
            failure = storage_failure("write", file.path, error)
            raise self._undo(segment, file, failure, may_lack_only_zeros=not body[-1]) from error
        segment.note_batch(base_offset, position, size, timestamp, count, entries)
        self._last_timestamp = timestamp
        marks.write(count, size)
        return _new_tuple(Appended, (base_offset, count, timestamp))

    def _time_after_a_step(self, timestamp: int) -> int:
        """The time of a batch for which the clock says ``timestamp``, though it was set or is behind the last batch."""
        if self._clock.step != self._clock_step or self._last_timestamp - timestamp > CLOCK_LEAD_MAX:
            self.follow_clock()
            timestamp = self._clock.now()
        # Time does not go back within a segment, because lookups rely on it. Small clock corrections are waited out.
        return max(timestamp, self._last_timestamp)

    def follow_clock(self) -> None:
        """After a clock step, correct the times of segments, and start a new segment if needed."""
        if self.is_appending:
            # The next append does it.
            return
        now, step = self._clock.now(), self._clock.step
        moved, self._clock_step = step - self._clock_step, step
        # If a removal fails, its segments return, and the last of them may be the open one.
        segments = (*self.departing, *self.segments)
        self._corrections.follow(segments, now=now, moved=moved)
        last = segments[-1] if segments and segments[-1].state is _OPEN else None
        if last is not None and last.size and (moved or last.correction):
            # A correction applies to a whole segment, so the next message goes into another one.
            last.state = SegmentState.CLOSING
            last = None
        if moved or self._last_timestamp > now + CLOCK_LEAD_MAX:
            self._last_timestamp = max(min(self._last_timestamp, now), last.last_timestamp if last is not None else 0)

    def plan_append(
        self,
        batch: Batch,
        producer: bytes,
        sequence: int,
        timestamp: int,
        on_appended: Callable[[Appended], None],
    ) -> Job:
        """``append`` as a job, for a batch whose hash and write take long. ``on_appended`` is told on completion.

        Nothing else may be appended before it is completed or has failed. If the server is killed meanwhile, recovery
        finds the whole batch, or a torn tail as after any other write.

        Raises:
            PartitionReadOnly, StorageFailure: as ``append``.
        """
        self.check_writable()
        size, base_offset = batch.size, self.marks.written.offset
        timestamp = timestamp or self._clock.now()
        if timestamp < self._last_timestamp or self._clock.step != self._clock_step:
            timestamp = self._time_after_a_step(timestamp)
        segment = self._next_segment(size, timestamp)
        file, position = segment.file, segment.size
        assert file is not None
        entries = segment.index.entries_of(base_offset, position, batch.frames)
        blank = blank_header(self.identity, producer, sequence)
        if batch.producer is not None:
            blank = with_producer(blank, batch.producer)
        self.is_appending = True

        def run() -> None:
            if isinstance(batch, EncodedBatch):
                header = stamp_encoded(batch, blank, base_offset, timestamp)
            else:
                header = stamp(batch, blank, base_offset, timestamp)
            try:
                write_all(file, position, (header, batch.body))
            except OSError as error:
                raise storage_failure("write", file.path, error) from error

        def complete() -> None:
            self.is_appending = False
            # After a failure it is not acknowledged: a restart may find it or not.
            if self.failure is None:
                segment.note_batch(base_offset, position, size, timestamp, batch.count, entries)
                self._last_timestamp = timestamp
                self.marks.write(batch.count, size)
                on_appended(Appended(base_offset, batch.count, timestamp))

        def fail(failure: StorageFailure) -> None:
            self.is_appending = False
            self._undo(segment, file, failure, may_lack_only_zeros=not batch.body[-1])

        return Job("append", run, complete, fail)

    def _undo(
        self, segment: Segment, file: File, failure: StorageFailure, *, may_lack_only_zeros: bool
    ) -> StorageFailure:
        """Cut a batch that was written in part, and say what to raise.

        If the power fails before the next sync, the cut may come undone: the part is then a torn tail like any other.
        So that sync is needed even if no batch follows: a later segment does not count behind a torn tail. One tail is
        not torn: if all that is missing are zeros, the disk adds them, and the batch is whole, at offsets that others
        have by then. So those offsets are reserved again, and that job makes the cut durable first. At `synced`, they
        are confirmed after a sync of the file anyway.
        """
        try:
            file.truncate(segment.size)
            segment.allocated_size = segment.size
            segment.has_unsynced_cut = True
            if may_lack_only_zeros:
                self.reserved_end = self.marks.written.offset
        except OSError as truncate_error:
            self.fail(f"could not truncate {file.path} after a failed write: {truncate_error}")
        if not isinstance(failure, DiskFull):
            self.fail(str(failure))
        return failure

    def _next_segment(self, size: int, timestamp: int) -> Segment:
        """The segment for a batch of ``size`` bytes: the open one, or a new one. Its file is open."""
        segment = self.open_segment
        if segment is None or self._is_due(segment, size, timestamp):
            return self._begin_segment()
        if segment.file is None:
            segment.file = self.open_for_writing(segment)
            self.files.forget(segment)
        return segment

    def open_for_writing(self, segment: Segment) -> File:
        """Open the file of a segment that recovery found. It stays closed until it is needed."""
        path = log_path(self.directory, segment.base_offset)
        try:
            return self.file_system.open(path, writable=True)
        except OSError as error:
            raise storage_failure("open", path, error) from error

    def _is_due(self, segment: Segment, size: int, timestamp: int) -> bool:
        if not segment.size:
            return False
        is_full = segment.size + size > self.settings.segment_size
        return is_full or timestamp - segment.first_timestamp >= self.settings.segment_age_max

    def _begin_segment(self) -> Segment:
        """Switch to a new file without waiting for the disk. Its name is synced with its first data."""
        base_offset = self.marks.written.offset
        path = log_path(self.directory, base_offset)
        try:
            file = self.file_system.open(path, writable=True, create=True)
        except OSError as error:
            raise storage_failure("create", path, error) from error
        self.roll()
        block_size = self.settings.limits.index_block_size
        index = SegmentIndex(self.identity, base_offset, self.settings.index_interval, block_size)
        segment = Segment(base_offset, index)
        segment.file = file
        self.segments = (*self.segments, segment)
        self.unsealed.append(segment)
        self.is_directory_unsynced = True
        self.writes.segment_created_count += 1
        return segment

    def roll(self) -> None:
        """Close the open segment. The next append starts a new one."""
        assert not self.is_appending, "a batch is being appended to it"
        segment = self.open_segment
        if segment is not None and segment.size:
            segment.state = SegmentState.CLOSING

    # --- consumers ---

    def store_offset(self, key: ConsumerKey, offset: int) -> bool:
        """Store a consumer's offset. Returns whether it must be synced before it is acknowledged."""
        self.check_writable()
        # At `synced`, no one has seen unsynced messages: after a power cut, other messages would get their offsets.
        if offset >= self.visible_end:
            raise InvalidOffset(offset=offset, next_offset=self.visible_end)
        is_new = not self.offsets.has_file
        must_sync = self.offsets.store(key, offset)
        # The name of a new file is synced with the next data, as that of a new segment.
        self.is_directory_unsynced |= is_new
        return must_sync

    def delete_offset(self, key: ConsumerKey) -> None:
        """Delete a consumer's offset. It must be synced before it is acknowledged."""
        self.check_writable()
        self.offsets.delete(key)

    # --- jobs: what their plans begin, and what completes or fails them ---

    def begin_sync(self) -> PlannedSync | None:
        """What to sync so that everything written so far is durable; None if it already is."""
        segments = tuple(
            UnsyncedSegment(segment, segment.file, segment.size)
            for segment in (*self.departing, *self.unsealed)
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
            # A purge may remove the segment before the sync is complete.
            unsynced.file.hold()
        if offsets_file is not None:
            offsets_file.hold()
        self.is_directory_unsynced = False
        self.is_syncing = True
        facts = self.open_segment.facts() if self.open_segment is not None else None
        return PlannedSync(mark, segments, with_names, offsets_file, self.offsets.mark, facts)

    def complete_sync(self, planned: PlannedSync) -> None:
        """Record that the planned data and everything before it survives a power cut."""
        self._end_sync(planned)
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
        """Report nothing as durable. After a temporary failure, all of it is due again."""
        self._end_sync(planned)
        if not heals(failure):
            self.fail(str(failure), is_sync=True)
            return
        self.is_directory_unsynced |= planned.with_names
        if planned.offsets_file is not None:
            self.offsets.fail_sync()
        for unsynced in planned.segments:
            unsynced.segment.has_unsynced_cut = True

    def _end_sync(self, planned: PlannedSync) -> None:
        self.is_syncing = False
        for unsynced in planned.segments:
            unsynced.file.release()
        if planned.offsets_file is not None:
            planned.offsets_file.release()

    def begin_writeback(self, file: File) -> None:
        """Note that a write-back has started, during which allocations should wait."""
        self.is_writing_back = True
        file.hold()

    def complete_writeback(self, segment: Segment, file: File, size: int) -> None:
        """Note that the first ``size`` bytes of the segment were written back."""
        file.release()
        self.is_writing_back = False
        segment.writeback_size = size

    def complete_reservation(self, draft: LedgerDraft) -> None:
        """The new end is durable in the ledger. Offsets below it may be confirmed."""
        self.ledger.apply(draft)
        self.reserved_end = max(self.reserved_end, draft.numbers.reserved_end)

    def complete_seal(self, segment: Segment, draft: LedgerDraft, sealed: SealedSegment) -> None:
        """The segment, its index and the ledger's record of it are durable."""
        self.ledger.apply(draft)
        self.unsealed.remove(segment)
        segment.seal()
        self.files.keep(segment, sealed.file)
        keeps_index = self.settings.index_cache is IndexCache.ALL
        segment.index.note_flushed(sealed.index_block_count, None if keeps_index else sealed.index_file)
        if keeps_index:
            sealed.index_file.close()
        segment.is_index_ready = not segment.index.is_partial

    def complete_condensing(self, old: Segment, facts: SegmentFacts, draft: LedgerDraft | None) -> None:
        """A condensed file has the name of the segment's. Without ``draft``, the ledger does not say so yet."""
        if draft is not None:
            self.ledger.apply(draft)
        new = old.replaced_by(facts, self.identity, self.settings)
        self.segments = tuple(new if segment is old else segment for segment in self.segments)
        self._found_size += new.size - old.size
        self._found_message_count += new.message_count - old.message_count
        self.files.drop(old)

    def complete_recovery(self, recovered: RecoveredPartition) -> None:
        """There was room for what the start could not write. The messages are the same as before."""
        before, had_open_segment = self.segments, self.open_segment is not None
        self.offsets.close()
        self.ledger, self.offsets = recovered.ledger, recovered.offsets
        # Whoever has refused writes meanwhile, because the topic was deleted for example, still does.
        self.failure, self.lack_of_room = self.failure or recovered.failure, recovered.lack_of_room
        self.is_incomplete, self.is_as_left = recovered.is_incomplete, recovered.is_as_left
        if recovered.next_offset != self.next_offset:
            self.marks = Watermarks(recovered.next_offset)
        self.start_offset = self.ledger.state.numbers.start_offset
        self.reserved_end = self.ledger.state.numbers.reserved_end
        self.synced_facts, self.synced_offsets = self.ledger.state.progress, None
        self.segments = tuple(recovered.segments)
        self.unsealed = _unsealed_of(self.segments)
        self._found_size, self._found_message_count = _totals_of(self.segments)
        for segment in before:
            self.files.drop(segment)
        if not had_open_segment:
            # It was closed for a purge that is still due, or for a clock that was set.
            self.roll()
        self.follow_clock()

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
        removed = set(gone)
        self.unsealed = [segment for segment in self.unsealed if segment not in removed]
        removed_size, removed_message_count = _totals_of(gone)
        self._found_size -= removed_size
        self._found_message_count -= removed_message_count
        self.start_offset = start_offset
        return removal

    def complete_removal(self, removal: PlannedRemoval) -> None:
        """The new start is durable in the ledger, and the files are removed."""
        self.ledger.apply(removal.draft)
        self.departing = ()
        self.writes.segment_deleted_count += len(removal.segments)
        for segment in removal.segments:
            self.files.drop(segment)

    def fail_removal(self, removal: PlannedRemoval, failure: StorageFailure, *, is_recorded: bool) -> None:
        """If ``is_recorded``, the ledger has the new start. Otherwise no file was removed, and the messages remain."""
        if is_recorded:
            self.ledger.apply(removal.draft)
        if heals(failure) and not is_recorded:
            self.departing, self.segments = (), (*removal.segments, *self.segments)
            self.unsealed = _unsealed_of(self.segments)
            returned_size, returned_message_count = _totals_of(removal.segments)
            self._found_size += returned_size
            self._found_message_count += returned_message_count
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
        """Use another file of stored offsets."""
        self.offsets.close()
        self.offsets = offsets

    def complete_failure_report(self, draft: LedgerDraft) -> None:
        """The failed sync is durably recorded in the ledger."""
        self.ledger.apply(draft)
        self.must_report_failure = False

    def fail_failure_report(self) -> None:
        """The disk accepts no more writes. Do not retry: only a restart shows what is on disk."""
        self.must_report_failure = False

    # --- the end ---

    def release_files(self) -> None:
        """Close all files. The log must not be used afterwards."""
        self.offsets.close()
        self.files.close()
        for segment in (*self.departing, *self.segments):
            file, segment.file = segment.file, None
            if file is not None:
                file.close()
            segment.index.close()


def _unsealed_of(segments: Sequence[Segment]) -> list[Segment]:
    return [segment for segment in segments if segment.state is not SegmentState.SEALED]


def _totals_of(segments: Sequence[Segment]) -> tuple[int, int]:
    """The sizes and message counts of these segments, added up."""
    return sum(segment.size for segment in segments), sum(segment.message_count for segment in segments)
