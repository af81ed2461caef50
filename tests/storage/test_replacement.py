"""A damaged segment is replaced by a copy: at every moment, the segment has one of the two files."""

import errno
import random

import pytest

from courser.storage.jobs import perform
from courser.storage.ledger import DamagedRange
from courser.storage.paths import TEMPORARY_SUFFIX
from courser.storage.recovery_cases import StopKind
from courser.storage.upkeep import plan_replacement
from tests.fakes.files import CrashMoment, FaultPlan, SimulatedCrash
from tests.storage.engine import Engine, flipped

OUTCOME_COUNT = 4
"""Power cuts for each place of a crash."""


def damaged_engine() -> Engine:
    """Three segments of three messages; the second is damaged, as the ledger knows, and has a good copy beside it."""
    engine = Engine()
    for _ in range(3):
        engine.fill(1)
        engine.roll()
    log, segment = engine.log, engine.log.segments[1]
    path = engine.log_path(segment.base_offset)
    good = engine.disk.contents(path)
    engine.disk.plant(path, flipped(good, segment.size - 1))
    engine.disk.open(path.with_name(path.name + TEMPORARY_SUFFIX), writable=True, create=True).write_at(0, [good])
    damage = DamagedRange(segment.base_offset, 0, segment.size, segment.base_offset, segment.end_offset)
    log.ledger.file.append(log.ledger.note(damage), sync=True)
    segment.damages = (damage,)
    return engine


def replace(engine: Engine) -> bool:
    segment = engine.log.segments[1]
    path = engine.log_path(segment.base_offset)
    job = plan_replacement(engine.log, segment, path.with_name(path.name + TEMPORARY_SUFFIX))
    assert job is not None
    return perform(job)


def offsets(engine: Engine) -> list[int]:
    return [message.offset for message in engine.read_all()[0]]


def test_the_copy_takes_the_place_of_the_file_which_is_kept() -> None:
    engine = damaged_engine()
    bad = engine.disk.contents(engine.log_path(3))
    assert offsets(engine) == [0, 1, 2, 6, 7, 8]
    assert replace(engine)
    assert engine.log.segments[1].damages == ()
    assert offsets(engine) == list(range(9))
    assert list(engine.quarantined().values()) == [bad]
    engine.restart(StopKind.CRASHED)
    assert offsets(engine) == list(range(9))
    assert engine.log.ledger.state.damages == []


def test_a_crash_at_every_step_leaves_one_of_the_two_files() -> None:
    undisturbed = damaged_engine()
    before = undisturbed.disk.mutations
    assert replace(undisturbed)
    repaired_count = 0
    for call in range(1, undisturbed.disk.mutations - before + 1):
        for moment in CrashMoment:
            engine = damaged_engine()
            engine.disk.plan = FaultPlan().crash_at(call, moment)
            with pytest.raises(SimulatedCrash):
                replace(engine)
            for outcome in range(OUTCOME_COUNT):
                disk = engine.disk.clone(random.Random(f"{call}, {moment}, {outcome}"))
                disk.plan = FaultPlan()
                later = damaged_engine()
                later.disk = disk
                later.restart(StopKind.CRASHED)
                found = offsets(later)
                assert found in ([0, 1, 2, 6, 7, 8], list(range(9))), (call, moment, outcome)
                assert later.log.failure is None
                repaired_count += len(found) == 9
    assert repaired_count, "some crashes come after the rename"


@pytest.mark.parametrize("operation", ["open", "rename", "write_at"])
def test_a_disk_that_refuses_changes_nothing_for_readers(operation: str) -> None:
    engine = damaged_engine()
    engine.disk.plan = FaultPlan().fail(operation, errno.ENOSPC, onwards=True)
    assert not replace(engine)
    engine.disk.plan = FaultPlan()
    assert engine.log.failure is None
    assert offsets(engine) == [0, 1, 2, 6, 7, 8]
    assert replace(engine)
    assert offsets(engine) == list(range(9))


def test_a_segment_that_was_deleted_meanwhile_is_not_replaced() -> None:
    engine = damaged_engine()
    segment = engine.log.segments[1]
    engine.trim(6)
    assert plan_replacement(engine.log, segment, engine.log_path(3)) is None
