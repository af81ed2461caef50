"""One sync for many partitions: what it covers, and what happens if it fails."""

import errno
import random
from pathlib import Path

from courser.broker.partition.shared_syncs import SharedSyncs
from courser.broker.partition.whole_syncs import WholeSyncs, sync_together
from courser.errors import StorageFailure
from courser.model.durability import Durability
from courser.storage.jobs import Job, perform
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.syncing import plan_sync
from courser.testing.faults import FaultPlan
from courser.testing.files import FakeFileSystem
from tests.storage.engine import Engine, durability

BOUNDED = LogSettings(durability=durability(Durability.BOUNDED))


def engines(disk: FakeFileSystem, count: int) -> list[Engine]:
    """Partitions on one disk, each with six messages that are not synced."""
    found = [Engine(BOUNDED, disk=disk, directory=Path(f"/data/{number}")) for number in range(count)]
    for engine in found:
        engine.fill(2)
    return found


def begun(engine: Engine) -> Job:
    job = plan_sync(engine.log)
    assert job is not None
    return job


def test_one_call_syncs_all_that_wait() -> None:
    disk = FakeFileSystem(random.Random(1))
    partitions = engines(disk, 3)
    shared = SharedSyncs(WholeSyncs(disk.open_whole(Path("/data"))), many_count=3)
    jobs = [shared.share(begun(engine)) for engine in partitions]
    calls = disk.calls["sync"], disk.calls["sync_directory"]
    assert all(perform(job) for job in jobs)
    # One partition is synced by itself: it proves that the file system was sound.
    assert (disk.calls["sync"], disk.calls["sync_directory"]) == (calls[0] + 1, calls[1] + 1)
    assert disk.calls["sync_whole"] == 1
    disk.power_cut()
    for engine in partitions:
        engine.open(StopKind.CRASHED)
        assert len(engine.read_all()[0]) == 6


def test_a_few_sync_their_own_files() -> None:
    disk = FakeFileSystem(random.Random(1))
    shared = SharedSyncs(WholeSyncs(disk.open_whole(Path("/data"))), many_count=3)
    for engine in engines(disk, 5):
        job = shared.share(begun(engine))
        assert perform(job)
        assert engine.log.marks.synced.offset == 6
    assert disk.calls["sync_whole"] == 0


def test_what_was_planned_later_is_not_covered() -> None:
    disk = FakeFileSystem(random.Random(1))
    first, second = engines(disk, 2)
    shared = SharedSyncs(WholeSyncs(disk.open_whole(Path("/data"))), many_count=1)
    assert perform(shared.share(begun(first)))
    job = shared.share(begun(second))
    assert perform(job)
    assert disk.calls["sync_whole"] == 2


def test_after_a_failure_every_file_is_asked_for_itself() -> None:
    plan = FaultPlan().fail("sync_whole", errno.EIO)
    disk = FakeFileSystem(random.Random(1))
    first, second = engines(disk, 2)
    shared = SharedSyncs(WholeSyncs(disk.open_whole(Path("/data"))), many_count=1)
    jobs = [shared.share(begun(engine)) for engine in (first, second)]
    disk.plan = plan
    assert not any(perform(job) for job in jobs), "both have lost something"
    assert first.log.failure is not None
    assert second.log.failure is not None
    assert first.log.marks.synced.offset == second.log.marks.synced.offset == 0
    assert disk.calls["sync_whole"] == 1, "a second one would succeed, and prove nothing"


def test_a_sync_without_proof_is_not_believed() -> None:
    disk = FakeFileSystem(random.Random(1))
    first, second, third = engines(disk, 3)
    whole = WholeSyncs(disk.open_whole(Path("/data")))
    jobs = [begun(engine) for engine in (first, second, third)]
    # As if the file system had turned read-only: the call for all of it succeeds, that for a file does not.
    disk.plan = FaultPlan().fail("sync", errno.EROFS, onwards=True)
    failures = sync_together(whole, [job.run for job in jobs])
    assert all(isinstance(failure, StorageFailure) for failure in failures)
    assert disk.calls["sync_whole"] == 1
    assert whole.has_failed
    assert whole.count == 0


def test_whoever_comes_after_a_failure_syncs_his_own_file() -> None:
    disk = FakeFileSystem(random.Random(1))
    first, second = engines(disk, 2)
    whole = WholeSyncs(disk.open_whole(Path("/data")))
    job, other = begun(first), begun(second)
    disk.plan = FaultPlan().fail("sync_whole", errno.EIO)
    assert sync_together(whole, [job.run]) != [None]
    calls = disk.calls["sync"]
    assert sync_together(whole, [other.run]) != [None], "its data was lost by the same failure"
    assert (disk.calls["sync"], disk.calls["sync_whole"]) == (calls + 1, 1)


def test_partitions_that_are_synced_together_survive_a_power_cut() -> None:
    disk = FakeFileSystem(random.Random(1))
    partitions = engines(disk, 4)
    whole = WholeSyncs(disk.open_whole(Path("/data")))
    jobs = [begun(engine) for engine in partitions]
    assert sync_together(whole, [job.run for job in jobs]) == [None] * 4
    for job in jobs:
        job.complete()
    disk.power_cut()
    for engine in partitions:
        engine.open(StopKind.CRASHED)
        assert len(engine.read_all()[0]) == 6
