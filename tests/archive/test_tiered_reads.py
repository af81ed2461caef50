"""Messages that only the archive has are read as if they were still here."""

import asyncio
import threading
from pathlib import Path

import pytest

from courser.client.client import Client
from courser.client.messages import PollingStrategy
from courser.errors import ErrorCode, OffsetsUnavailable, RequestFailed
from courser.model import metric_table as m
from courser.model.metrics import Metric
from courser.storage.read_result import ReadResult
from courser.testing.broker import TestBroker
from tests.archive.brokers import HOUR, archiver_of, fake_store, fill, partition_of, running, settings_of, texts
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore

LETTERS = "abcdef"
ALL = [(offset, letter.encode()) for offset, letter in enumerate(LETTERS)]


async def archive_and_trim(broker: TestBroker, before_offset: int) -> None:
    """Archive what is sealed, and delete it here up to an offset."""
    assert await archiver_of(broker).run_once()
    partition = partition_of(broker)
    assert archiver_of(broker).guard.deletable_end(partition.log, before_offset, is_expiry=False) == before_offset
    await partition.trim(before_offset)
    assert partition.log.start_offset == before_offset


async def poll(
    client: Client, strategy: PollingStrategy, count: int = 100, *, skip_missing: bool = False
) -> list[tuple[int, bytes]]:
    messages = await client.poll_messages(
        "shop/orders",
        None,
        0,
        polling_strategy=strategy,
        count=count,
        auto_commit=False,
        skip_missing=skip_missing,
    )
    return [(message.offset, message.payload) for message in messages]


def segments_in(store: FakeStore) -> list[str]:
    return sorted(key for key in store.objects if "/seg/" in key and key.endswith(".log"))


def figure(broker: TestBroker, metric: Metric) -> float:
    return broker.broker.metrics.value(metric)


async def test_polls_of_every_kind_reach_into_the_archive(tmp_path: Path) -> None:
    clock = ManualClock()
    times: list[int] = []
    async with running(tmp_path, settings_of(), fake_store(), clock) as (broker, client):
        for letter in LETTERS:
            clock.advance(HOUR)
            times.append(clock.now())
            await fill(broker, client, letter)
        await archive_and_trim(broker, 4)
        assert await texts(client) == ALL
        assert await poll(client, PollingStrategy.First()) == ALL, "across the border in one reply"
        assert await poll(client, PollingStrategy.Offset(1), 2) == ALL[1:3]
        assert await poll(client, PollingStrategy.Offset(5)) == ALL[5:]
        assert await poll(client, PollingStrategy.Next()) == ALL
        assert await poll(client, PollingStrategy.Last(), 2) == ALL[4:]
        assert await poll(client, PollingStrategy.Last(), 3) == ALL[3:]
        for offset, time in enumerate(times):
            assert await poll(client, PollingStrategy.Timestamp(time)) == ALL[offset:]
            assert await poll(client, PollingStrategy.Timestamp(time - HOUR // 2)) == ALL[offset:]
        assert await poll(client, PollingStrategy.Timestamp(times[-1] + 1)) == []
        segments = (await client.get_segments("shop/orders", partition_id=0)).segments
        assert [(found.first_offset, found.state, found.location) for found in segments] == [
            *[(offset, "archived", "remote") for offset in range(4)],
            *[(offset, "archived", "local") for offset in range(4, 6)],
        ]
        bounds = (await client.get_partition_bounds("shop/orders")).partitions[0]
        assert (bounds.first_offset, bounds.next_offset, bounds.message_count) == (0, 6, 6)


async def test_a_store_that_is_down_is_an_error_and_skips_nothing(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, *LETTERS)
        await archive_and_trim(broker, 4)
        store.is_down = True
        for strategy in (PollingStrategy.First(), PollingStrategy.Offset(2), PollingStrategy.Next()):
            # With ``skip_missing``, the poll is that of an SDK.
            for skip_missing in (False, True):
                with pytest.raises(RequestFailed) as failure:
                    await poll(client, strategy, skip_missing=skip_missing)
                assert failure.value.code is ErrorCode.ARCHIVE_FAILURE
        assert await poll(client, PollingStrategy.Offset(4)) == ALL[4:], "what is here needs no store"
        store.is_down = False
        assert await texts(client) == ALL


async def test_a_start_without_the_store_does_not_forget_the_archive(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, *LETTERS)
        await archive_and_trim(broker, 4)
    store.is_down = True
    async with running(tmp_path, settings_of(), store) as (broker, client):
        for skip_missing in (False, True):
            with pytest.raises(RequestFailed) as failure:
                await poll(client, PollingStrategy.First(), skip_missing=skip_missing)
            assert failure.value.code is ErrorCode.ARCHIVE_FAILURE
        store.is_down = False
        assert await archiver_of(broker).run_once()
        assert await texts(client) == ALL


async def test_readers_of_one_object_share_one_fetch(tmp_path: Path) -> None:
    class SlowStore(FakeStore):
        """Counts the reads of segments, and lets them wait."""

        keys: list[str]
        gate: threading.Event

        def read_range(self, key: str, position: int, size: int) -> bytes:
            if "/seg/" in key:
                self.keys.append(key)
                self.gate.wait()
            return super().read_range(key, position, size)

    store = SlowStore(fake_store().random)
    store.keys, store.gate = [], threading.Event()
    store.gate.set()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a", "b")
        await archive_and_trim(broker, 1)
        clients = [await broker.connect() for _ in range(4)]
        store.keys.clear()
        store.gate.clear()
        try:
            polls = [asyncio.create_task(poll(one, PollingStrategy.Offset(0), 1)) for one in clients]
            counted = (m.ARCHIVE_CACHE_HITS, m.ARCHIVE_CACHE_MISSES)
            while sum(figure(broker, metric) for metric in counted) < len(polls):  # noqa: ASYNC110 - threads
                await asyncio.sleep(0.001)
            assert (await poll(client, PollingStrategy.Offset(1))) == [(1, b"b")], "other reads go on"
        finally:
            store.gate.set()
        assert await asyncio.gather(*polls) == [[(0, b"a")]] * len(polls)
        assert len(store.keys) == len(set(store.keys))
        assert figure(broker, m.ARCHIVE_READS) == len(polls)


async def test_polls_of_what_is_in_memory_need_no_thread_and_no_store(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, *LETTERS)
        await archive_and_trim(broker, 4)
        assert await texts(client) == ALL
        store.is_down = True
        partition = partition_of(broker)
        found = partition.reader.try_read(0, 4, 1_000_000)
        assert isinstance(found, ReadResult), "nothing to wait for"
        assert found.message_count == 4
        assert await texts(client) == ALL


async def test_a_wrong_copy_is_fetched_again_and_damage_is_reported(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, *LETTERS)
        await archive_and_trim(broker, 4)
        key = segments_in(store)[1]
        good = store.objects[key]
        store.objects[key] = good[:-1] + bytes([good[-1] ^ 1])
        with pytest.raises(OffsetsUnavailable) as damage:
            await poll(client, PollingStrategy.Offset(1))
        assert (damage.value.code, damage.value.first_offset) == (ErrorCode.DAMAGED_DATA, 1)
        assert damage.value.end_offset == 2
        assert (await poll(client, PollingStrategy.Offset(0), skip_missing=True))[:1] == ALL[:1]
        assert (await poll(client, PollingStrategy.Offset(1), skip_missing=True)) == ALL[2:]
        store.objects[key] = good
        assert await texts(client) == ALL, "the wrong copy is not kept"


@pytest.mark.parametrize("kind", ["bucket", "directory"])
async def test_an_object_that_vanished_is_an_error_and_hides_no_other_message(tmp_path: Path, kind: str) -> None:
    store = fake_store() if kind == "bucket" else None
    settings, objects = settings_of(tmp_path / "archive"), tmp_path / "archive"
    async with running(tmp_path / "server", settings, store) as (broker, client):
        await fill(broker, client, *LETTERS)
        await archive_and_trim(broker, 4)
        if store is None:
            (path,) = objects.rglob(f"{1:020d}-*.log")
            path.unlink()
        else:
            del store.objects[segments_in(store)[1]]
        for skip_missing in (False, True):
            for strategy in (PollingStrategy.First(), PollingStrategy.Offset(0)):
                assert await poll(client, strategy, skip_missing=skip_missing) == ALL[:1], "what comes before it"
            for _ in range(2):
                with pytest.raises(RequestFailed, match="there is no such object") as failure:
                    await poll(client, PollingStrategy.Offset(1), skip_missing=skip_missing)
                assert failure.value.code is ErrorCode.ARCHIVE_FAILURE
            assert await poll(client, PollingStrategy.Offset(2), skip_missing=skip_missing) == ALL[2:]
        # A consumer that commits what it gets stops there, until somebody brings the object back, or moves it on.
        consumed = [await client.poll_messages("shop/orders", None, 0, count=100, auto_commit=True)]
        assert [message.offset for message in consumed[0]] == [0]
        with pytest.raises(RequestFailed):
            await client.poll_messages("shop/orders", None, 0, count=100, auto_commit=True)
        await client.store_consumer_offset("shop/orders", partition_id=0, offset=1)
        consumed.append(await client.poll_messages("shop/orders", None, 0, count=100, auto_commit=True))
        assert [message.offset for message in consumed[1]] == [2, 3, 4, 5]


async def test_what_was_purged_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await fill(broker, client, *LETTERS)
        await archive_and_trim(broker, 4)
        await client.purge_topic("shop", "orders")
        assert await poll(client, PollingStrategy.First()) == [], "before the archiver knows"
        await fill(broker, client, "g", "h")
        await archive_and_trim(broker, 7)
        assert await poll(client, PollingStrategy.First()) == [(6, b"g"), (7, b"h")]
        with pytest.raises(OffsetsUnavailable) as gone:
            await poll(client, PollingStrategy.Offset(3))
        assert (gone.value.code, gone.value.end_offset) == (ErrorCode.OFFSET_GONE, 6)


async def test_a_hole_in_the_archive_is_reported(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await fill(broker, client, "a", "b")
        await archive_and_trim(broker, 2)
        await fill(broker, client, "c")
        # Without ``archive_expired``, retention does this.
        await partition_of(broker).trim(3)
        await fill(broker, client, "d", "e")
        await archive_and_trim(broker, 4)
        assert await poll(client, PollingStrategy.First()) == [(0, b"a"), (1, b"b")]
        with pytest.raises(OffsetsUnavailable) as gone:
            await poll(client, PollingStrategy.Offset(2))
        assert (gone.value.code, gone.value.first_offset, gone.value.end_offset) == (ErrorCode.OFFSET_GONE, 2, 3)
        assert await texts(client) == [(0, b"a"), (1, b"b"), (3, b"d"), (4, b"e")]


@pytest.mark.parametrize("by_time", [True, False])
async def test_a_topic_says_how_much_stays_local(tmp_path: Path, by_time: bool) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(), store, clock) as (broker, client):
        await fill(broker, client, *LETTERS)
        log = partition_of(broker).log
        kept_size = sum(segment.size for segment in log.segments[-2:])
        if by_time:
            await client.update_topic("shop/orders", local_retention_time="1 hour")
            clock.advance(2 * HOUR)
        else:
            await client.update_topic("shop/orders", local_retention_size=kept_size)
        await client.send_messages("shop/orders", partitioning=0, messages=["g"])
        await broker.broker.retention.clean_all()
        assert log.start_offset == 0, "nothing is archived yet"
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert log.start_offset == (6 if by_time else 5)
        assert log.open_segment is not None, "what is still written stays"
        assert await texts(client) == [*ALL, (6, b"g")]
    async with running(tmp_path, settings_of(), store, clock) as (_, client):
        assert await texts(client) == [*ALL, (6, b"g")], "after a restart"
        topic = await client.get_topic("shop/orders")
        wanted = (HOUR, None) if by_time else (None, kept_size)
        assert (topic.topic.options.local_retention_time, topic.topic.options.local_retention_size) == wanted


async def test_without_an_archive_local_retention_deletes_nothing(tmp_path: Path) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await fill(broker, client, "a", "b")
        await client.update_topic("shop/orders", local_retention_size=1)
        await broker.broker.retention.clean_all()
        assert await texts(client) == ALL[:2]


async def test_one_reader_gets_every_offset_once_while_segments_move_to_the_archive(tmp_path: Path) -> None:
    count = 60
    async with running(tmp_path, settings_of(tmp_path / "archive")) as (broker, client):
        await client.create_stream("shop")
        await client.create_topic("shop", "orders", local_retention_size=1)
        readers = [await broker.connect() for _ in range(2)]
        # One as Courser's own, one as an SDK, which would skip what it cannot get.
        reading = [
            asyncio.create_task(read_all(reader, count, skip_missing=number == 1))
            for number, reader in enumerate(readers)
        ]
        for number in range(count):
            await client.send_messages("shop/orders", partitioning=0, messages=[str(number)])
            if number % 3 == 2:
                await partition_of(broker).roll()
                assert await archiver_of(broker).run_once()
                await broker.broker.retention.clean_all()
        assert partition_of(broker).log.start_offset == count
        late = await broker.connect()
        for found in await asyncio.gather(*reading, read_all(late, count, skip_missing=False)):
            assert found == [(offset, str(offset).encode()) for offset in range(count)]


async def read_all(client: Client, count: int, *, skip_missing: bool) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        found += await poll(client, PollingStrategy.Offset(len(found)), 7, skip_missing=skip_missing)
        await asyncio.sleep(0)
    return found
