"""What a partition needs done in the background, as jobs: at most one of them runs at a time.

None of this is on the path of a send, with one exception: offsets must be reserved before they are confirmed, and a
send waits if the reservation comes late. The ledger is only ever touched by these jobs.
"""

import contextlib
from collections.abc import Callable
from itertools import takewhile

from courser.errors import DiskFull, StorageFailure
from courser.model.durability import Durability
from courser.storage.durable_files import heals, storage_failure, sync_directory, sync_file, unlink_if_there
from courser.storage.files import File
from courser.storage.identity_search import log_owner
from courser.storage.jobs import Job, perform
from courser.storage.ledger import Progress, Sealed, SyncFailure, TimeCorrection
from courser.storage.offset_table import OffsetTable
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import OFFSETS, index_path, log_path
from courser.storage.sealed_files import write_index_file
from courser.storage.segment import Segment, SegmentState
from courser.storage.segment_index import IndexCache
from courser.storage.syncing import plan_sync

_PROGRESS_SIZE = 16 * 1024 * 1024
"""Bytes synced since the last recovery point before the next one is set: they cost a write, not a sync."""
_BATCHES_AHEAD = 32
"""Batches of the size seen so far that space is allocated for: a few milliseconds of sends at full speed."""


def plan_upkeep(log: PartitionLog) -> Job | None:
    """The most urgent thing to do, or None."""
    if log.must_report_failure:
        return _plan_failure_report(log)
    if log.failure is not None:
        return None
    return (
        plan_reservation(log)
        or _plan_allocation(log)
        or plan_seal(log)
        or _plan_progress(log)
        or _plan_corrections(log)
        or _plan_index_flush(log)
        or _plan_ledger_rewrite(log)
        or _plan_offsets_rewrite(log)
        or _plan_offsets_mark(log)
    )


def _fail_unless_it_heals(log: PartitionLog, failure: StorageFailure) -> None:
    """A full disk heals, and so does a lack of descriptors: the job is planned again. Anything else is for good."""
    if not heals(failure):
        log.fail(str(failure), is_sync=failure.operation == "sync")


def _job(log: PartitionLog, name: str, run: Callable[[], None], complete: Callable[[], None]) -> Job:
    return Job(name, log.noticing(run), complete, lambda failure: _fail_unless_it_heals(log, failure))


def _plan_failure_report(log: PartitionLog) -> Job:
    def run() -> None:
        log.ledger.append(log.ledger.note(SyncFailure()), sync=True)

    def done(_failure: StorageFailure | None = None) -> None:
        # If the disk takes nothing any more, so be it: a restart of the kernel shows the truth anyway.
        log.must_report_failure = False

    return Job("failure report", run, done, done)


# --- offsets ahead ---


def plan_reservation(log: PartitionLog, message_count: int = 0) -> Job | None:
    """Reserve offsets, if few are left or ``message_count`` need them."""
    if log.settings.durability.level is Durability.SYNCED:
        return None
    next_offset = log.marks.written.offset
    settings = log.settings
    # Many times what the partition has taken so far: a small one leaves a small gap, and a busy one is soon at the
    # largest block. Each reservation is a sync beside sends, which costs them more than a gap will ever cost anybody.
    taken_count = log.marks.written.message_count + message_count
    block = min(max(64 * taken_count, settings.reservation_min), settings.reservation_max)
    left = log.reserved_end - next_offset
    if left >= message_count and left >= block // 8:
        return None
    reserved_end = next_offset + message_count + block

    def run() -> None:
        # Durable before any of these offsets is confirmed: after a power cut numbering goes on above them.
        log.ledger.append(log.ledger.note(reserved_end=reserved_end), sync=True)

    def complete() -> None:
        log.reserved_end = max(log.reserved_end, reserved_end)

    return _job(log, "reservation", run, complete)


# --- segments that are full ---


def plan_seal(log: PartitionLog) -> Job | None:
    """Seal the oldest segment that waits for it."""
    segment = next((segment for segment in log.segments if segment.state is SegmentState.CLOSING), None)
    if segment is None:
        return None
    size = segment.size
    path = index_path(log.directory, segment.base_offset)
    written: list[tuple[File, File, int]] = []

    def run() -> None:
        file = segment.file or log.open_for_writing(segment)
        try:
            file.truncate(size)
        except OSError as error:
            raise storage_failure("truncation", file.path, error) from error
        log.sync_file(file)
        position, blocks = segment.index.unflushed(covered_size=size)
        index_file = write_index_file(log.file_system, path, position, blocks)
        sync_file(index_file)
        # The names of both must be safe before the ledger says that nobody needs to look at them again.
        log.sync_names()
        log.ledger.append(log.ledger.note(Sealed(segment.facts())), sync=True)
        written.append((file, index_file, len(blocks) // segment.index.block_size))

    def complete() -> None:
        segment.synced_size = size
        segment.state = SegmentState.SEALED
        segment.file = None
        ((file, index_file, block_count),) = written
        log.files.keep(segment.base_offset, file)
        keeps_index = log.settings.index_cache is IndexCache.ALL
        segment.index.note_flushed(block_count, None if keeps_index else index_file)
        segment.is_index_ready = not segment.index.is_partial

    return _job(log, "seal", run, complete)


# --- hints for the next start, and for the kernel ---


def _plan_progress(log: PartitionLog) -> Job | None:
    facts, known = log.synced_facts, log.ledger.state.progress
    if facts is None or not facts.size:
        return None
    known_size = known.size if known is not None and known.base_offset == facts.base_offset else 0
    if facts.size - known_size < min(_PROGRESS_SIZE, log.settings.recovery_point_size):
        return None

    def run() -> None:
        # Not synced: if the power takes it, the recovery point before it is used.
        log.ledger.append(log.ledger.note(Progress(facts), last_timestamp=facts.last_timestamp), sync=False)

    return _job(log, "recovery point", run, lambda: None)


def _plan_corrections(log: PartitionLog) -> Job | None:
    """Write down what a step of the clock has taught about the times of segments."""
    if not log.has_new_corrections:
        return None
    known = log.ledger.state.corrections
    found = [
        TimeCorrection(segment.base_offset, segment.correction)
        for segment in log.segments
        if segment.correction != known.get(segment.base_offset, 0)
    ]
    log.has_new_corrections = False
    if not found:
        return None

    def run() -> None:
        # Not synced: if the power takes it, times in the future are noticed again at the next start.
        log.ledger.append(b"".join(map(log.ledger.note, found)), sync=False)

    return _job(log, "time correction", run, lambda: None)


def _plan_offsets_mark(log: PartitionLog) -> Job | None:
    """Remember how much of the stored offsets is synced, so that a start notices if less is there."""
    mark, known = log.synced_offsets, log.ledger.state.offsets_mark
    if mark is None or (known is not None and mark <= known):
        return None
    is_same_file = known is not None and (mark.epoch, mark.generation) == (known.epoch, known.generation)
    if is_same_file and known is not None and mark.size - known.size < log.settings.limits.offsets_mark_size:
        return None

    def run() -> None:
        # Not synced: without it the mark before it counts, and a little more could be cut off unnoticed.
        log.ledger.append(log.ledger.note(mark), sync=False)

    return _job(log, "offsets mark", run, lambda: None)


def _plan_allocation(log: PartitionLog) -> Job | None:
    segment = log.open_segment
    if segment is None or segment.file is None or not segment.size:
        return None
    settings = log.settings
    # As much again as there is, or so many batches: a send must not catch up with the space ahead of it.
    wanted = max(2 * segment.size, _BATCHES_AHEAD * (segment.size // segment.batch_count))
    chunk = min(max(wanted, settings.allocation_min), settings.allocation_max)
    position = max(segment.allocated_size, segment.size)
    size = min(chunk, settings.segment_size - position)
    # Beside a sync or a write-back the file system makes an allocation wait, and sends wait for the allocation: a dozen
    # milliseconds each time. So it comes before or after them, as long as there is room.
    room = chunk // 8 if log.is_syncing or log.is_writing_back else chunk // 2
    if segment.allocated_size - segment.size > room or size <= 0:
        return None
    file = segment.file

    def run() -> None:
        try:
            file.allocate(position, size)
        except OSError as error:
            raise storage_failure("allocation", file.path, error) from error

    def complete() -> None:
        segment.allocated_size = max(segment.allocated_size, position + size)

    # Allocation only saves time: if the disk has no room for it, the sends themselves will say so.
    return Job("allocation", run, complete, lambda _failure: complete())


def plan_writeback(log: PartitionLog) -> Job | None:
    """Ask the kernel to write back, so that it need not stall a send to catch up.

    Apart from the rest of upkeep, beside which it may run: a busy disk can keep this call waiting.
    """
    segment = log.open_segment
    if segment is None or segment.file is None:
        return None
    file, start, end = segment.file, segment.writeback_size, segment.size
    if end - start < log.settings.writeback_size:
        return None

    log.is_writing_back = True

    def run() -> None:
        # Only a hint: a kernel that cannot follow it reports what is wrong at the next sync.
        with contextlib.suppress(OSError):
            file.start_writeback(start, end - start)

    def complete() -> None:
        log.is_writing_back = False
        segment.writeback_size = end

    return Job("write-back", run, complete, lambda _failure: complete())


def _plan_index_flush(log: PartitionLog) -> Job | None:
    segment = log.open_segment
    if segment is None:
        return None
    block_count = segment.index.full_block_count
    if block_count < log.settings.limits.index_flush_block_count:
        return None
    index, path = segment.index, index_path(log.directory, segment.base_offset)
    written: list[File] = []

    def run() -> None:
        # Beside sends, which add entries behind these. Half a megabyte of new memory is what this takes longest for.
        position, blocks = index.unflushed(block_count)
        # Nothing if a reader has found the file damaged meanwhile: then there is no use in the rest of it.
        if blocks:
            written.append(write_index_file(log.file_system, path, position, blocks))

    def complete() -> None:
        drops_entries = log.settings.index_cache is IndexCache.NONE
        for file in written:
            index.note_flushed(block_count, file if drops_entries else None)

    return _job(log, "index flush", run, complete)


# --- files that hold mostly history ---


def _plan_ledger_rewrite(log: PartitionLog) -> Job | None:
    if not log.ledger.is_wasteful:
        return None
    return _job(log, "ledger rewrite", lambda: log.ledger.rewrite(log.ledger.snapshot()), lambda: None)


def _plan_offsets_rewrite(log: PartitionLog) -> Job | None:
    offsets = log.offsets
    if not offsets.is_wasteful:
        return None
    data = offsets.begin_rewrite()
    written: list[File] = []

    def complete() -> None:
        if offsets.finish_rewrite(written[0]):
            log.is_directory_unsynced = True

    def fail(failure: StorageFailure) -> None:
        offsets.abandon_rewrite()
        _fail_unless_it_heals(log, failure)

    def run() -> None:
        written.append(offsets.write_replacement(data))

    return Job("offsets rewrite", log.noticing(run), complete, fail)


# --- removing messages ---


def plan_trim(log: PartitionLog, before_offset: int) -> Job | None:
    """Delete the sealed segments that lie wholly below ``before_offset``; None if there is none."""
    log.check_writable()
    # A start may have left a segment to be sealed in front of sealed ones: nothing behind it goes before it.
    gone = list(
        takewhile(
            lambda segment: segment.state is SegmentState.SEALED and segment.end_offset <= before_offset, log.segments
        )
    )
    if not gone:
        return None
    kept = log.segments[len(gone) :]
    start_offset = kept[0].base_offset if kept else log.next_offset
    return _removal(log, "trim", gone, kept, start_offset)


def plan_purge(log: PartitionLog, epoch: int | None = None, end_offset: int | None = None) -> Job:
    """Delete messages and stored offsets below ``end_offset``; numbering goes on.

    Without an ``end_offset`` all of them go. No append or store until it is completed. A segment that holds messages on
    both sides of the end stays whole: messages behind the end are never removed. ``epoch`` is the number of purges
    afterwards, larger than before; one more if nothing is said.
    """
    log.check_writable()
    epoch = log.epoch + 1 if epoch is None else epoch
    assert epoch > log.epoch, "a purge is counted once"
    end = log.next_offset if end_offset is None else end_offset
    gone = list(takewhile(lambda segment: segment.end_offset <= end, log.segments))
    kept = log.segments[len(gone) :]
    start_offset = kept[0].base_offset if kept else log.next_offset
    job = _removal(log, "purge", gone, kept, start_offset if gone else log.start_offset, epoch=epoch)
    mark = log.marks.written
    # Nobody can have stored an offset from the end on before the purge was decided: those stay.
    kept_offsets = {key: offset for key, offset in log.offsets.items() if offset >= end}
    new_offsets = OffsetTable(log.file_system, log.directory / OFFSETS, log.identity, epoch, log.settings.limits)
    is_replaced = False

    def run() -> None:
        nonlocal is_replaced
        if kept_offsets:
            # Before the ledger counts the purge: from then on a file of the old epoch is void. If the power fails in
            # between, the purge is carried out again, and keeps the same offsets.
            try:
                new_offsets.clear(epoch, kept_offsets)
                is_replaced = True
            except StorageFailure as failure:
                # These two come behind the rename.
                is_replaced = failure.operation in ("opening", "sync")
                raise
        job.run()
        if not kept_offsets:
            _clear_if_possible(new_offsets, epoch)

    def complete() -> None:
        # Not closed: a sync of it may be under way. It closes when that is done.
        log.offsets = new_offsets
        if log.synced_facts is not None and log.synced_facts.base_offset < log.start_offset:
            log.synced_facts = None
        if not kept and mark.offset > log.marks.synced.offset:
            log.marks.sync(mark)
        job.complete()

    def fail(failure: StorageFailure) -> None:
        if is_replaced:
            # The old file has no name any more: what is stored there would be lost.
            log.offsets = new_offsets
        job.fail(failure)

    return Job("purge", log.noticing(run), complete, fail)


def _clear_if_possible(offsets: OffsetTable, epoch: int) -> None:
    """Replace the file of a partition that was purged.

    If that has to wait, the old file stays: its epoch has passed, so the next start and the next store replace it.
    """
    try:
        offsets.clear(epoch)
    except StorageFailure as failure:
        if not heals(failure):
            raise


def _removal(
    log: PartitionLog,
    name: str,
    gone: list[Segment],
    kept: tuple[Segment, ...],
    start_offset: int,
    epoch: int | None = None,
) -> Job:
    # Readers stop seeing the messages now; a crash before the ledger knows brings them back, whole.
    old_start_offset = log.start_offset
    ledger_start, ledger_epoch = log.ledger.state.numbers.start_offset, log.epoch
    log.departing, log.segments = tuple(gone), kept
    log.start_offset = start_offset
    new_epoch = log.ledger.state.numbers.epoch if epoch is None else epoch
    last_timestamp = max((segment.last_timestamp for segment in gone), default=0)

    def run() -> None:
        # First the new start, durably: files that a power cut brings back are below it, and are deleted again.
        log.ledger.record(start_offset=start_offset, epoch=new_epoch, last_timestamp=last_timestamp)
        try:
            for segment in gone:
                _remove_segment(log, segment.base_offset)
        except OSError as error:
            raise storage_failure("removal", log.directory, error) from error
        try:
            log.sync_names()
        except StorageFailure as failure:
            # Names that a power cut brings back are below the start, and are removed again.
            if not heals(failure):
                raise

    def complete() -> None:
        log.departing = ()
        log.writes.segment_deleted_count += len(gone)
        for segment in gone:
            segment.file = None

    def fail(failure: StorageFailure) -> None:
        if heals(failure) and log.ledger.state.numbers.start_offset == ledger_start and log.epoch == ledger_epoch:
            # The ledger does not know of it, so nothing was removed: the messages are back.
            log.departing, log.segments = (), (*gone, *log.segments)
            log.start_offset = old_start_offset
        else:
            log.fail(str(failure), is_sync=failure.operation == "sync")

    return Job(name, log.noticing(run), complete, fail)


def _remove_segment(log: PartitionLog, base_offset: int) -> None:
    """Delete a segment, unless somebody put another partition's file in its place: that one is left alone."""
    path = log_path(log.directory, base_offset)
    if log_owner(log.file_system, path, log.identity) in (None, log.identity):
        unlink_if_there(log.file_system, path)
        unlink_if_there(log.file_system, index_path(log.directory, base_offset))


# --- stopping ---


def close(log: PartitionLog) -> None:
    """Stop cleanly: everything synced, nothing allocated ahead, and a recovery point at the very end.

    Blocks. On a partition that takes no more writes it only lets go of the files.
    """
    if log.failure is None:
        # What this session knows of the clock, the next one cannot find out.
        log.follow_clock()
    # A job that fails would be planned again: on a full disk the rest is left to the next start.
    while (job := plan_upkeep(log)) is not None and perform(job):
        pass
    if (job := plan_sync(log)) is not None:
        perform(job)
    if log.failure is None:
        try:
            segment = log.open_segment
            if segment is not None and segment.file is not None:
                _leave_open_segment(log, segment, segment.file)
            elif segment is not None and segment.size and not log.is_as_left:
                # Nothing was written since the start, which came after a crash: there may be zeros behind the end.
                _leave_open_segment(log, segment, log.open_for_writing(segment))
            _leave_offsets(log)
            log.ledger.close()
        except StorageFailure as failure:
            log.fail(str(failure), is_sync=failure.operation == "sync")
    if log.must_report_failure:
        perform(_plan_failure_report(log))
    log.release_files()


def _leave_open_segment(log: PartitionLog, segment: Segment, file: File) -> None:
    try:
        file.truncate(segment.size)
    except OSError as error:
        raise storage_failure("truncation", file.path, error) from error
    sync_file(file)
    position, blocks = segment.index.unflushed(covered_size=segment.size)
    write_index_file(log.file_system, index_path(log.directory, segment.base_offset), position, blocks)
    sync_directory(log.file_system, log.directory)
    facts = segment.facts()
    log.ledger.append(log.ledger.note(Progress(facts), last_timestamp=facts.last_timestamp), sync=True)


def _leave_offsets(log: PartitionLog) -> None:
    """The seal of the stored offsets: after a clean stop the file is exactly as long as this says."""
    mark, known = log.offsets.mark, log.ledger.state.offsets_mark
    is_synced = not log.offsets.has_unsynced and not log.is_directory_unsynced
    if mark is not None and is_synced and (known is None or known < mark):
        # A full disk leaves the mark before it, which says less, and nothing wrong.
        with contextlib.suppress(DiskFull):
            log.ledger.append(log.ledger.note(mark), sync=False)
