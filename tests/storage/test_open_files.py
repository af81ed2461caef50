"""Every file is closed by whoever owns it, whatever fails: on a full disk, the space of a deleted file must come back.

Each call to the disk fails once, in turn. No failure leaves a file open, nor one that is only closed because
Python finds that nobody can reach it any more: an exception may keep it reachable, and nobody may look.
"""

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from courser.errors import CourserError
from courser.model.identifiers import ConsumerKind
from courser.storage.condensing import CondensedCopy, condensable_segments, plan_condensed
from courser.storage.jobs import Job, perform
from courser.storage.journal_entries import SnapshotMark
from courser.storage.local_files import LocalFileSystem
from courser.storage.log_reader import LogReader
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import TEMPORARY_SUFFIX, log_path
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import SegmentState
from courser.storage.segment_index import IndexCache
from courser.storage.session_file import begin_session, read_session
from courser.storage.snapshot import Snapshot, read_snapshot, write_snapshot
from courser.storage.staged_file import StagedFileReader, StagedFileWriter, read_staged_file
from courser.storage.upkeep import (
    close,
    plan_purge,
    plan_replacement,
    plan_reservation,
    plan_sync,
    plan_trim,
    plan_upkeep,
    plan_writeback,
)
from tests.catalog.opening import open_journal
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem, FaultPlan
from tests.simulator.small_settings import SMALL_LIMITS
from tests.storage.condensed import FAR, keyed, survey
from tests.storage.engine import DIRECTORY, IDENTITY, SMALL
from tests.storage.test_staged_file import IDENTITY as PART
from tests.storage.test_staged_file import TARGET

METADATA = Path("/data/metadata")
STAGING = Path("/data/staging")
CONSUMER = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")
CALL_COUNT_MAX = 5_000
Scenario = Callable[[FakeFileSystem], None]


def ignore() -> contextlib.AbstractContextManager[object]:
    """A step that fails may be followed by others, as on a server."""
    return contextlib.suppress(CourserError, OSError)


def run(job: Job | None) -> None:
    if job is not None:
        perform(job)


def append(log: PartitionLog, count: int) -> None:
    for number in range(count):
        with ignore():
            if log.needs_reservation(2):
                run(plan_reservation(log, 2))
            if not log.needs_reservation(2):
                log.append(keyed([(b"key %d" % (number % 3), b"x" * 100), (None, b"y" * 100)]))


def seal(log: PartitionLog) -> None:
    with ignore():
        log.roll()
        for _ in range(20):
            if (job := plan_upkeep(log)) is None or not perform(job):
                break


@contextlib.contextmanager
def opened(disk: FakeFileSystem, stop: StopKind, cache: IndexCache = IndexCache.OPEN_SEGMENT) -> Iterator[PartitionLog]:
    settings = replace(SMALL, limits=SMALL_LIMITS, index_cache=cache, writeback_size=512)
    log = PartitionLog.open(disk, DIRECTORY, IDENTITY, settings=settings, clock=ManualClock(), stop=stop)
    try:
        yield log
    finally:
        with ignore():
            close(log)


def partition_life(disk: FakeFileSystem, cache: IndexCache) -> None:
    """Append, roll, seal, read, store offsets, condense, replace, trim, purge, stop; twice, the second time killed."""
    with ignore():
        PartitionLog.create(disk, DIRECTORY, IDENTITY, below=DIRECTORY.parent)
    for stop in (StopKind.CLEAN, StopKind.KILLED, StopKind.CRASHED):
        with ignore(), opened(disk, stop, cache) as log:
            for _ in range(3):
                append(log, 12)
                run(plan_writeback(log))
                sync = plan_sync(log)
                seal(log)
                run(sync)
                for _ in range(4):
                    with ignore():
                        log.store_offset(CONSUMER, log.start_offset)
            for offset in range(log.start_offset, log.next_offset, 7):
                with ignore():
                    LogReader(log).read(offset, count=3, size_max=1000)
                with ignore():
                    LogReader(log).time_at(offset)
            with ignore():
                condense(log)
            with ignore():
                replace_first(disk, log)
            with ignore():
                run(plan_trim(log, log.start_offset + 10))
            append(log, 3)
            # A purge beside a sync and a write-back.
            sync, writeback = plan_sync(log), plan_writeback(log)
            with ignore():
                run(plan_purge(log))
            run(writeback)
            run(sync)
            append(log, 5)


def condense(log: PartitionLog) -> None:
    segments = condensable_segments(log, end_offset=FAR, stored_before=FAR)
    removals = survey(log, segments)
    for segment in filter(removals.concern, segments):
        copy = CondensedCopy(log, segment, removals)
        for _ in copy.steps():
            pass
        run(plan_condensed(log, copy))


def replace_first(disk: FakeFileSystem, log: PartitionLog) -> None:
    segment = next((segment for segment in log.segments if segment.state is SegmentState.SEALED), None)
    if segment is None:
        return
    path = log_path(log.directory, segment.base_offset)
    copy = path.with_name(path.name + TEMPORARY_SUFFIX)
    disk.plant(copy, disk.contents(path))
    run(plan_replacement(log, segment, copy))


def metadata_life(disk: FakeFileSystem) -> None:
    """A journal that is drained by a snapshot, killed with a torn end, and opened again; a session file."""
    mark: SnapshotMark | None = None
    for stop in (StopKind.CRASHED, StopKind.KILLED, StopKind.CRASHED):
        with ignore():
            journal = open_journal(disk, METADATA / "journal.wal", snapshot=mark, stop=stop, slot_count=16)
            with contextlib.closing(journal):
                for number in range(5):
                    with ignore():
                        entry, data = journal.make_next(timestamp=1, kind=1, body=b"%d" % number)
                        journal.append(entry, data)
                with ignore():
                    last = journal.last
                    if last is not None:
                        write_snapshot(disk, METADATA / "snapshot.bin", Snapshot(last, b"h" * 16, 1, b"state"))
                        mark = last
                        journal.drain(last)
        with ignore():
            read_snapshot(disk, METADATA / "snapshot.bin")
        with ignore():
            begin_session(disk, METADATA)
            read_session(disk, METADATA)
        with ignore(), contextlib.closing(disk.open(METADATA / "journal.wal", writable=True)) as file:
            file.write_at(file.size(), [b"torn"])


def staged_life(disk: FakeFileSystem) -> None:
    """A part that is written, read, continued and published."""
    path = STAGING / "part"
    with ignore(), contextlib.closing(StagedFileWriter.create(disk, path, PART, 1)) as writer:
        writer.append(TARGET, keyed([(None, b"x" * 100)]))
    with ignore():
        found = read_staged_file(disk, path)
        contents = getattr(found, "contents", None)
        if contents is not None:
            with contextlib.closing(StagedFileWriter.reopen(disk, path, contents)) as writer:
                writer.append(TARGET, keyed([(None, b"y" * 100)]))
                writer.finish()
            size, digest = writer.contents.file_size, writer.contents.digest
            with contextlib.closing(StagedFileReader(disk, path, file_size=size, digest=digest)) as reader:
                list(reader.records())


SCENARIOS: dict[str, Scenario] = {
    "partition": lambda disk: partition_life(disk, IndexCache.OPEN_SEGMENT),
    "partition, indexes in memory": lambda disk: partition_life(disk, IndexCache.ALL),
    "partition, indexes on disk": lambda disk: partition_life(disk, IndexCache.NONE),
    "metadata": metadata_life,
    "staged": staged_life,
}


def disk_after(scenario: Scenario, plan: FaultPlan) -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1), plan)
    for directory in (DIRECTORY.parent, METADATA, STAGING):
        disk.plant_directory(directory)
    scenario(disk)
    return disk


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_no_failure_leaves_a_file_open(name: str, error: int) -> None:
    scenario = SCENARIOS[name]
    whole = disk_after(scenario, FaultPlan())
    call_count = sum(whole.calls.values())
    assert (whole.open_files, whole.forgotten) == ({}, [])
    # All calls of the short ones; of the long ones a part, another one for each error.
    step = max(1, call_count // 40)
    for call in range(1 + error % step, call_count, step):
        for onwards in (False, True):
            disk = disk_after(scenario, FaultPlan().fail(None, error, call=call, onwards=onwards))
            assert (disk.open_files, disk.forgotten) == ({}, []), (name, call, onwards)


def test_a_deleted_segment_is_closed_at_once_unless_somebody_reads_it() -> None:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(DIRECTORY.parent)
    PartitionLog.create(disk, DIRECTORY, IDENTITY, below=DIRECTORY.parent)
    with opened(disk, StopKind.CLEAN) as log:
        append(log, 10)
        seal(log)
        append(log, 10)
        with log.files.reading(log.segments[0]) as file:
            run(plan_purge(log))
            assert set(disk.open_files.values()) == {file.path}
            assert file.size()
        assert disk.open_files == {}


def test_a_file_that_nobody_has_closed_gives_its_descriptor_back(tmp_path: Path) -> None:
    file = LocalFileSystem().open(tmp_path / "forgotten", create=True)
    descriptor = file._descriptor
    assert os.fstat(descriptor)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
