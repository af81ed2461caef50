"""The contract of jobs: plans and completions change a partition, runs do not."""

import copy
import errno
import random
from collections.abc import Callable, Iterator

import pytest

from courser.errors import DiskFull
from courser.model.durability import Durability, DurabilityPolicy
from courser.model.identifiers import ConsumerKind
from courser.storage import upkeep
from courser.storage.jobs import Job
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import EngineLimits, LogSettings
from courser.storage.upkeep import plan_sync
from tests.fakes.clocks import ManualClock
from tests.fakes.faults import FaultPlan
from tests.fakes.files import FakeFileSystem
from tests.storage.engine import DIRECTORY, IDENTITY, SMALL, Engine
from tests.storage.test_time import HOUR, WatchedEngine

SETTINGS = LogSettings(
    segment_size=2_000,
    recovery_point_size=1,
    allocation_min=1,
    writeback_size=1,
    reservation_min=4,
    limits=EngineLimits(index_flush_block_count=0, ledger_garbage_count_max=8, offsets_rewrite_size=100),
    durability=DurabilityPolicy(level=Durability.WRITTEN),
)
KEY = ConsumerKey(ConsumerKind.CONSUMER, b"somebody")
EVERY_UPKEEP = {
    "reservation",
    "allocation",
    "seal",
    "recovery point",
    "time correction",
    "index flush",
    "ledger rewrite",
    "offsets rewrite",
    "offsets mark",
}


def facts_of(log: PartitionLog) -> dict[str, object]:
    """All that the owner knows, as values."""
    known: dict[str, object] = {
        name: value for name, value in vars(log).items() if isinstance(value, int | str | tuple | None)
    }
    known["ledger"] = copy.deepcopy(log.ledger.state)
    known["offsets"] = (id(log.offsets), dict(log.offsets.items()), log.offsets.mark, log.offsets.has_unsynced)
    known["marks"] = (log.marks.written, log.marks.synced)
    known["corrections"] = log.has_unrecorded_corrections
    known["writes"] = copy.copy(log.writes)
    for segment in (*log.departing, *log.segments):
        known[f"segment {segment.base_offset}"] = [
            getattr(segment, name) for name in segment.__slots__ if name != "index"
        ]
        known[f"index {segment.base_offset}"] = segment.index.full_block_count
    return known


def test_a_created_partition_is_opened_as_if_it_had_been_recovered() -> None:
    disk, directory = FakeFileSystem(random.Random(1)), DIRECTORY
    disk.plant_directory(directory.parent)
    PartitionLog.create(disk, directory, IDENTITY, below=directory.parent, epoch=3)
    calls = dict(disk.calls)
    created = PartitionLog.new(disk, directory, IDENTITY, settings=SMALL, clock=ManualClock(), epoch=3)
    assert dict(disk.calls) == calls, "it looks at the disk"
    recovered = PartitionLog.open(disk, directory, IDENTITY, settings=SMALL, clock=ManualClock(), stop=StopKind.CLEAN)
    facts, others = facts_of(created), facts_of(recovered)
    del facts["offsets"], others["offsets"]
    assert facts == others
    assert created.offsets.mark is recovered.offsets.mark is None
    assert created.ledger.draft() == recovered.ledger.draft()
    assert created.ledger.file.record_count == recovered.ledger.file.record_count


def run_and_compare(log: PartitionLog, job: Job) -> None:
    before = facts_of(log)
    job.run()
    assert facts_of(log) == before, f"the run of {job.name!r} changed the partition"
    job.complete()


def busy() -> Iterator[tuple[Engine, Job]]:
    """Jobs of every kind, each to be run and completed before the next one is asked for."""
    engine = WatchedEngine(SETTINGS)
    for number in range(12):
        engine.append_numbered(3, size=100)
        if number % 4 == 3:
            engine.clock.jump(HOUR)
            engine.log.follow_clock()
        for _ in range(5):
            engine.log.store_offset(KEY, engine.log.next_offset - 1)
        for plan in (plan_sync, upkeep.plan_writeback, upkeep.plan_upkeep, upkeep.plan_upkeep, upkeep.plan_upkeep):
            if (job := plan(engine.log)) is not None:
                yield engine, job
        if number == 6:
            job = upkeep.plan_trim(engine.log, engine.log.next_offset)
            assert job is not None
            yield engine, job
    while (job := upkeep.plan_upkeep(engine.log)) is not None and job.name != "index flush":
        yield engine, job
    yield engine, upkeep.plan_purge(engine.log)
    engine.log.fail("a sync failed", is_sync=True)
    report = upkeep.plan_upkeep(engine.log)
    assert report is not None
    yield engine, report


def test_the_run_of_a_job_does_not_change_the_partition() -> None:
    seen = set()
    for engine, job in busy():
        seen.add(job.name)
        run_and_compare(engine.log, job)
    assert seen >= EVERY_UPKEEP | {"sync", "write-back", "trim", "purge", "failure report"}, EVERY_UPKEEP - seen


@pytest.mark.parametrize(
    "name",
    ["reservation", "seal", "recovery point", "time correction", "ledger rewrite", "offsets mark", "trim", "purge"],
)
def test_what_a_full_disk_refused_is_not_in_the_ledgers_state_and_is_due_again(name: str) -> None:
    for engine, job in busy():
        if job.name != name:
            job.run()
            job.complete()
            continue
        before = copy.deepcopy(engine.log.ledger.state)
        engine.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="ledger*")
        with pytest.raises(DiskFull) as caught:
            job.run()
        job.fail(caught.value)
        engine.disk.plan = FaultPlan()
        assert engine.log.failure is None
        assert engine.log.ledger.state == before
        again = planned_again(engine.log, name)
        assert again is not None
        run_and_compare(engine.log, again)
        return
    raise AssertionError(f"no {name}")


def planned_again(log: PartitionLog, name: str) -> Job | None:
    plans: dict[str, Callable[[], Job | None]] = {
        "trim": lambda: upkeep.plan_trim(log, log.next_offset),
        "purge": lambda: upkeep.plan_purge(log),
    }
    job = plans.get(name, lambda: upkeep.plan_upkeep(log))()
    assert job is not None
    assert job.name == name
    return job
