"""Power cuts at every step: while an archive on disk is written, and while one is restored."""

import random
from pathlib import Path

import pytest

from courser.archive.disk_store import DiskStore
from courser.archive.reader import ArchiveReader
from courser.archive.restore_need import is_empty, is_unfinished
from courser.archive.restore_plan import RestoreSelection, plan_restore
from courser.archive.restoring import Restorer
from courser.archive.store import Store
from courser.catalog.opening import open_catalog
from courser.catalog.partitions import open_partition_log
from courser.catalog.state import CatalogState
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from tests.archive.brokers import archiver_of, fake_store, fill, running, settings_of
from tests.archive.writing import (
    CLUSTER,
    IDENTITY,
    Process,
    archived_bytes,
    capture,
    captured,
    disk,
    expected_bytes,
    plant_segment,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.faults import CrashMoment, FaultPlan, SimulatedCrash
from tests.fakes.files import FakeFileSystem

ARCHIVE = Path("/archive")
TARGET = Path("/target")


def disk_store(file_system: FakeFileSystem, seed: int) -> DiskStore:
    return DiskStore(file_system, ARCHIVE, random.Random(seed).randbytes(16))


@pytest.mark.parametrize("moment", [CrashMoment.MIDDLE, CrashMoment.AFTER])
def test_an_archive_on_disk_survives_a_power_cut_at_any_step(moment: CrashMoment) -> None:
    """What was confirmed is there, the next process continues, and nothing is stored twice."""
    for crash_at in range(1, 1000):
        file_system = disk(crash_at)
        file_system.plant_directory(ARCHIVE)
        plant_segment(file_system, 0, 10)
        plant_segment(file_system, 10, 25)
        first = Process(disk_store(file_system, 1), file_system, seed=1)
        file_system.plan = FaultPlan().crash_at(crash_at, moment)
        is_whole = False
        try:
            first.run(capture(captured((0, 10))))
            first.run(capture(captured((0, 10, 25))))
            is_whole = True
        except SimulatedCrash:
            pass
        file_system.plan = FaultPlan()
        file_system.power_cut()
        store = disk_store(file_system, 2)
        confirmed = sorted(first.confirmed.get(IDENTITY, ()))
        if confirmed:
            assert (
                archived_bytes(store)[: sum(size for _, size in confirmed)]
                == expected_bytes(0, 25)[: sum(size for _, size in confirmed)]
            )
        Process(store, file_system, seed=2).run(capture(captured((0, 10, 25))))
        assert archived_bytes(store) == expected_bytes(0, 25), crash_at
        logs = [found.key for found in store.list_objects(f"v1/{CLUSTER.hex()}/seg/") if found.key.endswith(".log")]
        assert len(logs) == 2, (crash_at, logs)
        if is_whole:
            return
    raise AssertionError("it never ran to its end")


@pytest.fixture
async def store(tmp_path: Path) -> Store:
    found = fake_store()
    async with running(tmp_path, settings_of(), found) as (broker, client):
        await fill(broker, client, "a", "b")
        await client.store_consumer_offset("shop/orders", partition_id=0, offset=1, consumer="audit")
        assert await archiver_of(broker).run_once()
    return found


async def test_a_restore_survives_a_power_cut_at_any_step(store: Store) -> None:
    """Before its end, no server starts. After it, everything is there. In between, it continues."""
    (cluster,) = [bytes.fromhex(name) for name in store.list_names("v1/")]
    plan = plan_restore(ArchiveReader(store, cluster), RestoreSelection())
    crash_at = 0
    while True:
        crash_at += 1
        file_system = FakeFileSystem(random.Random(crash_at))
        file_system.plant_directory(TARGET)
        file_system.plan = FaultPlan().crash_at(crash_at)
        is_whole = False
        try:
            Restorer(store, file_system, TARGET).restore(plan)
            is_whole = True
        except SimulatedCrash:
            pass
        file_system.plan = FaultPlan()
        file_system.power_cut()
        if is_unfinished(file_system, TARGET) or is_empty(file_system, TARGET):
            assert not is_whole
            Restorer(store, file_system, TARGET).restore(plan)
        assert offsets_in(file_system) == [0, 1], crash_at
        if is_whole:
            assert crash_at > 30
            return


def offsets_in(file_system: FakeFileSystem) -> list[int]:
    """The offsets of all messages that a server finds after it has recovered the directory."""
    opened = open_catalog(file_system, TARGET, clock=ManualClock(), stop=StopKind.CRASHED)
    state: CatalogState = opened.store.state
    (stream,) = state.streams.values()
    (topic,) = stream.topics.values()
    log = open_partition_log(
        file_system,
        opened.directories,
        stream,
        topic,
        topic.partitions[0],
        settings=LogSettings(),
        clock=ManualClock(),
        stop=StopKind.CRASHED,
    )
    assert not [finding for finding in log.findings if finding.is_damage]
    assert [offset for _, offset in log.offsets.items()] == [1]
    return [segment.base_offset for segment in log.segments]
