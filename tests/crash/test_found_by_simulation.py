"""Each defect that the simulator has found in the log, as the shortest story that shows it."""

import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest

from courser.errors import DiskFull, InvalidOffset, StorageFailure
from courser.model.durability import Durability
from courser.model.identifiers import ConsumerKind
from courser.records.layout import BATCH_HEADER_SIZE
from courser.storage.durable_files import make_directories
from courser.storage.jobs import Job, perform
from courser.storage.log_reader import LogReader
from courser.storage.offset_table import ConsumerKey
from courser.storage.recovery_cases import StopKind
from courser.storage.upkeep import plan_purge, plan_reservation, plan_sync, plan_trim, plan_upkeep
from tests.crash.outcomes import after_power_cuts
from tests.fakes.files import CrashMoment, FakeFileSystem, FaultPlan, SimulatedCrash
from tests.simulator.small_settings import SMALL_LIMITS
from tests.storage.engine import SMALL, Engine, batch_of, durability, messages_of, numbered

KEY = ConsumerKey(ConsumerKind.CONSUMER, b"1")
SYNCED = replace(SMALL, durability=durability(Durability.SYNCED))
WRITTEN = replace(SMALL, durability=durability(Durability.WRITTEN))


def full_disk(engine: Engine, room: int) -> None:
    engine.disk.capacity = engine.disk.used + room


def test_names_are_synced_by_the_start_after_a_kill() -> None:
    engine = Engine(SYNCED)
    engine.fill(1)
    engine.restart(StopKind.KILLED)
    engine.fill(1)
    engine.sync()
    assert all(log.message_count == 6 for log in after_power_cuts(engine))


def test_a_reservation_that_was_not_synced_before_a_kill_is_synced_before_it_is_used() -> None:
    engine = Engine(WRITTEN)
    job = plan_reservation(engine.log, 1)
    assert job is not None
    engine.disk.plan = FaultPlan().crash_at(2, CrashMoment.BEFORE)
    with pytest.raises(SimulatedCrash):
        job.run()
    engine.disk.plan = FaultPlan()
    engine.restart(StopKind.KILLED)
    assert engine.log.reserved_end > 0
    engine.log.append(numbered(engine.log.next_offset, 1))
    assert all(log.next_offset >= engine.log.next_offset for log in after_power_cuts(engine))


def test_recovery_points_that_a_power_cut_took_are_no_damage() -> None:
    engine = Engine(replace(SYNCED, segment_size=20_000, recovery_point_size=300))
    for _ in range(4):
        engine.fill(3)
        engine.sync()
        engine.upkeep()
    assert engine.log.ledger.state.progress is not None
    for log in after_power_cuts(engine):
        assert not [finding for finding in log.findings if finding.is_damage]


def test_a_store_behind_an_unsynced_move_back_waits_for_the_sync_too() -> None:
    engine = Engine(WRITTEN)
    engine.fill(4)
    engine.log.store_offset(KEY, 9)
    engine.sync()
    assert engine.log.store_offset(KEY, 3)
    assert engine.log.store_offset(KEY, 5), "a power cut could bring 9 back"
    engine.sync()
    assert not engine.log.store_offset(KEY, 6)


def test_a_store_behind_an_unsynced_delete_waits_for_the_sync_too() -> None:
    engine = Engine(WRITTEN)
    engine.fill(4)
    engine.log.store_offset(KEY, 9)
    engine.sync()
    engine.log.delete_offset(KEY)
    sync = plan_sync(engine.log)
    assert sync is not None
    assert engine.log.store_offset(KEY, 3), "the sync of the delete is not done"
    assert perform(sync)
    engine.sync()
    assert not engine.log.store_offset(KEY, 4)


def test_at_synced_nobody_stores_an_offset_that_nobody_has_seen() -> None:
    engine = Engine(SYNCED)
    engine.fill(1)
    with pytest.raises(InvalidOffset):
        engine.log.store_offset(KEY, 2)
    engine.sync()
    engine.log.store_offset(KEY, 2)


def test_a_sync_may_end_after_a_purge_that_overtook_it() -> None:
    engine = Engine(WRITTEN)
    engine.fill(1)
    sync = plan_sync(engine.log)
    assert sync is not None
    engine.fill(1)
    assert perform(plan_purge(engine.log))
    assert perform(sync)
    assert engine.log.marks.synced.offset == engine.log.next_offset == 6


def test_a_sync_while_a_purge_is_planned_syncs_what_the_purge_has_not_removed_yet() -> None:
    engine = Engine(SYNCED)
    engine.fill(2)
    plan_purge(engine.log)
    engine.sync()
    assert engine.log.marks.synced.offset == 6
    for log in after_power_cuts(engine):
        assert log.message_count == 6


def test_a_seal_that_synced_the_last_message_moves_the_synced_mark() -> None:
    engine = Engine(SYNCED)
    engine.fill(1)
    engine.sync()
    engine.restart(StopKind.KILLED)
    engine.fill(1)
    engine.roll()
    engine.sync()
    assert engine.log.marks.synced.offset == 6


def sync_and_seal_of_one_file(engine: Engine) -> tuple[Job, Job]:
    """Both planned, neither run."""
    engine.fill(1)
    sync = plan_sync(engine.log)
    engine.log.roll()
    seal = plan_upkeep(engine.log)
    assert sync is not None
    assert seal is not None
    assert seal.name == "seal"
    return sync, seal


def test_a_sync_is_not_believed_after_the_seal_of_the_same_file_failed() -> None:
    engine = Engine(SYNCED)
    sync, seal = sync_and_seal_of_one_file(engine)
    engine.disk.plan = FaultPlan().fail("sync", errno.EIO)
    with pytest.raises(StorageFailure):
        seal.run()
    # The owner has not heard of the failure yet, and the kernel would say yes now.
    with pytest.raises(StorageFailure):
        sync.run()


def test_a_sync_that_ran_before_the_seal_failed_is_not_completed_after_it() -> None:
    engine = Engine(SYNCED)
    sync, seal = sync_and_seal_of_one_file(engine)
    sync.run()
    engine.disk.plan = FaultPlan().fail("sync", errno.EIO)
    with pytest.raises(StorageFailure):
        seal.run()
    sync.complete()
    assert engine.log.marks.synced.offset == 0


def test_the_name_of_the_first_stored_offset_is_durable_with_the_next_sync() -> None:
    engine = Engine(WRITTEN)
    engine.fill(1)
    engine.sync()
    engine.log.store_offset(KEY, 1)
    assert {log.offsets.get(KEY) for log in after_power_cuts(engine)} == {None, 1}
    engine.sync()
    assert all(log.offsets.get(KEY) == 1 for log in after_power_cuts(engine))


def test_what_a_power_cut_leaves_of_a_file_of_offsets_that_was_never_synced_is_no_damage() -> None:
    engine = Engine(WRITTEN)
    engine.fill(1)
    engine.sync()
    engine.log.store_offset(KEY, 1)
    for log in after_power_cuts(engine):
        assert not [finding for finding in log.findings if finding.is_damage]


def test_stores_that_were_synced_before_a_rewrite_are_durable_in_the_new_file() -> None:
    engine = Engine(replace(WRITTEN, limits=SMALL_LIMITS))
    engine.fill(4)
    engine.upkeep()
    for offset in range(10):
        engine.log.store_offset(KEY, offset)
    engine.sync()
    rewrite = plan_upkeep(engine.log)
    assert rewrite is not None
    assert rewrite.name == "offsets rewrite"
    rewrite.run()
    assert all(log.offsets.get(KEY) == 9 for log in after_power_cuts(engine))
    rewrite.complete()
    assert all(log.offsets.get(KEY) == 9 for log in after_power_cuts(engine))


def test_a_cut_after_a_full_disk_takes_no_later_segment_with_it() -> None:
    engine = Engine(SYNCED)
    engine.fill(1)
    engine.sync()
    full_disk(engine, room=100)
    with pytest.raises(DiskFull):
        engine.append_numbered(3)
    engine.disk.capacity = None
    engine.log.roll()
    engine.append_numbered(3)
    engine.sync()
    assert len(engine.log.segments) == 2
    assert all(log.message_count == 6 for log in after_power_cuts(engine))


@pytest.mark.parametrize("removal", ["trim", "purge"])
def test_a_removal_that_finds_the_disk_full_has_not_happened(removal: str) -> None:
    engine = Engine(WRITTEN)
    engine.fill(3)
    engine.roll()
    engine.fill(1)
    job = plan_trim(engine.log, 9) if removal == "trim" else plan_purge(engine.log)
    assert job is not None
    full_disk(engine, room=0)
    assert not perform(job)
    engine.disk.capacity = None
    assert engine.log.failure is None
    assert [message.offset for message in engine.read(0)] == list(range(12))
    engine.fill(1)
    engine.restart(StopKind.KILLED)
    assert engine.log.start_offset == 0
    assert engine.log.next_offset == 15


def test_time_does_not_go_back_after_a_purge_and_a_restart() -> None:
    engine = Engine(WRITTEN)
    timestamp = engine.append_numbered(1).timestamp
    assert perform(plan_purge(engine.log))
    engine.clock.jump(-30_000_000)
    engine.restart(StopKind.CRASHED)
    assert engine.append_numbered(1).timestamp >= timestamp


def test_offsets_are_not_given_out_again_after_a_failed_sync_that_nobody_lived_to_report() -> None:
    engine = Engine(WRITTEN)
    engine.fill(1)
    engine.sync()
    engine.fill(2)
    job = plan_sync(engine.log)
    assert job is not None
    engine.disk.plan = FaultPlan().fail("sync", errno.EIO)
    with pytest.raises(StorageFailure):
        job.run()
    engine.disk.plan = FaultPlan()
    engine.restart(StopKind.KILLED)
    assert engine.log.next_offset == 9


def test_a_stop_that_fails_to_sync_reports_it_for_the_next_start() -> None:
    engine = Engine(WRITTEN)
    engine.fill(1)
    engine.disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log")
    engine.stop(StopKind.CLEAN)
    engine.disk.plan = FaultPlan()
    assert engine.log.failure is not None
    engine.open(StopKind.KILLED)
    assert engine.log.next_offset > 3, "nothing unsynced is believed, so numbering goes on above what was reserved"


def test_half_a_record_of_a_full_disk_does_not_outlive_a_clean_stop() -> None:
    engine = Engine(WRITTEN)
    engine.fill(1)
    engine.log.store_offset(KEY, 1)
    full_disk(engine, room=10)
    with pytest.raises(DiskFull):
        engine.log.store_offset(KEY, 2)
    job = plan_reservation(engine.log, engine.log.reserved_end)
    assert job is not None
    assert not perform(job)
    engine.disk.capacity = None
    engine.stop(StopKind.CLEAN)
    assert engine.log.failure is None
    engine.disk.power_cut()
    assert not engine.open(StopKind.CLEAN).findings


def test_a_cut_that_failed_is_made_again_by_the_next_start() -> None:
    engine = Engine(SYNCED)
    engine.fill(1)
    engine.sync()
    engine.fill(3)
    path = engine.log_path()
    data = bytearray(engine.disk.contents(path))
    data[engine.batch_starts()[1] + 300] ^= 1
    engine.disk.plant(path, data)
    engine.disk.kill()
    engine.disk.plan = FaultPlan().fail("truncate", errno.EIO)
    assert engine.open(StopKind.CRASHED).failure is not None
    engine.disk.plan = FaultPlan()
    engine.restart(StopKind.KILLED)
    assert engine.log.failure is None
    messages, _ = engine.read_all()
    assert [message.offset for message in messages] == [0, 1, 2], "what was behind the cut is not back"


def test_a_directory_that_is_there_already_is_synced_all_the_same() -> None:
    path = Path("/data/one/two")
    for number in range(40):
        disk = FakeFileSystem(random.Random(number))
        disk.plant_directory(Path("/data"))
        disk.make_directory(Path("/data/one"))
        make_directories(disk, path, below=Path("/data"))
        disk.power_cut()
        assert disk.list_directory(path) == []


def test_a_refused_batch_that_lacks_nothing_but_zeros_does_not_come_back_at_an_offset_that_was_given_again() -> None:
    engine = Engine(WRITTEN)
    engine.fill(1)
    engine.sync()
    refused = batch_of(b"refused" + bytes(100))
    full_disk(engine, room=BATCH_HEADER_SIZE + len(refused.body) - 50)
    with pytest.raises(DiskFull):
        engine.log.append(refused)
    engine.disk.capacity = None
    # It is larger: if the power fails, zeros may stand where the end of the refused one would be.
    engine.append(batch_of(b"taken" * 100))
    found = {
        message.payload[:7]
        for log in after_power_cuts(engine, count=500)
        for message in messages_of(LogReader(log).read(3, count=1, size_max=1000))
    }
    assert found == {b"takenta"}
