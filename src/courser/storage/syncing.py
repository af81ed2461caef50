"""Making a partition's data durable: one job for everything that was written before it.

*synced* is a prefix. Files are synced in the order of their offsets, and the directory before the newest file counts,
so nothing in a new segment is called synced before the old one is synced to its end and the new one's name is safe.
"""

from collections.abc import Iterable

from courser.errors import StorageFailure
from courser.storage.durable_files import heals
from courser.storage.files import File
from courser.storage.jobs import Job
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment, SegmentState


def plan_sync(log: PartitionLog) -> Job | None:
    """A job after which all that is written now, stored offsets included, survives a power cut; None if it does.

    At most one such job runs at a time.
    """
    if log.failure is not None:
        return None
    mark = log.marks.written
    unsynced = _unsynced_segments(log)
    for segment, _, _ in unsynced:
        segment.has_unsynced_cut = False
    is_directory_unsynced, log.is_directory_unsynced = log.is_directory_unsynced, False
    offsets_file, offsets_mark = log.offsets.begin_sync(), log.offsets.mark
    if not unsynced and not is_directory_unsynced and offsets_file is None and mark.offset == log.marks.synced.offset:
        # Otherwise a seal has synced what is written: there is nothing to do but to say so.
        return None
    open_segment = log.open_segment
    facts = open_segment.facts() if open_segment is not None else None
    log.is_syncing = True

    def run() -> None:
        _sync_in_order(log, [file for _, file, _ in unsynced], offsets_file, with_directory=is_directory_unsynced)

    def complete() -> None:
        log.is_syncing = False
        if log.has_sync_failed:
            # The seal of a segment failed to sync what this sync may only seem to have synced.
            return
        log.offsets.end_sync()
        log.synced_offsets = offsets_mark
        if mark.offset < log.marks.synced.offset:
            # A purge was quicker: nothing is left of what was synced here.
            return
        for segment, _, size in unsynced:
            segment.synced_size = max(segment.synced_size, size)
        log.marks.sync(mark)
        if facts is not None:
            log.synced_facts = facts

    def fail(failure: StorageFailure) -> None:
        log.is_syncing = False
        if not heals(failure):
            log.fail(str(failure), is_sync=True)
            return
        # Nobody was told anything: all of it is due again.
        log.is_directory_unsynced |= is_directory_unsynced
        log.offsets.has_unsynced |= offsets_file is not None
        _call_unsynced(segment for segment, _, _ in unsynced)

    return Job("sync", run, complete, fail)


def _call_unsynced(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.has_unsynced_cut = True


def _unsynced_segments(log: PartitionLog) -> list[tuple[Segment, File, int]]:
    """What a sync has to sync, in the order of offsets, and up to where."""
    return [
        (segment, segment.file, segment.size)
        for segment in (*log.departing, *log.segments)
        if segment.file is not None
        and (segment.synced_size < segment.size or segment.has_unsynced_cut)
        and segment.state is not SegmentState.SEALED
    ]


def _sync_in_order(log: PartitionLog, files: list[File], offsets_file: File | None, *, with_directory: bool) -> None:
    for file in files[:-1]:
        log.sync_file(file)
    if with_directory:
        log.sync_names()
    for file in files[-1:]:
        log.sync_file(file)
    if offsets_file is not None:
        log.sync_file(offsets_file)
