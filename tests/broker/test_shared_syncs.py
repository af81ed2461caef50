"""One sync for many partitions: what it covers, and what happens if it fails."""

import errno
import random
from pathlib import Path

from courser.broker.shared_syncs import SharedSyncs
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
    shared = SharedSyncs(disk.open_whole(Path("/data")), many_count=3)
    jobs = [shared.share(begun(engine)) for engine in partitions]
    calls = disk.calls["sync"], disk.calls["sync_directory"]
    assert all(perform(job) for job in jobs)
    assert (disk.calls["sync"], disk.calls["sync_directory"]) == calls
    assert disk.calls["sync_whole"] == shared.whole_sync_count == 1
    disk.power_cut()
    for engine in partitions:
        engine.open(StopKind.CRASHED)
        assert len(engine.read_all()[0]) == 6


def test_a_few_sync_their_own_files() -> None:
    disk = FakeFileSystem(random.Random(1))
    shared = SharedSyncs(disk.open_whole(Path("/data")), many_count=3)
    for engine in engines(disk, 5):
        job = shared.share(begun(engine))
        assert perform(job)
        assert engine.log.marks.synced.offset == 6
    assert disk.calls["sync_whole"] == 0


def test_what_was_planned_later_is_not_covered() -> None:
    disk = FakeFileSystem(random.Random(1))
    first, second = engines(disk, 2)
    shared = SharedSyncs(disk.open_whole(Path("/data")), many_count=1)
    assert perform(shared.share(begun(first)))
    job = shared.share(begun(second))
    assert perform(job)
    assert disk.calls["sync_whole"] == 2


def test_after_a_failure_every_file_is_asked_for_itself() -> None:
    plan = FaultPlan().fail("sync_whole", errno.EIO)
    disk = FakeFileSystem(random.Random(1))
    first, second = engines(disk, 2)
    shared = SharedSyncs(disk.open_whole(Path("/data")), many_count=1)
    jobs = [shared.share(begun(engine)) for engine in (first, second)]
    disk.plan = plan
    assert not any(perform(job) for job in jobs), "both have lost something"
    assert first.log.failure is not None
    assert second.log.failure is not None
    assert first.log.marks.synced.offset == second.log.marks.synced.offset == 0
    assert disk.calls["sync_whole"] == 1, "a second one would succeed, and prove nothing"
