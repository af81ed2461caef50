"""The log of one partition: append, read, trim, purge.

One owner calls everything here from one thread, except ``read``, ``offset_at_time`` and the ``run`` of jobs, which may
run on others. Appends are positional writes on the caller's thread; all that waits for the disk is a job: see
``syncing`` and ``upkeep``. What is durable when: ``marks.synced``.
"""

import errno
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

from courser.errors import DiskFull, InvalidOffset, PartitionReadOnly, StorageFailure
from courser.model.clock import CLOCK_LEAD_MAX, Clock
from courser.model.durability import Durability
from courser.records.batch import Batch
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_header import NO_PRODUCER, PartitionIdentity, blank_header, stamp
from courser.storage.durable_files import make_directories, storage_failure, sync_file, sync_names_if_possible
from courser.storage.files import File, FileSystem, write_rest
from courser.storage.ledger import Ledger, LedgerReading, LedgerState, OffsetsMark
from courser.storage.offset_table import ConsumerKey
from courser.storage.paths import LEDGER, log_path
from courser.storage.read_result import Collector, ReadBuffer, ReadResult, SkipReason
from courser.storage.reading import ReadCounters, SegmentReader
from courser.storage.recovery import RecoveredPartition, recover_partition
from courser.storage.recovery_cases import Finding, Oddity, StopKind
from courser.storage.sealed_files import SealedFiles
from courser.storage.segment import Segment, SegmentState
from courser.storage.segment_index import SegmentIndex
from courser.storage.settings import LogSettings
from courser.storage.watermarks import Watermarks

_base_offset = attrgetter("base_offset")
_OPEN = SegmentState.OPEN
_SYNCED = Durability.SYNCED
_new_tuple = tuple.__new__
"""``Appended(...)`` without its steps in between."""
Changed = TypeVar("Changed")


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    message_count: int
    timestamp: int


@dataclass(slots=True)
class WriteCounters:
    """What the owner of a partition has done."""

    size: int = 0
    """Bytes appended."""
    segment_created_count: int = 0
    segment_deleted_count: int = 0


class PartitionLog:
    """Messages of one partition, on disk and in order."""

    is_offline = False
    """Whether nothing can be read or written, because the files here are another partition's."""

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
        self._blank_header = blank_header(identity)
        self.settings = settings
        self._clock = clock
        self.ledger = recovered.ledger
        self.offsets = recovered.offsets
        self.findings: tuple[Finding, ...] = tuple(recovered.findings)
        self.failure: str | None = recovered.failure
        """Why nothing more is written here, or None."""
        self.is_incomplete = recovered.is_incomplete
        """Whether another partition's file stands where a file of this one may belong."""
        self.must_report_failure = False
        self.has_sync_failed = False
        """Set at once by the job whose sync fails: a sync by another job may then succeed without having done it."""
        self.segments: tuple[Segment, ...] = tuple(recovered.segments)
        """Replaced as a whole, never changed: readers on other threads hold on to what they took."""
        self.is_as_left = recovered.is_as_left
        """Whether the open segment, its index and its recovery point on disk are as a clean stop leaves them."""
        self.departing: tuple[Segment, ...] = ()
        """Segments of a removal under way: gone for readers, but a crash may still bring them back."""
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
        self._last_timestamp = recovered.last_timestamp
        self._clock_step = clock.step
        """Of the clock, as far as it was followed."""
        self._session_start = recovered.next_offset
        """The first offset of this session. How old the messages from there on are, the monotonic clock knows."""
        self.has_new_corrections = False
        """Whether the ledger does not know yet what is known of the times of segments."""
        self.files = SealedFiles(file_system, directory, identity, settings)
        self._reader = SegmentReader(
            identity,
            settings=settings,
            file_of=self.files.file_of,
            prepare_index=self.files.prepare_index,
            rebuild_index=self.files.rebuild_index,
        )
        self.follow_clock()

    # --- opening ---

    @staticmethod
    def create(
        file_system: FileSystem, directory: Path, identity: PartitionIdentity, *, below: Path, epoch: int = 0
    ) -> None:
        """Make an empty partition, durable on return. ``below`` is a directory above it that exists.

        ``epoch`` is how often its topic was purged before it was made.

        Raises:
            StorageFailure: there is a partition already.
        """
        make_directories(file_system, directory, below=below)
        PartitionLog.begin(file_system, directory, identity, epoch=epoch)

    @staticmethod
    def begin(file_system: FileSystem, directory: Path, identity: PartitionIdentity, *, epoch: int = 0) -> None:
        """The same for a directory that was made, and whose name is synced."""
        if any(entry.name == LEDGER for entry in file_system.list_directory(directory)):
            error = FileExistsError(errno.EEXIST, "there is a partition already", str(directory))
            raise storage_failure("creation", directory, error)
        nothing = LedgerReading(LedgerState(), 0, 0, (), exists=False)
        ledger = Ledger(file_system, directory / LEDGER, identity, nothing)
        ledger.note(epoch=epoch)
        ledger.rewrite(ledger.snapshot())

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
        """Open a partition, whatever the last session left of it. ``findings`` says what was done."""
        recovered = recover_partition(file_system, directory, identity, settings, stop)
        log = cls(
            file_system=file_system,
            directory=directory,
            identity=identity,
            settings=settings,
            clock=clock,
            recovered=recovered,
        )
        if log.has_new_corrections:
            known = log.ledger.state.corrections
            count = sum(segment.correction != known.get(segment.base_offset, 0) for segment in log.segments)
            text = f"{count} segments have times in the future: their messages count as stored now"
            log.findings += (Finding(Oddity.FUTURE_TIME.value, directory, text, is_damage=False, is_warning=True),)
        return log

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
    def reads(self) -> ReadCounters:
        """What reads have met."""
        return self._reader.counters

    @property
    def closing_count(self) -> int:
        """Segments that wait to be sealed."""
        return sum(segment.state is SegmentState.CLOSING for segment in self.segments)

    @property
    def open_segment(self) -> Segment | None:
        """The segment that takes the next batch, if there is one already."""
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.state is SegmentState.OPEN else None

    # --- appending ---

    def needs_reservation(self, message_count: int) -> bool:
        """Whether these messages must wait for ``upkeep.plan_reservation``: their offsets could be given out twice."""
        # At `synced` nobody learns of an offset before its message is safe.
        return (
            self.marks.written[0] + message_count > self.reserved_end and self.settings.durability.level is not _SYNCED
        )

    def append(self, batch: Batch, producer: bytes = NO_PRODUCER, sequence: int = 0, timestamp: int = 0) -> Appended:
        """Write a batch. On return a kill cannot take it; a power cut can until ``marks.synced`` has passed it.

        Without a ``timestamp`` it gets the time of now.

        Raises:
            DiskFull: nothing was kept, later appends may work.
            PartitionReadOnly: a sync or a repair failed before.
            StorageFailure: the disk refused; nothing more is taken until a restart.
        """
        if self.failure is not None:
            raise PartitionReadOnly(self.directory, self.failure)
        # Little is called by name here, and little comes behind the write: with large batches every step is a cold one.
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
        if producer is not NO_PRODUCER:
            blank = blank_header(self.identity, producer, sequence)
        # Last, and with little behind it: a large body drives all else out of the processor's caches.
        buffers = stamp(batch, blank, base_offset, timestamp), body
        try:
            taken = file.write_at(position, buffers)
            if taken != size:
                write_rest(file, position, buffers, taken)
        except OSError as error:
            raise self._undo(segment, file, error, may_lack_only_zeros=not body[-1]) from error
        segment.note_batch(base_offset, position, size, timestamp, count, entries)
        self._last_timestamp = timestamp
        self.writes.size += size
        marks.write(count, size)
        return _new_tuple(Appended, (base_offset, count, timestamp))

    def _time_after_a_step(self, timestamp: int) -> int:
        """The time of a batch for which the clock says ``timestamp``, though it was set or is behind the last batch."""
        if self._clock.step != self._clock_step or self._last_timestamp - timestamp > CLOCK_LEAD_MAX:
            self.follow_clock()
            timestamp = self._clock.now()
        # Within a segment time does not go back: look-ups rely on it. Small corrections of the clock are waited out.
        return max(timestamp, self._last_timestamp)

    def follow_clock(self) -> None:
        """Take notice of a clock that was set: correct the times of segments, and let new ones begin anew.

        What this session stored is younger or older by as much as the clock was moved. Of what earlier sessions stored
        only times in the future are known to be wrong: those messages count as stored now, which is the latest that
        they can have been.
        """
        now, step = self._clock.now(), self._clock.step
        moved, self._clock_step = step - self._clock_step, step
        for segment in self.segments:
            if not segment.batch_count:
                # A refused write left it empty: what goes into it comes after the step.
                continue
            correction = segment.correction
            if segment.end_offset > self._session_start:
                correction += moved
            elif correction < 0 < moved:
                # It was this clock that was behind, not the one of that time that was ahead.
                correction = min(correction + moved, 0)
            if segment.last_timestamp + correction > now + CLOCK_LEAD_MAX:
                correction = now - segment.last_timestamp
            if correction != segment.correction:
                segment.correction = correction
                self.has_new_corrections = True
        last = self.open_segment
        if last is not None and (moved or last.correction):
            # A correction holds for a whole segment, so the next message goes into another one.
            self.roll()
            last = self.open_segment
        if moved or self._last_timestamp > now + CLOCK_LEAD_MAX:
            self._last_timestamp = max(min(self._last_timestamp, now), last.last_timestamp if last is not None else 0)

    def check_readable(self) -> None:
        """Raise ``PartitionOffline`` where an answer without messages would be wrong: see ``OfflineLog``."""

    def check_writable(self) -> None:
        """Raise ``PartitionReadOnly`` after a failure."""
        if self.failure is not None:
            raise PartitionReadOnly(self.directory, self.failure)

    def _undo(self, segment: Segment, file: File, error: OSError, *, may_lack_only_zeros: bool) -> StorageFailure:
        """Cut a batch that was written in part, and say what to raise.

        If the power fails before the next sync, the cut may come undone: the part is then a torn tail like any other.
        So that sync is needed even if no batch follows: a later segment does not count behind a torn tail. One tail is
        not torn: if all that is missing are zeros, the disk adds them, and the batch is whole, at offsets that others
        have by then. So that cut is made durable at once, before they are given again.
        """
        failure = storage_failure("write", file.path, error)
        try:
            file.truncate(segment.size)
            segment.allocated_size = segment.size
            segment.has_unsynced_cut = True
            if may_lack_only_zeros:
                self.sync_file(file)
        except OSError as truncate_error:
            self.fail(f"{file.path} could not be cut back after a failed write: {truncate_error}")
        except StorageFailure as sync_failure:
            self.fail(str(sync_failure), is_sync=True)
        if not isinstance(failure, DiskFull):
            self.fail(str(failure))
        return failure

    def _next_segment(self, size: int, timestamp: int) -> Segment:
        """The segment for a batch of ``size`` bytes: the open one, its file opened, or a new one."""
        segment = self.open_segment
        if segment is None or self._is_due(segment, size, timestamp):
            return self._begin_segment()
        if segment.file is None:
            segment.file = self.open_for_writing(segment)
            self.files.forget(segment.base_offset)
        return segment

    def open_for_writing(self, segment: Segment) -> File:
        """The file of a segment that was found at the start: it is not open before it is needed."""
        path = log_path(self.directory, segment.base_offset)
        try:
            return self.file_system.open(path, writable=True)
        except OSError as error:
            raise storage_failure("opening", path, error) from error

    def _is_due(self, segment: Segment, size: int, timestamp: int) -> bool:
        if not segment.size:
            return False
        is_full = segment.size + size > self.settings.segment_size
        return is_full or timestamp - segment.first_timestamp >= self.settings.segment_age_max

    def _begin_segment(self) -> Segment:
        """Switch to a new file. Nothing waits for the disk: the name is synced with the first data in it."""
        base_offset = self.marks.written.offset
        path = log_path(self.directory, base_offset)
        try:
            file = self.file_system.open(path, writable=True, create=True)
        except OSError as error:
            raise storage_failure("creation", path, error) from error
        self.roll()
        block_size = self.settings.limits.index_block_size
        index = SegmentIndex(self.identity, base_offset, self.settings.index_interval, block_size)
        segment = Segment(base_offset, index)
        segment.file = file
        self.segments = (*self.segments, segment)
        self.is_directory_unsynced = True
        self.writes.segment_created_count += 1
        return segment

    def roll(self) -> None:
        """Close the open segment; the next append begins a new one."""
        segment = self.open_segment
        if segment is not None and segment.size:
            segment.state = SegmentState.CLOSING

    def roll_if_old(self) -> None:
        """Close the open segment if its first message is old enough: a slow topic's messages must expire too."""
        segment = self.open_segment
        now = max(self._clock.now(), self._last_timestamp)
        if segment is not None and self._is_due(segment, 0, now):
            segment.state = SegmentState.CLOSING

    def fail(self, reason: str, *, is_sync: bool = False) -> None:
        """Take no more writes. The first reason stays: it is the cause of the others.

        After a failed sync the next one might succeed without having done anything, so there is none any more; and
        the next start is told, by ``upkeep``, not to believe what the kernel shows.
        """
        if self.failure is None:
            self.failure = reason
        self.must_report_failure = self.must_report_failure or is_sync

    def sync_file(self, file: File) -> None:
        """Sync data; after one failure no other sync is believed. May run on any thread."""
        self._refuse_after_failure(file.path)
        try:
            sync_file(file)
        except StorageFailure:
            self.has_sync_failed = True
            raise

    def sync_names(self) -> None:
        """The same for the names of the files."""
        self._refuse_after_failure(self.directory)
        self.noticing(lambda: sync_names_if_possible(self.file_system, self.directory))()

    def _refuse_after_failure(self, path: Path) -> None:
        if self.has_sync_failed:
            raise StorageFailure("sync", path, OSError("an earlier sync of this partition failed"))

    def noticing(self, run: Callable[[], None]) -> Callable[[], None]:
        """``run``, but a failed sync in it is known at once, before the owner hears of it.

        Of whatever file: the sync of a directory that fails takes the names of other files with it.
        """

        def notice() -> None:
            try:
                run()
            except StorageFailure as failure:
                self.has_sync_failed = self.has_sync_failed or failure.operation == "sync"
                raise

        return notice

    # --- reading ---

    def read(
        self, offset: int, *, count: int, size_max: int, buffer: ReadBuffer | None = None, wait: bool = True
    ) -> ReadResult:
        """Messages from ``offset`` on: at most ``count``, at most ``size_max`` bytes, but at least one if there is one.

        Raises:
            BlockingIOError: with ``wait=False``, if the disk has to be waited for; ask again on another thread.
            StorageFailure: the disk cannot be read.
        """
        collector = Collector(count, size_max)
        if buffer is None:
            buffer = ReadBuffer(self.settings.limits.read_buffer_size)
        segments, marks = self.segments, self.marks
        # As ``visible_end``.
        end_offset = (marks.synced if self.settings.durability.level is _SYNCED else marks.written)[0]
        if offset < self.start_offset:
            collector.skip(offset, self.start_offset, SkipReason.TRIMMED)
            offset = self.start_offset
        if segments and offset >= segments[-1].base_offset:
            number = len(segments) - 1
        else:
            number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        while number < len(segments) and offset < end_offset and not collector.is_full:
            segment = segments[number]
            if offset < segment.base_offset:
                if not self._pass_gap(offset, segment.base_offset, collector):
                    break
                offset = segment.base_offset
            if offset < segment.end_offset and offset < end_offset:
                try:
                    offset = self._reader.read(segment, offset, end_offset, collector, buffer, wait)
                except BlockingIOError:
                    raise
                except OSError as error:
                    raise storage_failure("read", log_path(self.directory, segment.base_offset), error) from error
                if offset < segment.end_offset:
                    break
            number += 1
        return collector.result(offset)

    def _pass_gap(self, first_offset: int, end_offset: int, collector: Collector) -> bool:
        """Offsets between two segments. Return whether to go on: a loss is only met at the beginning of a read."""
        gaps = self.ledger.state.gaps
        is_loss = any(gap.is_loss for gap in gaps if gap.first_offset < end_offset and first_offset < gap.end_offset)
        if is_loss and collector.message_count:
            return False
        collector.skip(first_offset, end_offset, SkipReason.LOST if is_loss else SkipReason.RESERVED)
        return True

    def offset_at_time(self, timestamp: int, *, wait: bool = True) -> int:
        """The first offset whose message was appended at ``timestamp`` or later; the next offset if there is none.

        Where the clock is known to have been wrong, that is not the time which the message carries.
        """
        for segment in self.segments:
            if segment.last_stored_at >= timestamp and segment.end_offset > self.start_offset:
                return self._reader.offset_at_time(segment, max(timestamp - segment.correction, 0), wait=wait)
        return self.next_offset

    def position_of(self, segment: Segment, offset: int) -> int:
        """Where in a segment's file a batch begins that holds ``offset`` or lies before it. May wait for the disk."""
        return self._reader.position_of(segment, offset)

    def offset_of_last(self, count: int) -> int:
        """Where the newest ``count`` visible messages begin: gaps in the numbering do not count."""
        end = self.visible_end
        for segment in reversed(self.segments):
            segment_end = min(segment.end_offset, end)
            present = segment.message_count - (segment.end_offset - segment_end)
            if count <= present:
                return segment_end - count
            count -= max(present, 0)
        return self.start_offset

    # --- consumers ---

    def store_offset(self, key: ConsumerKey, offset: int) -> bool:
        """Remember how far a consumer got. Return whether it must be synced before it is acknowledged."""
        self.check_writable()
        # At `synced` nobody has seen a message behind the synced mark: a power cut would give its offset to another.
        if offset >= self.visible_end:
            raise InvalidOffset(offset=offset, next_offset=self.visible_end)
        return self._change_offsets(lambda: self.offsets.store(key, offset))

    def delete_offset(self, key: ConsumerKey) -> None:
        """Forget a consumer. Must be synced before it is acknowledged."""
        self.check_writable()
        self._change_offsets(lambda: self.offsets.delete(key))

    def _change_offsets(self, change: Callable[[], Changed]) -> Changed:
        try:
            return change()
        except StorageFailure as failure:
            if failure.operation == "sync":
                # The first store makes the file: what failed there is the directory, with the names of segments in it.
                self.has_sync_failed = True
                self.fail(str(failure), is_sync=True)
            raise

    def release_files(self) -> None:
        """Close every descriptor. The log is not to be used afterwards."""
        self.offsets.close()
        self.files.close()
        for segment in self.segments:
            if segment.file is not None:
                segment.file.close()
                segment.file = None
