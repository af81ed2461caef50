"""The log of one partition: open, append, read, store consumer offsets.

One owner calls everything here from one thread, except ``read`` and ``offset_at_time``, which may run on others.
Appends are positional writes on the caller's thread. All other work that waits for the disk is a job, planned by
``syncing`` and ``upkeep``; jobs change the log by the methods of ``partition_state``. Messages below ``marks.synced``
are durable.
"""

import errno
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from courser.errors import DiskFull, InvalidOffset, PartitionReadOnly, StorageFailure
from courser.model.clock import CLOCK_LEAD_MAX, Clock
from courser.model.durability import Durability
from courser.records.batch import Batch
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_body import EncodedBatch, stamp_encoded
from courser.records.stored_header import NO_PRODUCER, PartitionIdentity, blank_header, stamp
from courser.storage.durable_files import make_directories, storage_failure
from courser.storage.files import File, FileSystem, write_all, write_rest
from courser.storage.jobs import Job
from courser.storage.ledger import Ledger, LedgerReading, LedgerState
from courser.storage.log_reading import ReadCounters, SegmentReader
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_state import PartitionState
from courser.storage.paths import LEDGER, log_path
from courser.storage.read_result import Collector, ReadBuffer, ReadResult, SkipReason
from courser.storage.recovery import RecoveredPartition, recover_partition
from courser.storage.recovery_cases import Oddity, RecoveryFinding, StopKind
from courser.storage.segment import Segment, SegmentState
from courser.storage.segment_index import SegmentIndex
from courser.storage.settings import LogSettings

_base_offset = attrgetter("base_offset")
_OPEN = SegmentState.OPEN
_SYNCED = Durability.SYNCED
_new_tuple = tuple.__new__
"""Creates an ``Appended`` faster than its constructor."""


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    message_count: int
    timestamp: int


class PartitionLog(PartitionState):
    """The messages of one partition on disk."""

    is_offline = False
    """Whether nothing can be read or written, because the files belong to another partition."""

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
        super().__init__(file_system, directory, identity, settings, recovered)
        self._blank_header = blank_header(identity)
        self._clock = clock
        self._last_timestamp = recovered.last_timestamp
        self._clock_step = clock.step
        """The clock step up to which segment times are corrected."""
        self.is_appending = False
        """Whether a job appends a batch. The open segment stays open until it is done."""
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
        nothing = LedgerReading(LedgerState(), 0, 0, (), exists=False)
        ledger = Ledger(file_system, directory / LEDGER, identity, nothing)
        ledger.file.rewrite(ledger.draft(epoch=epoch))

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

    # --- facts ---

    @property
    def reads(self) -> ReadCounters:
        """What reads have met."""
        return self._reader.counters

    # --- appending ---

    def needs_reservation(self, message_count: int) -> bool:
        """Whether these messages must wait for ``upkeep.plan_reservation``, because their offsets are not reserved."""
        # At `synced`, an offset is confirmed only after its message is synced.
        return (
            self.marks.written[0] + message_count > self.reserved_end and self.settings.durability.level is not _SYNCED
        )

    def append(self, batch: Batch, producer: bytes = NO_PRODUCER, sequence: int = 0, timestamp: int = 0) -> Appended:
        """Write a batch. On return it survives a kill, and a power cut once ``marks.synced`` has passed it.

        Without a ``timestamp``, it gets the current time.

        Raises:
            DiskFull: nothing was written. Later appends may succeed.
            PartitionReadOnly: a sync or repair failed earlier.
            StorageFailure: the write failed. The partition is read-only until a restart.
        """
        if self.failure is not None:
            raise PartitionReadOnly(self.directory, self.failure)
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
        if producer is not NO_PRODUCER:
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

    def check_readable(self) -> None:
        """Raise ``PartitionOffline`` if the partition is offline (see ``OfflineLog``)."""

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
        self.is_directory_unsynced = True
        self.writes.segment_created_count += 1
        return segment

    def roll(self) -> None:
        """Close the open segment. The next append starts a new one."""
        assert not self.is_appending, "a batch is being appended to it"
        segment = self.open_segment
        if segment is not None and segment.size:
            segment.state = SegmentState.CLOSING

    def roll_if_old(self) -> None:
        """Close the open segment if its first message is old, so that messages of slow topics expire too."""
        segment = self.open_segment
        now = max(self._clock.now(), self._last_timestamp)
        if segment is not None and not self.is_appending and self._is_due(segment, 0, now):
            segment.state = SegmentState.CLOSING

    # --- reading ---

    def read(
        self, offset: int, count: int, size_max: int, buffer: ReadBuffer | None = None, wait: bool = True
    ) -> ReadResult:
        """Messages from ``offset`` on: at most ``count``, at most ``size_max`` bytes, but at least one if there is one.

        Raises:
            BlockingIOError: with ``wait=False``, if the read must wait for the disk. Repeat it on another thread.
            LargeRead: with ``wait=False``, if it reads a lot. The same.
            MemoryNeeded: ``buffer`` may not have enough memory for the first message, or for the batch that it is in.
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
        """Skip the offsets between two segments. Returns False if that must wait for the start of the next read."""
        gaps = self.ledger.state.gaps
        is_loss = any(gap.is_loss for gap in gaps if gap.first_offset < end_offset and first_offset < gap.end_offset)
        if is_loss and collector.message_count:
            return False
        collector.skip(first_offset, end_offset, SkipReason.LOST if is_loss else SkipReason.RESERVED)
        return True

    def offset_at_time(self, timestamp: int, *, wait: bool = True) -> int:
        """The first offset whose message was appended at ``timestamp`` or later; the next offset if there is none.

        If the clock was wrong at the time, this uses the corrected time, not the one in the message.
        """
        for segment in self.segments:
            if segment.last_stored_at >= timestamp and segment.end_offset > self.start_offset:
                return self._reader.offset_at_time(segment, max(timestamp - segment.correction, 0), wait=wait)
        return self.next_offset

    def time_at(self, offset: int, *, wait: bool = True) -> int | None:
        """When the message at ``offset``, or else the next one, was appended; None if there is none.

        If the clock was wrong at the time, this uses the corrected time, not the one in the message.

        Raises:
            BlockingIOError: with ``wait=False``, if the disk has to be waited for.
            StorageFailure: the disk cannot be read.
        """
        segments = self.segments
        first = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        segment = next((segment for segment in segments[first:] if segment.end_offset > offset), None)
        if segment is None:
            return None
        try:
            return self._reader.time_at(segment, max(offset, segment.base_offset), wait=wait) + segment.correction
        except BlockingIOError:
            raise
        except OSError as error:
            raise storage_failure("read", log_path(self.directory, segment.base_offset), error) from error

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

    def last_sequence(self, producer: bytes, *, first_offset: int) -> int | None:
        """The highest sequence of a producer's batches from ``first_offset`` on; None if there are none.

        A start asks this to finish what the last session began. Damage is skipped: a producer's batches are in order,
        so a later one proves that the earlier ones were written. May wait for the disk.

        Raises:
            StorageFailure: a file cannot be read.
        """
        found: int | None = None
        for segment in self.segments:
            if segment.end_offset <= first_offset:
                continue
            try:
                for header in self._reader.headers_from(segment, max(first_offset, segment.base_offset)):
                    if header.producer == producer:
                        found = header.sequence
            except OSError as error:
                raise storage_failure("read", log_path(self.directory, segment.base_offset), error) from error
        return found

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

    def offset_of_last(self, count: int, *, wait: bool = True) -> int:
        """The offset of the first of the newest ``count`` visible messages. Gaps in the numbering do not count.

        Raises:
            BlockingIOError: with ``wait=False``, if the disk has to be waited for.
            StorageFailure: the disk cannot be read.
        """
        end = self.visible_end
        for segment in reversed(self.segments):
            segment_end = min(segment.end_offset, end)
            present = segment.message_count - (segment.end_offset - segment_end)
            if count <= present:
                if segment.missing_count:
                    return self._nth_last(segment, count + segment.end_offset - segment_end, wait=wait)
                return segment_end - count
            count -= max(present, 0)
        return self.start_offset

    def _nth_last(self, segment: Segment, count: int, *, wait: bool) -> int:
        if not wait:
            # It looks at every header of the segment.
            raise BlockingIOError
        try:
            return self._reader.offset_of_last(segment, count)
        except OSError as error:
            raise storage_failure("read", log_path(self.directory, segment.base_offset), error) from error

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

    def release_files(self) -> None:
        """Close all files. The log must not be used afterwards."""
        self.offsets.close()
        self.files.close()
        for segment in self.segments:
            if segment.file is not None:
                segment.file.close()
                segment.file = None
