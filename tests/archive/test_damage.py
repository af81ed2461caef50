"""Segments that are damaged on the server's disk: they never become the archive's copy, and good parts repair them."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from courser.archive.care import plan_removals, remove
from courser.archive.reader import ArchiveReader
from courser.client.client import Client
from courser.errors import ErrorCode, RequestFailed
from courser.model import metric_table as m
from courser.storage.ledger import DamagedRange
from courser.storage.paths import index_path, log_path
from courser.testing.broker import TestBroker
from tests.archive.brokers import (
    HOUR,
    archiver_of,
    backlog_of,
    fake_store,
    fill,
    partition_of,
    running,
    settings_of,
    texts,
)
from tests.archive.writing import (
    CLUSTER,
    DIRECTORY,
    IDENTITY,
    MESSAGE_SIZE,
    Process,
    archived_bytes,
    capture,
    captured,
    disk,
    expected_bytes,
    plant_damage,
    plant_segment,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore
from tests.handlers.messaging import damage


def test_a_damaged_segment_is_not_archived_and_the_others_are() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    for first, end in ((0, 10), (10, 25)):
        plant_segment(file_system, first, end)
    plant_damage(file_system, 0, 4)
    process = Process(store, file_system)
    process.run(capture(captured((0, 10, 25))))
    assert process.confirmed == {IDENTITY: {(10, 15 * MESSAGE_SIZE)}}
    assert archived_bytes(store) == expected_bytes(10, 25)
    (found,) = process.writer.damages
    assert found.damages == (DamagedRange(0, 4 * MESSAGE_SIZE, 5 * MESSAGE_SIZE, 4, 5),)


@pytest.mark.parametrize("size", [0, 1, MESSAGE_SIZE - 1, MESSAGE_SIZE, 9 * MESSAGE_SIZE])
def test_a_segment_that_is_too_short_is_not_archived(size: int) -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    file_system.plant(log_path(DIRECTORY, 0), expected_bytes(0, 10)[:size])
    process = Process(store, file_system)
    process.run(capture(captured((0, 10))))
    assert process.confirmed == {IDENTITY: frozenset()}
    assert len(process.writer.damages) == 1


def test_every_byte_of_a_segment_counts() -> None:
    for position in range(0, 3 * MESSAGE_SIZE, 7):
        store, file_system = FakeStore(random.Random(1)), disk()
        data = bytearray(expected_bytes(0, 3))
        data[position] ^= 1 << position % 8
        file_system.plant(log_path(DIRECTORY, 0), bytes(data))
        file_system.plant(index_path(DIRECTORY, 0), b"index")
        process = Process(store, file_system)
        process.run(capture(captured((0, 3))))
        assert process.confirmed == {IDENTITY: frozenset()}, position


def test_good_parts_are_not_replaced_and_not_removed() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 40)
    process = Process(store, file_system)
    process.run(capture(captured((0,), open_end=25)))
    plant_damage(file_system, 0, 4)
    process.run(capture(captured((0, 40))))
    assert archived_bytes(store) == expected_bytes(0, 25)
    (segment,) = captured((0, 40)).segments
    doubtful = replace(captured((0, 40)), segments=(replace(segment, is_doubtful=True),))
    process.run(capture(doubtful))
    assert archived_bytes(store) == expected_bytes(0, 40), "the good part, and the rest of the disk"
    assert process.confirmed == {IDENTITY: frozenset()}
    reader = ArchiveReader(store, CLUSTER)
    remove(reader, plan_removals(reader, 10**18), lambda _: None)
    assert archived_bytes(store) == expected_bytes(0, 40)


def test_damage_that_the_server_has_recorded_is_archived_unless_there_is_a_better_part() -> None:
    recorded = DamagedRange(0, 4 * MESSAGE_SIZE, 5 * MESSAGE_SIZE, 4, 5)
    for has_part in (False, True):
        store, file_system = FakeStore(random.Random(1)), disk()
        plant_segment(file_system, 0, 40)
        process = Process(store, file_system)
        if has_part:
            process.run(capture(captured((0,), open_end=25)))
        plant_damage(file_system, 0, 4)
        (segment,) = captured((0, 40)).segments
        process.run(capture(replace(captured((0, 40)), segments=(replace(segment, damages=(recorded,)),))))
        if has_part:
            assert archived_bytes(store) == expected_bytes(0, 40)
            assert process.confirmed == {IDENTITY: frozenset()}
        else:
            assert archived_bytes(store) == file_system.contents(log_path(DIRECTORY, 0))
            assert process.confirmed == {IDENTITY: {(0, 40 * MESSAGE_SIZE)}}


# --- in a broker ---


def path_of(broker: TestBroker, base_offset: int = 0) -> Path:
    return log_path(partition_of(broker).log.directory, base_offset)


def damage_first(path: Path) -> None:
    """Change a byte of the first batch."""
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)


async def send(client: Client, text: str) -> None:
    await client.send_messages("shop/orders", partitioning=0, messages=[text])


async def test_a_damaged_segment_is_reported_and_not_deleted(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(expiry=HOUR), store, clock) as (broker, client):
        await fill(broker, client, "a", "b", "c")
        damage(path_of(broker, 1))
        clock.advance(2 * HOUR)
        for _ in range(3):
            assert await archiver_of(broker).run_once()
            await broker.broker.retention.clean_all()
        assert [segment.base_offset for segment in partition_of(broker).log.segments] == [1, 2]
        assert (await backlog_of(broker)).size == path_of(broker, 1).stat().st_size
        assert broker.broker.metrics.value(m.ARCHIVE_FAILURES) == 1, "it is reported once"
        found = (await client.get_topic_maintenance("shop/orders")).damages
        assert [row.first_offset for row in found] == [1]


async def test_a_segment_that_was_damaged_before_it_was_sealed_is_repaired_from_its_parts(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await client.create_stream("shop")
        await client.create_topic("shop", "orders")
        await send(client, "a")
        await send(client, "b")
        assert await archiver_of(broker).run_once(with_active=True)
        await send(client, "c")
        await partition_of(broker).roll()
        intact = path_of(broker).read_bytes()
        damage_first(path_of(broker))
        assert await archiver_of(broker).run_once()
        assert broker.broker.scrubber.counters.repair_count == 1
        assert path_of(broker).read_bytes() == intact
        assert [payload for _, payload in await texts(client)] == [b"a", b"b", b"c"]
        log = partition_of(broker).log
        assert not archiver_of(broker).guard.is_archived(log, log.segments[0])
        assert await archiver_of(broker).run_once()
        assert archiver_of(broker).guard.is_archived(log, log.segments[0])


async def test_a_client_may_delete_a_damaged_segment_whose_rest_is_archived(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a", "b")
        damage(path_of(broker, 0))
        assert await archiver_of(broker).run_once()
        await client.delete_segments("shop/orders", partition_id=0, segments_count=2)
        assert len(partition_of(broker).log.segments) == 2, "what is left of it is not archived yet"
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.relieve(10**9)
        assert len(partition_of(broker).log.segments) == 2, "nothing but a request deletes it"
        await client.delete_segments("shop/orders", partition_id=0, segments_count=2)
        assert partition_of(broker).log.segments == ()
        assert await texts(client) == [(1, b"b")]


async def test_a_purge_of_a_damaged_segment_waits_until_the_rest_is_archived(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a", "b")
        damage(path_of(broker, 0))
        with pytest.raises(RequestFailed) as refused:
            await client.purge_topic("shop/orders")
        assert refused.value.code is ErrorCode.NOT_ARCHIVED
        await client.purge_topic("shop/orders")
        assert await texts(client) == []
