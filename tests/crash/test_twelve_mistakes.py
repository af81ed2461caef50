"""Twelve mistakes that naive logs make, and the tests which prove that this one does not make them.

====  ===============================================  =============================================================
 no.  mistake                                          proved by
====  ===============================================  =============================================================
  1   acknowledge before the sync, or without the      crash/test_planted_bugs.py::test_a_planted_bug_is_caught
      directory's                                      crash/test_twelve_mistakes.py::test_mistake_1
  2   ignore a failed sync, or try it again            storage/test_syncing.py::test_a_failed_sync_closes
                                                       crash/test_found_by_simulation.py::test_a_sync_is_not_believed
                                                       crash/test_twelve_mistakes.py::test_mistake_2
  3   create or rename without syncing the directory   crash/test_every_crash_point.py::test_a_crash_at_every_point
                                                       crash/test_found_by_simulation.py::test_names_are_synced
                                                       storage/test_ledger.py::test_the_new_ledger_or_the_old_one
  4   trust an index ahead of its log                  storage/test_index.py::test_an_index_of_lost_batches
                                                       storage/test_index.py::test_an_index_file_that_is_not_right
  5   give out offsets again after a cut               crash/test_twelve_mistakes.py::test_mistake_5
                                                       crash/test_found_by_simulation.py::test_offsets_are_not_given
  6   cut at the first bad checksum anywhere           storage/test_recovery_cases.py::test_case_d
                                                       storage/test_recovery_cases.py::test_case_c
                                                       storage/test_recovery_files.py::test_after_a_power_cut_rot
  7   lose consumer offsets, or move them forward      storage/test_offset_table.py::test_a_power_cut_only_ever
                                                       crash/test_found_by_simulation.py::test_a_store_behind
  8   a replay that cannot be repeated                 storage/test_recovery_files.py::test_running_recovery_twice
                                                       crash/test_every_crash_point.py::test_a_crash_at_every_point
  9   retention that touches the open segment, or      crash/test_twelve_mistakes.py::test_mistake_9
      trusts that an unlink is durable                 storage/test_recovery_cases.py::test_case_j
 10   times that go back                               storage/test_time.py::test_any_jumps_and_restarts
                                                       crash/test_found_by_simulation.py::test_time_does_not_go_back
 11   memory without bounds                            crash/test_twelve_mistakes.py::test_mistake_11
                                                       storage/test_offset_table.py::test_the_number_of_consumers
 12   short writes, and half a batch left in place     crash/test_twelve_mistakes.py::test_mistake_12
                                                       crash/test_found_by_simulation.py::test_a_cut_after_a_full
====  ===============================================  =============================================================

All of them are also looked for by ``test_simulation.py``, in any combination.
"""

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest

from courser.errors import DiskFull, PartitionReadOnly
from courser.model.durability import Durability, DurabilityPolicy
from courser.records.layout import BATCH_HEADER_SIZE, BATCH_SIZE_MAX
from courser.storage.acknowledgements import Acknowledgements
from courser.storage.jobs import perform
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import SegmentState
from courser.storage.upkeep import plan_sync, plan_trim
from tests.crash.outcomes import after_power_cuts
from tests.fakes.files import FaultPlan
from tests.storage.engine import SMALL, Engine, durability, numbered, payload_of, payloads

SYNCED = replace(SMALL, durability=durability(Durability.SYNCED))
WRITTEN = replace(SMALL, durability=durability(Durability.WRITTEN))
TESTS = Path(__file__).parent.parent
PROOF = re.compile(r"(\w+/test_\w+\.py)::(test_\w+)")


def test_every_proof_in_the_table_exists() -> None:
    proofs = PROOF.findall(__doc__ or "")
    assert len(proofs) >= 12
    for path, name in proofs:
        assert f"def {name}" in (TESTS / path).read_text(encoding="utf-8"), f"{path} has no test {name}..."


def test_mistake_1_nothing_is_acknowledged_before_data_and_name_are_synced() -> None:
    engine = Engine(replace(SYNCED, segment_size=600))
    acknowledgements: Acknowledgements[int] = Acknowledgements(engine.settings.durability)
    for number in range(4):
        engine.append_numbered(3)
        marks = engine.log.marks
        assert not acknowledgements.admits(marks.written, marks.synced, now=number)
        acknowledgements.wait(marks.written, number)
    job = plan_sync(engine.log)
    assert job is not None
    job.run()
    assert acknowledgements.releasable(engine.log.marks.synced, now=9) == []
    job.complete()
    assert acknowledgements.releasable(engine.log.marks.synced, now=9) == [0, 1, 2, 3]
    # Four files, three of them new: each has its name.
    assert len(engine.log.segments) > 2
    assert all(log.message_count == 12 for log in after_power_cuts(engine))


def test_mistake_2_a_second_sync_would_succeed_and_is_not_asked() -> None:
    engine = Engine(SYNCED)
    engine.fill(1)
    engine.disk.plan = FaultPlan().fail("sync", errno.EIO)
    job = plan_sync(engine.log)
    assert job is not None
    assert not perform(job)
    assert plan_sync(engine.log) is None
    with pytest.raises(PartitionReadOnly):
        engine.append_numbered(1)
    assert engine.log.marks.synced.offset == 0
    assert engine.read(0) == [], "at `synced` nobody sees what a crash may take"


def test_mistake_5_offsets_are_reserved_before_they_are_confirmed() -> None:
    engine = Engine(WRITTEN)
    engine.fill(8)
    assert engine.log.reserved_end >= engine.log.next_offset
    lost_something = False
    for log in after_power_cuts(engine):
        assert log.next_offset >= engine.log.next_offset
        lost_something = lost_something or log.message_count < engine.log.message_count
    assert lost_something, "otherwise this shows nothing"


def test_mistake_5_after_a_mere_kill_there_is_no_gap() -> None:
    engine = Engine(WRITTEN)
    engine.fill(8)
    assert engine.restart(StopKind.KILLED).next_offset == 24


def test_mistake_9_a_trim_leaves_the_open_segment_alone() -> None:
    engine = Engine(replace(WRITTEN, segment_size=600))
    engine.fill(5)
    assert plan_trim(engine.log, engine.log.next_offset) is None, "nothing is sealed yet"
    engine.upkeep()
    open_segment = engine.log.segments[-1]
    engine.trim(engine.log.next_offset)
    assert engine.log.segments == (open_segment,)
    assert open_segment.state is SegmentState.OPEN


def test_mistake_9_the_new_start_is_durable_before_a_file_goes() -> None:
    engine = Engine(replace(WRITTEN, segment_size=600))
    engine.fill(5)
    engine.upkeep()
    job = plan_trim(engine.log, engine.log.next_offset)
    assert job is not None
    start_offset = engine.log.start_offset
    # The first unlink fails: whatever the power leaves now, the start is the new one.
    engine.disk.plan = FaultPlan().fail("unlink", errno.EIO)
    assert not perform(job)
    assert all(log.start_offset == start_offset for log in after_power_cuts(engine))


def test_mistake_11_a_read_takes_what_was_asked_for_and_not_what_is_there() -> None:
    engine = Engine(replace(WRITTEN, segment_size=1_000_000))
    engine.fill(200)
    before = engine.reader.counters.size
    result = engine.reader.read(0, count=1_000_000, size_max=2_000)
    assert result.size <= 2_000
    assert engine.reader.counters.size - before <= 4_000


def test_mistake_11_a_length_that_lies_decides_nothing() -> None:
    engine = Engine(WRITTEN)
    engine.fill(3)
    path = engine.log_path()
    data = bytearray(engine.disk.contents(path))
    second = engine.batch_starts()[1]
    data[second + 32 : second + 40] = (BATCH_SIZE_MAX * 1024).to_bytes(8, "little")
    engine.disk.plant(path, data)
    messages, _ = engine.read_all()
    assert [message.offset for message in messages] == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize("take", [1, 100, BATCH_HEADER_SIZE, 300])
def test_mistake_12_short_writes_are_continued(take: int) -> None:
    engine = Engine(WRITTEN)
    engine.disk.plan = FaultPlan().shorten(take=take, onwards=True)
    engine.fill(3)
    assert payloads(engine.read(0)) == [payload_of(number) for number in range(9)]
    engine.restart(StopKind.KILLED)
    assert payloads(engine.read(0)) == [payload_of(number) for number in range(9)]


def test_mistake_12_a_full_disk_refuses_whole_batches_at_every_size() -> None:
    batch = numbered(3, 3)
    for room in range(0, batch.size, 37):
        engine = Engine(SYNCED)
        engine.fill(1)
        engine.sync()
        engine.disk.capacity = engine.disk.used + room
        with pytest.raises(DiskFull):
            engine.append(batch)
        assert engine.log.failure is None
        engine.disk.capacity = None
        engine.append(batch)
        engine.sync()
        assert all(log.message_count == 6 for log in after_power_cuts(engine, count=5))


def test_mistake_12_if_the_cut_fails_too_nothing_more_is_written() -> None:
    engine = Engine(replace(SYNCED, durability=DurabilityPolicy(level=Durability.SYNCED)))
    engine.fill(1)
    engine.sync()
    engine.disk.capacity = engine.disk.used + 100
    engine.disk.plan = FaultPlan().fail("truncate", errno.EIO)
    with pytest.raises(DiskFull):
        engine.append_numbered(3)
    engine.disk.capacity = None
    with pytest.raises(PartitionReadOnly):
        engine.append_numbered(3)
    engine.restart(StopKind.KILLED)
    assert engine.log.message_count == 3
    engine.append_numbered(3)
