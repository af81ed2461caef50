"""Space ahead of the data: reserved before a send needs it, and not while the disk would keep it waiting."""

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from courser.storage.jobs import Job, perform
from courser.storage.partition_log import PartitionLog
from courser.storage.upkeep import plan_sync, plan_upkeep, plan_writeback
from tests.fakes.files import FaultPlan
from tests.storage.engine import SMALL, Engine, numbered

SETTINGS = replace(SMALL, segment_size=1 << 20, allocation_min=8192, allocation_max=8192, writeback_size=1)
"""An allocation is due when half of it is left, 4,096 bytes; beside a sync, when an eighth is, 1,024 bytes."""


def engine_with_room() -> Engine:
    """Upkeep is done, and space is allocated."""
    engine = Engine(SETTINGS)
    engine.append(numbered(0, 1))
    finish_upkeep(engine.log)
    return engine


def finish_upkeep(log: PartitionLog) -> list[str]:
    names = []
    while (job := plan_upkeep(log)) is not None:
        names.append(job.name)
        assert perform(job)
    return names


def room(log: PartitionLog) -> int:
    segment = log.open_segment
    assert segment is not None
    return segment.allocated_size - segment.size


def use_up(engine: Engine, left: int) -> None:
    """Append until at most so many bytes are left."""
    while room(engine.log) > left:
        engine.append(numbered(0, 1))


def test_space_is_allocated_when_half_of_it_is_used() -> None:
    engine = engine_with_room()
    assert room(engine.log) > 4096
    assert finish_upkeep(engine.log) == []
    use_up(engine, 4096)
    assert "allocation" in finish_upkeep(engine.log)
    assert room(engine.log) > 8192


@pytest.mark.parametrize("plan", [plan_sync, plan_writeback])
def test_not_beside_a_sync_or_a_writeback_while_there_is_room(plan: Callable[[PartitionLog], Job | None]) -> None:
    engine = engine_with_room()
    use_up(engine, 4096)
    job = plan(engine.log)
    assert job is not None
    assert "allocation" not in finish_upkeep(engine.log)
    assert perform(job)
    assert "allocation" in finish_upkeep(engine.log)


@pytest.mark.parametrize("plan", [plan_sync, plan_writeback])
def test_beside_them_too_when_little_is_left(plan: Callable[[PartitionLog], Job | None]) -> None:
    engine = engine_with_room()
    use_up(engine, 1024)
    job = plan(engine.log)
    assert job is not None
    assert "allocation" in finish_upkeep(engine.log)
    assert perform(job)


def test_a_sync_for_which_a_descriptor_was_lacking_is_over() -> None:
    engine = engine_with_room()
    use_up(engine, 4096)
    job = plan_sync(engine.log)
    assert job is not None
    engine.disk.plan = FaultPlan().fail("sync_directory", errno.EMFILE)
    assert not perform(job)
    assert "allocation" in finish_upkeep(engine.log)
