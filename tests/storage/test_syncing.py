"""Syncs: everything written before them survives, a prefix and nothing else, whatever else goes on meanwhile."""

import errno
import random

import pytest

from courser.errors import PartitionReadOnly
from courser.model.durability import Durability
from courser.model.identifiers import ConsumerKind
from courser.storage.jobs import Job, perform
from courser.storage.offset_table import ConsumerKey
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.upkeep import close, plan_purge, plan_sync
from tests.fakes.faults import FaultPlan
from tests.fakes.files import FakeFileSystem
from tests.storage.engine import Engine, durability

SYNCED = LogSettings(segment_size=3000, durability=durability(Durability.SYNCED))
KEY = ConsumerKey(ConsumerKind.GROUP, b"group")


def begun(engine: Engine) -> Job:
    job = plan_sync(engine.log)
    assert job is not None
    return job


def test_a_sync_moves_the_mark_to_what_was_written_when_it_began() -> None:
    engine = Engine(SYNCED)
    engine.fill(2)
    job = begun(engine)
    engine.fill(2)
    assert perform(job)
    assert engine.log.marks.synced.offset == 6
    engine.sync()
    assert engine.log.marks.synced.offset == 12
    assert plan_sync(engine.log) is None


@pytest.mark.parametrize("seed", range(30))
def test_what_is_synced_survives_a_power_cut_and_nothing_without_its_predecessors(seed: int) -> None:
    engine = Engine(SYNCED, disk=FakeFileSystem(random.Random(seed)))
    source = random.Random(seed)
    for _ in range(20):
        engine.append_numbered(source.randrange(1, 4), size=200)
        if source.random() < 0.3:
            engine.sync()
        if source.random() < 0.2:
            engine.upkeep()
    synced = engine.log.marks.synced.offset
    engine.restart(StopKind.CRASHED)
    found = [message.offset for message in engine.read_all()[0]]
    assert found == list(range(len(found)))
    assert len(found) >= synced


def test_a_seal_that_overtakes_the_sync_leaves_nobody_waiting() -> None:
    """The second message was synced by the seal: the mark has to say so, or its sender would wait for ever."""
    engine = Engine(SYNCED)
    engine.append_numbered(1)
    first = begun(engine)
    engine.append_numbered(1)
    engine.roll()
    assert perform(first)
    assert engine.log.marks.synced.offset == 1
    assert perform(begun(engine))
    assert engine.log.marks.synced.offset == 2
    assert plan_sync(engine.log) is None


def test_a_purge_during_a_sync_harms_neither() -> None:
    engine = Engine(SYNCED)
    engine.fill(2)
    engine.sync()
    engine.log.store_offset(KEY, 3)
    engine.fill(1)
    job = begun(engine)
    assert perform(plan_purge(engine.log))
    assert perform(job)
    assert engine.log.failure is None
    assert engine.log.marks.synced.offset == 9
    engine.fill(1)
    engine.sync()
    engine.restart(StopKind.CRASHED)
    assert [message.offset for message in engine.read_all()[0]] == [9, 10, 11]


def test_a_sync_includes_the_stored_offsets() -> None:
    engine = Engine(SYNCED)
    engine.fill(2)
    engine.sync()
    engine.log.store_offset(KEY, 1)
    engine.log.store_offset(KEY, 5)
    engine.sync()
    engine.restart(StopKind.CRASHED)
    assert engine.log.offsets.get(KEY) == 5


@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_a_failed_sync_closes_the_partition_and_is_not_tried_again(operation: str) -> None:
    engine = Engine(SYNCED)
    engine.fill(1)
    engine.disk.plan = FaultPlan().fail(operation, errno.EIO)
    assert not perform(begun(engine))
    engine.disk.plan = FaultPlan()
    assert engine.log.marks.synced.offset == 0
    assert plan_sync(engine.log) is None
    with pytest.raises(PartitionReadOnly):
        engine.append_numbered(1)
    with pytest.raises(PartitionReadOnly):
        engine.log.store_offset(KEY, 0)
    assert engine.read_all()[0] == [], "at synced nobody sees what was never synced"


def test_a_defect_during_a_watched_run_counts_as_a_failed_sync() -> None:
    engine = Engine(SYNCED)
    with pytest.raises(ZeroDivisionError):
        engine.log.syncs.watch(lambda: 1 // 0)()  # type: ignore[arg-type]
    engine.fill(1)
    assert not perform(begun(engine))


def test_a_stop_whose_last_sync_fails_for_a_moment_is_not_clean() -> None:
    """Whatever was in that sync and in no later one is not durable, and no one repeats it."""
    engine = Engine(LogSettings(segment_size=10_000, durability=durability(Durability.WRITTEN)))
    engine.fill(1)
    engine.log.store_offset(KEY, 0)
    engine.sync()
    engine.log.roll()
    engine.upkeep()
    engine.fill(1)
    engine.log.store_offset(KEY, 1)
    engine.disk.plan = FaultPlan().fail("sync_directory", errno.EMFILE)
    close(engine.log)
    assert engine.log.failure is not None
    engine.disk.plan = FaultPlan()
    engine.stop(StopKind.CRASHED)
    engine.open(StopKind.CRASHED)
    assert not any(finding.is_damage for finding in engine.log.findings)
