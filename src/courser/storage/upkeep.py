"""The work of a partition that waits for the disk, as jobs: syncs, and upkeep.

At most one sync and one job of upkeep run at a time; ``plan_writeback`` takes turns with syncs. Sends do not wait for
upkeep, with two exceptions: if their offsets are not reserved yet, or if too many segments wait to be sealed. Stores of
offsets wait for a rewrite of their file. While a partition is open, only these jobs and ``close`` write its ledger.
"""

import contextlib
import errno
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from courser.errors import DiskFull, StorageFailure
from courser.model.durability import Durability
from courser.storage.durable_files import heals, is_failed_sync, storage_failure, sync_file, unlink_if_there
from courser.storage.files import File
from courser.storage.identity_search import log_owner
from courser.storage.jobs import Job, PlannedRemoval, PlannedSync, SealedSegment, perform
from courser.storage.ledger import LedgerDraft, Progress, Sealed, SyncFailure
from courser.storage.offset_table import OffsetTable
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import OFFSETS, index_path, log_path
from courser.storage.quarantine import Quarantine
from courser.storage.recovery import RecoveredPartition
from courser.storage.sealed_files import write_index_file
from courser.storage.segment import Segment, SegmentState
from courser.storage.segment_index import IndexCache

_PROGRESS_SIZE = 16 * 1024 * 1024
"""Bytes synced between two recovery points. A recovery point costs a write, but no sync."""
_BATCHES_AHEAD = 32
"""Number of average batches to allocate space for: a few milliseconds of sends at full speed."""


def plan_upkeep(log: PartitionLog) -> Job | None:
    """The most urgent job, or None."""
    if log.must_report_failure:
        return _plan_failure_report(log)
    if log.failure is not None:
        return None
    if log.lack_of_room is not None:
        return _plan_recovery(log)
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
    """Make the partition read-only, unless the disk is full or descriptors are short: then the job is planned again."""
    if not heals(failure):
        log.fail(str(failure), is_sync=failure.operation == "sync")


def _job(log: PartitionLog, name: str, run: Callable[[], None], complete: Callable[[], None]) -> Job:
    return Job(name, log.syncs.watch(run), complete, lambda failure: _fail_unless_it_heals(log, failure))


def _record_job(log: PartitionLog, name: str, draft: LedgerDraft) -> Job:
    """Write records that need no sync. After a power cut, the earlier records are used."""
    return _job(log, name, lambda: log.ledger.file.append(draft, sync=False), lambda: log.ledger.apply(draft))


def _plan_failure_report(log: PartitionLog) -> Job:
    draft = log.ledger.draft(SyncFailure())
    return Job(
        "failure report",
        lambda: log.ledger.file.append(draft, sync=True),
        lambda: log.complete_failure_report(draft),
        lambda _failure: log.fail_failure_report(),
    )


def _plan_recovery(log: PartitionLog) -> Job:
    """Repeat the recovery, for which the disk had no room. A power cut in between is one in the midst of a start."""
    found: list[RecoveredPartition] = []

    def run() -> None:
        recovered = log.recover_again()
        if recovered.lack_of_room is not None:
            raise DiskFull("recover", log.directory, OSError(errno.ENOSPC, recovered.lack_of_room))
        found.append(recovered)

    return _job(log, "recovery", run, lambda: log.complete_recovery(found[0]))


# --- making written data durable ---


def plan_sync(log: PartitionLog) -> Job | None:
    """Plan a sync of everything written so far, including stored offsets; None if it is already durable.

    At most one such job runs at a time. What is synced is always a prefix of the log: files are synced in the order of
    their offsets, and the directory before the newest file. Nothing in a new segment counts as synced before the old
    segment and the new name are.
    """
    planned = log.begin_sync() if log.failure is None and log.lack_of_room is None else None
    if planned is None:
        return None
    return Job(
        "sync",
        lambda: _sync_in_order(log, planned),
        lambda: log.complete_sync(planned),
        lambda failure: log.fail_sync(planned, failure),
    )


def _sync_in_order(log: PartitionLog, planned: PlannedSync) -> None:
    syncs, files = log.syncs, [unsynced.file for unsynced in planned.segments]
    for file in files[:-1]:
        syncs.sync_file(file)
    if planned.with_names:
        syncs.sync_names()
    for file in files[-1:]:
        syncs.sync_file(file)
    if planned.offsets_file is not None:
        syncs.sync_file(planned.offsets_file)


# --- offsets ahead ---


def plan_reservation(log: PartitionLog, message_count: int = 0) -> Job | None:
    """Reserve offsets if few are left, or if ``message_count`` messages need them."""
    if log.settings.durability.level is Durability.SYNCED:
        return None
    next_offset = log.marks.written.offset
    settings = log.settings
    # The block grows with the partition: a small partition has small gaps, and a busy one soon reaches the largest
    # block. Each reservation is a sync that slows down sends, which costs more than a gap.
    taken_count = log.marks.written.message_count + message_count
    block = min(max(64 * taken_count, settings.reservation_min), settings.reservation_max)
    left = log.reserved_end - next_offset
    if left >= message_count and left >= block // 8:
        return None
    draft = log.ledger.draft(reserved_end=next_offset + message_count + block)
    cut_files = [segment.file for segment in log.unsealed if segment.has_unsynced_cut and segment.file is not None]

    def run() -> None:
        # A refused batch that a power cut completes must not have any of these offsets (see ``PartitionLog._undo``).
        for file in cut_files:
            log.syncs.sync_file(file)
        # Durable before any of these offsets is confirmed. After a power cut, numbering continues above them.
        log.ledger.file.append(draft, sync=True)

    return _job(log, "reservation", run, lambda: log.complete_reservation(draft))


# --- segments that are full ---


def plan_seal(log: PartitionLog) -> Job | None:
    """Seal the oldest segment that is waiting for it."""
    if log.lack_of_room is not None:
        # What follows its last good batch was not copied to quarantine yet.
        return None
    segment = next((segment for segment in log.unsealed if segment.state is SegmentState.CLOSING), None)
    if segment is None:
        return None
    # Nothing more is appended to it, so these facts are final.
    size, draft = segment.size, log.ledger.draft(Sealed(segment.facts()))
    path = index_path(log.directory, segment.base_offset)
    written: list[SealedSegment] = []

    def run() -> None:
        with ExitStack() as stack:
            file = segment.file or stack.enter_context(closing(log.open_for_writing(segment)))
            try:
                file.truncate(size)
            except OSError as error:
                raise storage_failure("truncate", file.path, error) from error
            log.syncs.sync_file(file)
            position, blocks = segment.index.unflushed(covered_size=size)
            index_file = stack.enter_context(closing(write_index_file(log.file_system, path, position, blocks)))
            sync_file(index_file)
            # Both names must be durable first: with the seal in the ledger, a start does not check the segment.
            log.syncs.sync_names()
            log.ledger.file.append(draft, sync=True)
            written.append(SealedSegment(file, index_file, len(blocks) // segment.index.block_size))
            # The completion hands them to their owners.
            stack.pop_all()

    return _job(log, "seal", run, lambda: log.complete_seal(segment, draft, written[0]))


# --- hints for the next start, and for the kernel ---


def _plan_progress(log: PartitionLog) -> Job | None:
    facts, known = log.synced_facts, log.ledger.state.progress
    if facts is None or not facts.size:
        return None
    known_size = known.size if known is not None and known.base_offset == facts.base_offset else 0
    if facts.size - known_size < min(_PROGRESS_SIZE, log.settings.recovery_point_size):
        return None
    return _record_job(log, "recovery point", log.ledger.draft(Progress(facts), last_timestamp=facts.last_timestamp))


def _plan_corrections(log: PartitionLog) -> Job | None:
    """Record the corrections of segment times after a clock step.

    If a power cut loses the records, the next start notices times in the future again.
    """
    draft = log.begin_corrections() if log.has_unrecorded_corrections else None
    if draft is None:
        return None

    def fail(failure: StorageFailure) -> None:
        log.fail_corrections()
        _fail_unless_it_heals(log, failure)

    job = _record_job(log, "time correction", draft)
    return Job(job.name, job.run, job.complete, fail)


def _plan_offsets_mark(log: PartitionLog) -> Job | None:
    """Record how much of the file of stored offsets is synced, so that a start notices if the file is shorter.

    If a power cut loses the record, the previous one counts, and a slightly larger loss would go unnoticed.
    """
    mark, known = log.synced_offsets, log.ledger.state.offsets_mark
    if mark is None or (known is not None and mark <= known):
        return None
    is_same_file = known is not None and (mark.epoch, mark.generation) == (known.epoch, known.generation)
    if is_same_file and known is not None and mark.size - known.size < log.settings.limits.offsets_mark_size:
        return None
    return _record_job(log, "offsets mark", log.ledger.draft(mark))


def _plan_allocation(log: PartitionLog) -> Job | None:
    segment = log.open_segment
    if segment is None or segment.file is None or not segment.size:
        return None
    settings = log.settings
    # Twice the size of the segment, or a few batches, so that sends never reach the end of the allocated space.
    wanted = max(2 * segment.size, _BATCHES_AHEAD * (segment.size // segment.batch_count))
    chunk = min(max(wanted, settings.allocation_min), settings.allocation_max)
    position = max(segment.allocated_size, segment.size)
    size = min(chunk, settings.segment_size - position)
    # During a sync or a write-back, the file system delays an allocation by a dozen milliseconds, and sends wait for
    # it. So avoid that as long as there is room.
    room = chunk // 8 if log.is_syncing or log.is_writing_back else chunk // 2
    if segment.allocated_size - segment.size > room or size <= 0:
        return None
    file = segment.file

    def run() -> None:
        try:
            file.allocate(position, size)
        except OSError as error:
            raise storage_failure("allocate", file.path, error) from error

    def complete() -> None:
        segment.note_allocated(position + size)

    # Allocation only saves time. If the disk is full, the sends themselves will fail.
    return Job("allocation", run, complete, lambda _failure: complete())


def plan_writeback(log: PartitionLog) -> Job | None:
    """Ask the kernel to write back, so that it does not have to stall a send later.

    On a busy disk, the call can take long. So it runs beside upkeep, between syncs: a sync that waits for it has less
    to write.
    """
    segment = log.open_segment
    if segment is None or segment.file is None:
        return None
    file, start, end = segment.file, segment.writeback_size, segment.size
    if end - start < log.settings.writeback_size:
        return None

    log.begin_writeback(file)

    def run() -> None:
        # Only a hint. If the disk has an error, the next sync reports it.
        with contextlib.suppress(OSError):
            file.start_writeback(start, end - start)

    def complete() -> None:
        log.complete_writeback(segment, file, end)

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
        # Sends may add later entries meanwhile. Most of the time goes into half a megabyte of new memory.
        position, blocks = index.unflushed(block_count)
        # Empty if a reader has found the index file damaged meanwhile: then the rest of it is useless.
        if blocks:
            written.append(write_index_file(log.file_system, path, position, blocks))

    def complete() -> None:
        drops_entries = log.settings.index_cache is IndexCache.NONE
        for file in written:
            index.note_flushed(block_count, file if drops_entries else None)
            if not drops_entries:
                file.close()

    return _job(log, "index flush", run, complete)


# --- files that hold mostly history ---


def _plan_ledger_rewrite(log: PartitionLog) -> Job | None:
    if not log.ledger.is_wasteful:
        return None
    draft = log.ledger.draft_snapshot()
    return _job(log, "ledger rewrite", lambda: log.ledger.file.rewrite(draft), lambda: None)


def _plan_offsets_rewrite(log: PartitionLog) -> Job | None:
    offsets = log.offsets
    if not offsets.is_wasteful:
        return None
    data = offsets.begin_rewrite()
    written: list[File] = []

    def fail(failure: StorageFailure) -> None:
        offsets.abandon_rewrite()
        _fail_unless_it_heals(log, failure)

    def run() -> None:
        written.append(offsets.write_replacement(data))

    return Job("offsets rewrite", log.syncs.watch(run), lambda: log.complete_offsets_rewrite(written[0]), fail)


# --- replacing a damaged file ---


def plan_replacement(log: PartitionLog, segment: Segment, copy: Path) -> Job | None:
    """Put ``copy``, a verified file in the partition's directory, in the place of a segment's file.

    None if the segment is gone. A power cut leaves one of the two files under the segment's name, never none.
    """
    log.check_writable()
    if segment not in log.segments:
        return None
    base_offset, ledger = segment.base_offset, log.ledger
    is_recorded = any(damage.base_offset == base_offset for damage in ledger.state.damages)
    ledger.state.damages = [damage for damage in ledger.state.damages if damage.base_offset != base_offset]
    draft = ledger.draft_snapshot() if is_recorded else None
    path = log_path(log.directory, base_offset)

    def run() -> None:
        try:
            with closing(log.file_system.open(copy, writable=True)) as file:
                sync_file(file)
            with closing(log.file_system.open(path)) as damaged:
                Quarantine(log.file_system, log.directory).copy(damaged, 0, segment.size)
            if draft is not None:
                # Before the rename: damage that the ledger does not know is found by the next read.
                ledger.file.rewrite(draft)
            log.file_system.rename(copy, path)
            # It may lack what was damaged; the next reader makes it again.
            unlink_if_there(log.file_system, index_path(log.directory, base_offset))
        except OSError as error:
            raise storage_failure("replace", path, error) from error
        log.syncs.sync_names()

    def complete() -> None:
        log.files.forget(segment)
        segment.damages = ()
        segment.is_index_ready = False

    def fail(failure: StorageFailure) -> None:
        # Whatever else failed, the segment has one of its files, and all of the partition is as usable as before.
        if is_failed_sync(failure):
            log.fail(str(failure), is_sync=True)

    return Job("replacement", log.syncs.watch(run), complete, fail)


# --- removing messages ---


def plan_trim(log: PartitionLog, before_offset: int) -> Job | None:
    """Delete the sealed segments that are entirely below ``before_offset``; None if there are none."""
    log.check_removable()
    # A start may leave an unsealed segment before sealed ones. Segments after it are not deleted before it.
    gone = takewhile(
        lambda segment: segment.state is SegmentState.SEALED and segment.end_offset <= before_offset, log.segments
    )
    count = len(list(gone))
    if not count:
        return None
    removal = log.begin_removal(count)
    files = _RemovalOfFiles(log, removal)
    return Job(
        "trim",
        log.syncs.watch(files.run),
        lambda: log.complete_removal(removal),
        lambda failure: log.fail_removal(removal, failure, is_recorded=files.is_recorded),
    )


def plan_purge(log: PartitionLog, epoch: int | None = None, end_offset: int | None = None) -> Job:
    """Delete messages and stored offsets below ``end_offset``, or all of them without it. Numbering continues.

    Until it is complete, there must be no append or store. A segment with messages on both sides of the end is kept:
    messages from the end on are never deleted. ``epoch`` is the new number of purges; by default, one more than before.
    """
    log.check_removable()
    epoch = log.epoch + 1 if epoch is None else epoch
    assert epoch > log.epoch, "a purge is counted once"
    end = log.next_offset if end_offset is None else end_offset
    mark, count = log.marks.written, len(list(takewhile(lambda segment: segment.end_offset <= end, log.segments)))
    removal = log.begin_removal(count, epoch)
    # If messages remain, they need the next sync.
    synced = None if log.segments else mark
    files = _RemovalOfFiles(log, removal)
    # Offsets from the end on were stored after the purge was decided, so they are kept.
    kept_offsets = {key: offset for key, offset in log.offsets.items() if offset >= end}
    new_offsets = OffsetTable(log.file_system, log.directory / OFFSETS, log.identity, epoch, log.settings.limits)
    is_replaced = False

    def run() -> None:
        nonlocal is_replaced
        if kept_offsets:
            # Before the ledger counts the purge, because a file of the old epoch is invalid from then on. After a power
            # cut in between, the purge runs again and keeps the same offsets.
            try:
                new_offsets.clear(epoch, kept_offsets)
                is_replaced = True
            except StorageFailure as failure:
                # This step comes after the rename.
                is_replaced = failure.operation == "sync"
                raise
        files.run()
        if not kept_offsets:
            _clear_if_possible(new_offsets, epoch)

    def fail(failure: StorageFailure) -> None:
        if is_replaced:
            # The old file no longer has a name: offsets stored in it would be lost.
            log.use_offsets(new_offsets)
        log.fail_removal(removal, failure, is_recorded=files.is_recorded)

    return Job("purge", log.syncs.watch(run), lambda: log.complete_purge(removal, new_offsets, synced), fail)


def _clear_if_possible(offsets: OffsetTable, epoch: int) -> None:
    """Replace the offsets file of a purged partition.

    On a full disk, the old file stays. Its epoch is obsolete, so the next start or store replaces it.
    """
    try:
        offsets.clear(epoch)
    except StorageFailure as failure:
        if not heals(failure):
            raise


class _RemovalOfFiles:
    """The part of a removal that runs on another thread."""

    def __init__(self, log: PartitionLog, removal: PlannedRemoval) -> None:
        self._log = log
        self._removal = removal
        self.is_recorded = False
        """Whether the ledger contains the new start."""

    def run(self) -> None:
        log, removal = self._log, self._removal
        # The new start must be durable first: files that a power cut restores are below it, and are deleted again.
        log.ledger.file.append(removal.draft, sync=True)
        self.is_recorded = True
        try:
            for segment in removal.segments:
                _remove_segment(log, segment.base_offset)
        except OSError as error:
            raise storage_failure("remove", log.directory, error) from error
        try:
            log.syncs.sync_names()
        except StorageFailure as failure:
            # Names that a power cut brings back are below the start, and are removed again.
            if not heals(failure):
                raise


def _remove_segment(log: PartitionLog, base_offset: int) -> None:
    """Delete a segment. A file of another partition in its place is left alone."""
    path = log_path(log.directory, base_offset)
    if log_owner(log.file_system, path, log.identity) in (None, log.identity):
        unlink_if_there(log.file_system, path)
        unlink_if_there(log.file_system, index_path(log.directory, base_offset))


# --- stopping ---


def close(log: PartitionLog) -> None:
    """Stop cleanly: everything synced, nothing allocated ahead, and a recovery point at the very end.

    Blocks. On a partition that takes no more writes it only lets go of the files. Afterwards ``log.failure`` says why
    this was not a clean stop.
    """
    try:
        _leave(log)
    except BaseException as error:
        log.fail(repr(error), is_sync=True)
        raise
    finally:
        log.release_files()


def _leave(log: PartitionLog) -> None:
    if log.failure is None:
        # What this session knows of the clock, the next one cannot find out.
        log.follow_clock()
    # A failed job would be planned again, so on a full disk the rest is left to the next start.
    while (job := plan_upkeep(log)) is not None and perform(job):
        pass
    if log.lack_of_room is not None:
        log.fail(log.lack_of_room)
    if (job := plan_sync(log)) is not None:
        _perform_last(log, job)
    if log.failure is None:
        try:
            segment = log.open_segment
            if segment is not None and segment.file is not None:
                _leave_open_segment(log, segment, segment.file)
            elif segment is not None and segment.size and not log.is_as_left:
                # Nothing was written since a start after a crash, so zeros may follow the end of the segment.
                with closing(log.open_for_writing(segment)) as opened:
                    _leave_open_segment(log, segment, opened)
            _leave_offsets(log)
            log.ledger.file.close()
        except StorageFailure as failure:
            log.fail(str(failure), is_sync=failure.operation == "sync")
    if log.must_report_failure:
        perform(_plan_failure_report(log))


def _perform_last(log: PartitionLog, sync: Job) -> None:
    """Perform the last sync. If it fails, the stop is not clean, even if a repetition would succeed: none follows."""

    def fail(failure: StorageFailure) -> None:
        sync.fail(failure)
        log.fail(str(failure), is_sync=failure.operation == "sync")

    perform(replace(sync, fail=fail))


def _leave_open_segment(log: PartitionLog, segment: Segment, file: File) -> None:
    try:
        file.truncate(segment.size)
    except OSError as error:
        raise storage_failure("truncate", file.path, error) from error
    log.syncs.sync_file(file)
    position, blocks = segment.index.unflushed(covered_size=segment.size)
    write_index_file(log.file_system, index_path(log.directory, segment.base_offset), position, blocks).close()
    log.syncs.sync_names()
    facts = segment.facts()
    log.ledger.file.append(log.ledger.note(Progress(facts), last_timestamp=facts.last_timestamp), sync=True)


def _leave_offsets(log: PartitionLog) -> None:
    """Record the size of the file of stored offsets, which is exact after a clean stop."""
    mark, known = log.offsets.mark, log.ledger.state.offsets_mark
    is_synced = not log.offsets.has_unsynced and not log.is_directory_unsynced
    if mark is not None and is_synced and (known is None or known < mark):
        # On a full disk, the previous mark remains. It covers less, but is correct.
        with contextlib.suppress(DiskFull):
            log.ledger.file.append(log.ledger.note(mark), sync=False)
