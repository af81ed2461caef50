"""A recovery on a full disk: everything can be read and freed, nothing is appended until the recovery found room."""

import contextlib
import errno
import itertools
import random
from dataclasses import replace

import pytest

from courser.catalog.partitions import leave_behind
from courser.errors import DiskFull, PartitionReadOnly
from courser.model.durability import Durability
from courser.model.identifiers import ConsumerKind
from courser.storage.jobs import perform
from courser.storage.offset_table import ConsumerKey
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import begin_session, end_session, how_it_stopped, read_session
from courser.storage.upkeep import close, plan_purge, plan_sync, plan_trim, plan_upkeep
from tests.fakes.clocks import ManualClock
from tests.fakes.files import CrashMoment, FakeFileSystem, FaultPlan, SimulatedCrash
from tests.storage.engine import DIRECTORY, SMALL, Engine, batch_of, durability, flipped

CONSUMER = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")
TORN = b"a batch that a kill has torn" * 9
SYNCED = replace(SMALL, durability=durability(Durability.SYNCED))
STOPS = (StopKind.KILLED, StopKind.CRASHED)


def full() -> FaultPlan:
    """Nothing that needs room works."""
    plan = FaultPlan().fail("write_at", errno.ENOSPC, onwards=True)
    return plan.fail("make_directory", errno.ENOSPC, onwards=True)


def killed(*, synced: bool = False) -> Engine:
    """A partition with sealed segments, a stored offset, and torn bytes at the ends of the log and of the offsets."""
    engine = Engine(SYNCED if synced else SMALL)
    engine.fill(30)
    engine.sync()
    engine.log.store_offset(CONSUMER, 5)
    engine.sync()
    engine.upkeep()
    engine.fill(2)
    engine.sync()
    engine.stop(StopKind.KILLED)
    last = engine.log_paths()[-1]
    size = next(segment.size for segment in engine.log.segments[-1:])
    engine.disk.plant(last, engine.disk.contents(last)[:size] + TORN)
    engine.disk.plant(engine.offsets_path, engine.disk.contents(engine.offsets_path) + b"torn")
    return engine


def offsets_of(engine: Engine) -> list[int]:
    return [message.offset for message in engine.read_all(engine.log.start_offset)[0]]


@pytest.mark.parametrize("stop", STOPS)
def test_everything_can_be_read_and_nothing_written_until_there_is_room(stop: StopKind) -> None:
    engine = killed()
    torn = engine.disk.contents(engine.log_paths()[-1])
    engine.disk.plan = full()
    log = engine.open(stop)
    before, next_offset = offsets_of(engine), log.next_offset
    assert len(before) == 96
    assert log.offsets.get(CONSUMER) == 5
    assert log.failure is None
    for refused in (
        lambda: log.append(batch_of(b"x")),
        lambda: log.store_offset(CONSUMER, 6),
        lambda: log.delete_offset(CONSUMER),
    ):
        with pytest.raises(DiskFull, match="could not recover"):
            refused()
    for _ in range(3):
        job = plan_upkeep(log)
        assert job is not None
        assert job.name == "recovery"
        assert not perform(job)
        assert plan_sync(log) is None
    assert engine.disk.contents(engine.log_paths()[-1]) == torn, "not copied to quarantine, so not cut"
    assert offsets_of(engine) == before
    engine.disk.plan = FaultPlan()
    engine.upkeep()
    assert (log.lack_of_room, log.failure) == (None, None)
    assert (offsets_of(engine), log.next_offset, log.offsets.get(CONSUMER)) == (before, next_offset, 5)
    assert any(TORN.startswith(data[:20]) for data in engine.quarantined().values())
    assert engine.append(batch_of(b"again")).base_offset == next_offset
    log.store_offset(CONSUMER, 7)
    engine.restart()
    assert offsets_of(engine) == [*before, next_offset]
    assert engine.log.offsets.get(CONSUMER) == 7


@pytest.mark.parametrize("stop", STOPS)
def test_what_frees_space_works_before_there_is_room(stop: StopKind) -> None:
    engine = killed()
    # Only the ledger takes records: its last block has room.
    engine.disk.plan = FaultPlan().fail("make_directory", errno.ENOSPC, onwards=True)
    log = engine.open(stop)
    assert log.lack_of_room is not None
    next_offset = log.next_offset
    trim = plan_trim(log, log.segments[1].end_offset)
    assert trim is not None
    assert perform(trim)
    assert offsets_of(engine)[0] == log.segments[0].base_offset > 0
    assert perform(plan_purge(log))
    assert offsets_of(engine) == []
    assert engine.log_paths() == []
    engine.upkeep()
    assert engine.log.lack_of_room is None, "there was nothing left to keep aside"
    assert (log.next_offset, log.epoch, log.offsets.get(CONSUMER)) == (next_offset, 1, None)
    engine.append(batch_of(b"x"))
    engine.restart()
    assert offsets_of(engine) == [next_offset]


def test_a_stop_before_there_is_room_is_not_clean_and_changes_nothing() -> None:
    engine = killed()
    engine.disk.plan = full()
    log = engine.open(StopKind.KILLED)
    files = {path: engine.disk.contents(path) for path in engine.disk.files()}
    close(log)
    assert log.failure is not None
    assert {path: engine.disk.contents(path) for path in engine.disk.files()} == files
    engine.disk.kill()
    engine.disk.plan = FaultPlan()
    assert engine.open(StopKind.KILLED).lack_of_room is None
    assert len(offsets_of(engine)) == 96


def test_a_kill_does_not_make_less_of_a_crash_that_was_not_recovered() -> None:
    engine = killed()
    engine.disk.plan = full()
    assert engine.open(StopKind.CRASHED).is_incomplete
    engine.disk.kill()
    assert not engine.open(StopKind.KILLED).is_incomplete


@pytest.mark.parametrize("with_power_cut", [False, True], ids=["kill", "power cut"])
def test_synced_messages_survive_an_end_at_any_moment_of_a_recovery_without_room(with_power_cut: bool) -> None:
    for call in itertools.count(1):
        engine = killed(synced=True)
        engine.disk.random = random.Random(call)
        engine.disk.plan = full()
        log = engine.open(StopKind.KILLED)
        before = offsets_of(engine)
        assert log.lack_of_room is not None
        engine.disk.plan = FaultPlan().crash_at(call, random.Random(call).choice(tuple(CrashMoment)))
        try:
            engine.upkeep()
        except SimulatedCrash:
            is_over = False
        else:
            is_over = True
        engine.disk.plan = FaultPlan()
        if with_power_cut:
            engine.disk.power_cut()
        else:
            engine.disk.kill()
        engine.open(StopKind.CRASHED if with_power_cut else StopKind.KILLED)
        assert offsets_of(engine) == before
        assert engine.log.offsets.get(CONSUMER) == 5
        engine.append(batch_of(b"x"))
        if is_over:
            assert call > 5
            return


def test_a_ledger_that_cannot_be_written_is_written_later() -> None:
    engine = killed()
    engine.disk.plant(engine.ledger_path, flipped(engine.disk.contents(engine.ledger_path), 300))
    engine.disk.plan = full()
    log = engine.open(StopKind.KILLED)
    assert log.lack_of_room is not None
    engine.disk.plan = FaultPlan()
    engine.upkeep()
    assert engine.log.lack_of_room is None
    engine.restart()
    assert not engine.letters()


def test_who_refuses_writes_while_the_recovery_runs_still_does_after_it() -> None:
    engine = killed()
    engine.disk.plan = full()
    log = engine.open(StopKind.KILLED)
    engine.disk.plan = FaultPlan()
    job = plan_upkeep(log)
    assert job is not None
    job.run()
    log.fail("the topic was deleted")
    job.complete()
    assert (log.failure, log.lack_of_room) == ("the topic was deleted", None)
    with pytest.raises(PartitionReadOnly):
        log.append(batch_of(b"x"))


def without_room_for_offsets() -> Engine:
    """Only the file of stored offsets has to be kept aside."""
    engine = Engine()
    engine.fill(3)
    engine.log.store_offset(CONSUMER, 5)
    engine.sync()
    engine.stop(StopKind.KILLED)
    engine.disk.plant(engine.offsets_path, engine.disk.contents(engine.offsets_path) + b"torn")
    engine.disk.plan = full()
    return engine


def test_a_segment_that_was_closed_before_there_was_room_stays_closed() -> None:
    engine = without_room_for_offsets()
    log = engine.open(StopKind.KILLED)
    assert log.open_segment is not None
    # A purge that failed for lack of room is still due, and must not touch what is sent from now on.
    leave_behind(log, log.next_offset)
    engine.disk.plan = FaultPlan()
    engine.upkeep()
    assert log.lack_of_room is None
    sent = engine.append(batch_of(b"new"))
    assert perform(plan_purge(log, end_offset=sent.base_offset))
    assert offsets_of(engine) == [sent.base_offset]


def test_times_in_the_future_stay_corrected_when_there_is_room() -> None:
    engine = without_room_for_offsets()
    engine.clock = ManualClock(engine.clock.now() - 3_600_000_000)
    log = engine.open(StopKind.KILLED)
    assert [segment.last_stored_at for segment in log.segments] == [engine.clock.now()]
    engine.disk.plan = FaultPlan()
    engine.upkeep()
    assert log.lack_of_room is None
    assert [segment.last_stored_at for segment in log.segments] == [engine.clock.now()]


def test_repeated_recoveries_do_not_fill_the_disk_with_parts_of_copies() -> None:
    engine = killed()
    engine.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, onwards=True)
    log = engine.open(StopKind.KILLED)
    for _ in range(3):
        job = plan_upkeep(log)
        assert job is not None
        assert not perform(job)
    assert engine.quarantined() == {}


def before_a_larger_segment() -> tuple[Engine, int]:
    """Two unsealed segments, all of it synced and confirmed, and the path of the first one; the next offset."""
    engine = Engine(replace(SYNCED, segment_size=1 << 20))
    engine.fill(5)
    engine.log.roll()
    engine.fill(200)
    engine.sync()
    next_offset = engine.log.next_offset
    engine.stop(StopKind.KILLED)
    assert len(engine.log_paths()) == 2
    engine.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="ledger*", onwards=True)
    return engine, next_offset


@pytest.mark.parametrize("is_missing", [False, True], ids=["damaged", "missing"])
@pytest.mark.parametrize("is_ended", [False, True], ids=["room", "power cut"])
def test_confirmed_offsets_behind_a_loss_are_not_used_again(is_missing: bool, is_ended: bool) -> None:
    engine, next_offset = before_a_larger_segment()
    first = engine.log_path()
    if is_missing:
        engine.disk.unlink(first)
    else:
        engine.disk.plant(first, flipped(engine.disk.contents(first), engine.batch_starts()[4] + 100))
    log = engine.open(StopKind.CRASHED)
    assert log.lack_of_room is not None
    assert log.next_offset >= next_offset
    engine.disk.plan = FaultPlan()
    if is_ended:
        engine.disk.power_cut()
        log = engine.open(StopKind.CRASHED)
    else:
        engine.upkeep()
    assert log.lack_of_room is None
    assert engine.append(batch_of(b"new")).base_offset >= next_offset


# --- the session file ---


def disk_with_session(*, is_clean: bool) -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(3))
    disk.plant_directory(DIRECTORY)
    (end_session if is_clean else begin_session)(disk, DIRECTORY)
    return disk


def test_a_session_begins_on_a_full_disk() -> None:
    disk = disk_with_session(is_clean=True)
    assert how_it_stopped(disk, DIRECTORY) is StopKind.CLEAN
    disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="*.tmp", onwards=True)
    begin_session(disk, DIRECTORY, 7)
    disk.plan = FaultPlan()
    session = read_session(disk, DIRECTORY)
    assert session is not None
    assert (session.is_clean, session.time) == (False, 7)
    assert how_it_stopped(disk, DIRECTORY) is StopKind.KILLED


def test_no_power_cut_lets_a_session_that_began_on_a_full_disk_look_clean() -> None:
    for seed in range(200):
        disk = disk_with_session(is_clean=False)
        disk.random = random.Random(seed)
        disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="*.tmp", onwards=True).crash_at(2 + seed % 8)
        with contextlib.suppress(SimulatedCrash):
            begin_session(disk, DIRECTORY, seed)
        disk.plan = FaultPlan()
        disk.power_cut()
        assert how_it_stopped(disk, DIRECTORY) is StopKind.CRASHED


def test_without_a_session_file_a_full_disk_refuses() -> None:
    disk = FakeFileSystem(random.Random(3))
    disk.plant_directory(DIRECTORY)
    disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, onwards=True)
    with pytest.raises(DiskFull):
        begin_session(disk, DIRECTORY)
