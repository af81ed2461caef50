"""What ``prune`` removes, and what it must not; and the retention of the archive, which does the same by itself."""

import random
from pathlib import Path

import pytest

from courser.archive.care import Verification, plan_removals, remove
from courser.archive.keys import segment_name
from courser.archive.reader import ArchiveReader
from courser.broker.archive.archive_pruning import ArchivePruner
from courser.client.client import Client
from courser.model import metric_table as m
from courser.testing.broker import TestBroker
from tests.archive.brokers import HOUR, archiver_of, fake_store, fill, running, settings_of, texts
from tests.archive.writing import (
    CLUSTER,
    IDENTITY,
    Capture,
    Process,
    archived_bytes,
    capture,
    captured,
    disk,
    expected_bytes,
    plant_segment,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore


def at(time: int, what: Capture) -> Capture:
    return Capture(time=time, op=what.op, metadata=what.metadata, partitions=what.partitions)


def prune(store: FakeStore, since: int) -> None:
    reader = ArchiveReader(store, CLUSTER)
    remove(reader, plan_removals(reader, since), lambda _: None)
    found = reader.newest_root()
    assert found is not None
    assert not list(Verification(reader, found, reads_bytes=True).findings())


def ranges(store: FakeStore) -> list[tuple[int, int]]:
    names = [segment_name(key) for key in store.objects if key.endswith(".log")]
    return sorted((name.first_offset, name.end_offset) for name in names if name is not None)


def archive_with_pieces() -> FakeStore:
    """Two pieces of a segment at times 100 and 200, and the sealed segment at 300."""
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 40)
    process = Process(store, file_system)
    process.run(at(100, capture(captured((0,), open_end=10))))
    process.run(at(200, capture(captured((0,), open_end=25))))
    process.run(at(300, capture(captured((0, 40)))))
    return store


def test_pieces_that_were_merged_are_removed_when_no_restore_needs_them() -> None:
    store = archive_with_pieces()
    prune(store, since=0)
    assert ranges(store) == [(0, 10), (0, 40), (10, 25)], "all times can still be restored"
    prune(store, since=250)
    assert ranges(store) == [(0, 10), (0, 40), (10, 25)], "the root of 200 has the state of 250"
    prune(store, since=300)
    assert ranges(store) == [(0, 40)]
    assert archived_bytes(store) == expected_bytes(0, 40)


def test_what_a_killed_run_left_is_kept_until_it_is_named_or_replaced() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    first = Process(store, file_system, seed=1)
    first.run(at(100, capture(captured((0, 10)))))
    # Uploaded, and then the process is killed before it writes the manifest.
    leftover = next(key for key in store.objects if key.endswith(".log"))
    orphan = leftover.replace(f"{0:020d}-{10:020d}", f"{10:020d}-{25:020d}")
    store.put_new(orphan, expected_bytes(10, 25))
    Process(store, file_system, seed=2).run(at(200, capture(captured((0, 10)))))
    prune(store, since=300)
    assert orphan in store.objects, "the next run may be about to use it"
    third = Process(store, file_system, seed=3)
    third.run(at(300, capture(captured((0, 10, 25)))))
    assert third.writer.counters.adopted_count == 1
    prune(store, since=400)
    assert archived_bytes(store) == expected_bytes(0, 25)


def test_what_was_purged_and_what_was_deleted_is_removed() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    process = Process(store, file_system)
    process.run(at(100, capture(captured((0, 10)))))
    process.run(at(200, capture(captured((10, 25), purge_count=1, start_offset=10))))
    prune(store, since=200)
    assert ranges(store) == [(10, 25)]
    process.run(at(300, capture()))
    assert IDENTITY not in process.confirmed or ranges(store)
    prune(store, since=300)
    assert ranges(store) == [(10, 25)], "this epoch may still name it"
    Process(store, file_system, seed=2).run(at(400, capture()))
    prune(store, since=400)
    assert ranges(store) == []


def test_what_retention_deleted_on_the_server_is_kept() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    plant_segment(file_system, 10, 25)
    process = Process(store, file_system)
    process.run(at(100, capture(captured((0, 10, 25)))))
    process.run(at(200, capture(captured((10, 25), start_offset=10))))
    prune(store, since=300)
    assert archived_bytes(store) == expected_bytes(0, 25)


def test_a_prune_that_is_interrupted_leaves_a_good_archive() -> None:
    count = len(plan_removals(ArchiveReader(archive_with_pieces(), CLUSTER), 300))
    for done in range(count + 1):
        store = archive_with_pieces()
        reader = ArchiveReader(store, CLUSTER)
        remove(reader, plan_removals(reader, 300)[:done], lambda _: None)
        for found in reader.listed_backwards():
            assert not list(Verification(reader, found, reads_bytes=True).findings())


# --- by itself ---


def pruner_of(broker: TestBroker) -> ArchivePruner:
    pruner = broker.broker.archive_pruner
    assert pruner is not None
    return pruner


async def archive_in_pieces(broker: TestBroker, client: Client, clock: ManualClock) -> None:
    """A piece of a segment, and two hours later the segment."""
    await client.create_stream("shop")
    await client.create_topic("shop", "orders")
    await client.send_messages("shop/orders", partitioning=0, messages=["a"])
    assert await archiver_of(broker).run_once(with_active=True)
    clock.advance(2 * HOUR)
    await fill(broker, client, "b")
    assert await archiver_of(broker).run_once()


async def test_the_retention_of_the_archive_removes_what_no_restore_needs(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(retention=4 * HOUR), store, clock) as (broker, client):
        await archive_in_pieces(broker, client, clock)
        await pruner_of(broker).prune()
        assert ranges(store) == [(0, 1), (0, 2)], "four hours are kept"
        clock.advance(5 * HOUR)
        await pruner_of(broker).prune()
        assert ranges(store) == [(0, 2)]
        figure = broker.broker.metrics.value
        assert figure(m.ARCHIVE_PRUNED) >= 2, "the piece, and what names it"
        assert figure(m.ARCHIVE_PRUNED_BYTES) > 0
        await client.send_messages("shop/orders", partitioning=0, messages=["c"])
        assert await archiver_of(broker).run_once(with_active=True)
        assert [payload for _, payload in await texts(client)] == [b"a", b"b", b"c"]


async def test_without_a_retention_nobody_prunes(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, _):
        assert broker.broker.archive_pruner is None


async def test_a_clock_that_jumps_ahead_removes_nothing(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(retention=4 * HOUR), store, clock) as (broker, client):
        await archive_in_pieces(broker, client, clock)
        years = 10 * 365 * 24 * HOUR
        clock.jump(years)
        clock.step = years
        await pruner_of(broker).prune()
        assert ranges(store) == [(0, 1), (0, 2)]


async def test_a_store_that_is_down_is_pruned_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(retention=HOUR), store, clock) as (broker, client):
        await pruner_of(broker).prune()
        await archive_in_pieces(broker, client, clock)
        clock.advance(2 * HOUR)
        store.is_down = True
        await pruner_of(broker).prune()
        assert "could not prune the archive" in caplog.text
        store.is_down = False
        await pruner_of(broker).prune()
        assert ranges(store) == [(0, 2)]
