"""Disk jobs and defects: whatever an exception interrupts, nobody waits for ever, and nobody gets a false success."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

import pytest

from courser.broker.partition.disk_pool import DiskPool
from courser.broker.partition.disk_queue import DiskQueue, JobKind
from courser.broker.partition.partition import Partition
from courser.errors import PartitionReadOnly, StorageFailure
from courser.model.durability import Durability
from courser.storage import upkeep
from courser.storage.jobs import Job
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import EngineLimits, LogSettings
from tests.broker.open_partitions import (
    DIRECTORY,
    IDENTITY,
    GatedFileSystem,
    opened,
    send,
    settings,
    texts,
    until,
)
from tests.fakes.clocks import ManualClock

Step = Callable[[], None]
KIND = JobKind.UPKEEP


class Defect(Exception):
    """What no caller expects."""


def defect(*_arguments: object) -> None:
    raise Defect


def nothing(*_arguments: object) -> None:
    """A step that works."""


def job(run: Step = nothing, complete: Step = nothing, fail: Callable[[StorageFailure], None] = nothing) -> Job:
    return Job("job", run, complete, fail)


def stop_iteration() -> None:
    raise StopIteration


def plan_with_defect() -> Job | None:
    raise Defect


@dataclass
class Queue:
    """A queue whose due jobs a test provides."""

    pool: Executor
    due: list[Callable[[], Job | None]] = field(default_factory=list)
    on_done: Step = nothing
    defects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs = DiskQueue(self.pool, self, retry_delay=0)

    def plan_due(self, kind: JobKind) -> Job | None:
        return self.due.pop(0)() if kind is KIND and self.due else None

    def job_ended(self) -> None:
        self.on_done()

    def note_defect(self, reason: str) -> None:
        self.defects.append(reason)

    async def check_it_goes_on(self) -> None:
        """It still does what it is asked for, and what is due."""
        done: list[str] = []
        async with asyncio.timeout(30):
            await self.jobs.do(KIND, lambda: job(complete=partial(done.append, "asked")))
            self.due.append(lambda: job(complete=partial(done.append, "due")))
            self.jobs.wake(KIND)
            await until(lambda: len(done) == 2)
            await self.jobs.drain()
        assert done == ["asked", "due"]


@pytest.fixture
def queue(pool: Executor) -> Queue:
    return Queue(pool)


DEFECTS: dict[str, Callable[[], Job | None]] = {
    "a plan": plan_with_defect,
    "a run": lambda: job(run=defect),
    "a run that cannot be the exception of a future": lambda: job(run=stop_iteration),
    "a completion": lambda: job(complete=defect),
    "a failure": lambda: job(run=defect, fail=defect),
}


@pytest.mark.parametrize("plan", DEFECTS.values(), ids=DEFECTS)
async def test_who_waits_for_a_job_with_a_defect_is_told_that_it_failed(
    queue: Queue, plan: Callable[[], Job | None]
) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(StorageFailure):
            await queue.jobs.do(KIND, plan)
    await queue.check_it_goes_on()


@pytest.mark.parametrize("plan", DEFECTS.values(), ids=DEFECTS)
async def test_due_work_with_a_defect_does_not_stop_the_queue(queue: Queue, plan: Callable[[], Job | None]) -> None:
    queue.due.append(plan)
    async with asyncio.timeout(30):
        await queue.jobs.drain()
    assert not queue.due
    # What failed is repeated after a delay.
    await until(lambda: queue.jobs._lines[KIND].retry is None)
    await queue.check_it_goes_on()


async def test_a_defect_after_the_completion_is_a_failure_too(queue: Queue) -> None:
    queue.on_done = defect
    async with asyncio.timeout(30):
        with pytest.raises(StorageFailure):
            await queue.jobs.do(KIND, job)
    assert len(queue.defects) == 1
    queue.on_done = nothing
    await queue.check_it_goes_on()


async def test_work_for_a_pool_without_threads_fails() -> None:
    pool = DiskPool(1)
    pool.shutdown()
    queue = Queue(pool)
    async with asyncio.timeout(30):
        with pytest.raises(StorageFailure, match="shut down"):
            await queue.jobs.do(KIND, job)
        queue.due.append(job)
        await queue.jobs.drain()


async def test_jobs_of_one_kind_take_turns_and_those_of_others_do_not_wait(queue: Queue) -> None:
    gate, begun = threading.Event(), list[str]()

    def wait() -> None:
        assert gate.wait(30)

    def waits(name: str) -> Job:
        begun.append(name)
        return job(run=wait)

    async with asyncio.timeout(30):
        upkeep = [asyncio.ensure_future(queue.jobs.do(JobKind.UPKEEP, partial(waits, name))) for name in ("a", "b")]
        await until(lambda: begun == ["a"])
        await queue.jobs.do(JobKind.SYNC, job)
        await queue.jobs.do(JobKind.APPEND, job)
        assert begun == ["a"]
        gate.set()
        await asyncio.gather(*upkeep)
    assert begun == ["a", "b"]


async def test_what_a_caller_waits_for_comes_before_what_is_due(queue: Queue) -> None:
    begun: list[str] = []

    def noted(name: str) -> Job:
        begun.append(name)
        return job()

    asked = [asyncio.ensure_future(queue.jobs.do(KIND, partial(noted, name))) for name in ("first", "second")]
    queue.due.append(partial(noted, "due"))
    queue.jobs.wake(KIND)
    async with asyncio.timeout(30):
        await asyncio.gather(*asked)
        await queue.jobs.drain()
    assert begun == ["first", "second", "due"]


# --- what a partition makes of it ---


STEPS = ["begin_sync", "complete_sync"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("level", [Durability.SYNCED, Durability.BOUNDED])
async def test_no_send_is_acknowledged_after_a_sync_with_a_defect(
    disk: GatedFileSystem,
    pool: Executor,
    level: Durability,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = settings(level) if level is Durability.SYNCED else settings(level, message_count_max=1)
    async with asyncio.timeout(30), opened(disk, pool, wanted) as partition:
        await send(partition, "good")
        monkeypatch.setattr(partition.log, step, defect)
        sends = [asyncio.ensure_future(send(partition, text)) for text in ("one", "two", "three")]
        results = await asyncio.gather(*sends, return_exceptions=True)
        if level is Durability.BOUNDED:
            # A power cut may lose one message at this level, so the first one need not wait.
            results = results[1:]
        assert [type(result) for result in results] == [PartitionReadOnly] * len(results)
        with pytest.raises(PartitionReadOnly):
            await send(partition, "after")
        monkeypatch.undo()
        assert not await partition.close()


async def test_a_sync_that_somebody_asked_for_is_no_success_after_a_defect(
    disk: GatedFileSystem, pool: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(30), opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "written")
        monkeypatch.setattr(partition.log, "complete_sync", defect)
        with pytest.raises(StorageFailure):
            await partition.sync()
        assert partition.log.failure is not None
        assert await texts(partition) == ["written"], "it is still readable"


async def test_a_large_send_whose_completion_has_a_defect_fails_and_holds_nothing_up(
    disk: GatedFileSystem, pool: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = LogSettings(limits=EngineLimits(inline_size=2000))
    async with asyncio.timeout(30), opened(disk, pool, wanted) as partition:
        await send(partition, "small")
        monkeypatch.setattr(partition, "_acknowledge", defect)
        with pytest.raises(StorageFailure):
            await send(partition, "large " * 1000)
        with pytest.raises(PartitionReadOnly):
            await send(partition, "after")


async def test_a_stop_with_a_defect_is_not_clean_and_lets_go_of_everything(
    disk: GatedFileSystem, pool: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(30), opened(disk, pool, settings(Durability.BOUNDED, message_count_max=1)) as partition:
        await send(partition, "one")
        monkeypatch.setattr(upkeep, "_leave_open_segment", defect)
        with pytest.raises(Defect):
            await partition.close()
        assert partition.log.failure is not None
        assert all(segment.file is None for segment in partition.log.segments)


async def test_the_next_start_after_a_defect_does_not_trust_what_was_not_synced(
    disk: GatedFileSystem, pool: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(30), opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "one")
        monkeypatch.setattr(partition.log, "complete_sync", defect)
        with pytest.raises(StorageFailure):
            await partition.sync()
        await partition._queue.drain(JobKind.UPKEEP)
        assert partition.log.ledger.state.sync_failed
        await check_partition_can_be_opened(partition, disk)


async def check_partition_can_be_opened(partition: Partition, disk: GatedFileSystem) -> None:
    log = type(partition.log).open(
        disk, DIRECTORY, IDENTITY, settings=LogSettings(), clock=ManualClock(), stop=StopKind.KILLED
    )
    assert log.failure is None
    log.release_files()
