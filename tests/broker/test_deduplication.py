"""Messages that are sent again: stored once, acknowledged as often as they are sent."""

import asyncio
import os
from concurrent.futures import Executor
from pathlib import Path

import pytest

from courser.broker.settings import BrokerSettings
from courser.client.client import Client
from courser.client.messages import PollingStrategy, SendMessage
from courser.errors import PartitionReadOnly
from courser.model.durability import Durability, DurabilityPolicy
from courser.records.batch import NewMessage, build_batch
from courser.records.encryption import EncryptionKey, KeyRing
from courser.records.stored_body import Encryption
from courser.storage.message_window import Deduplication
from courser.storage.settings import LogSettings
from courser.testing.broker import TestBroker
from tests.broker.open_partitions import GatedFileSystem, opened, texts, until
from tests.fakes.clocks import ManualClock

SECOND = 1_000_000
SETTINGS = BrokerSettings(deduplication=Deduplication(count_max=100, age_max=60 * SECOND))


async def send(client: Client, *ids: int) -> int:
    """Send messages that say their id. Returns the offset of the first one."""
    messages = [SendMessage(str(message_id), id=message_id) for message_id in ids]
    return (await client.send_messages("shop", "orders", 0, messages)).base_offset


async def stored(client: Client) -> list[bytes]:
    messages = await client.poll_messages("shop", "orders", 0, PollingStrategy.First(), 1000, consumer=0)
    assert [message.offset for message in messages] == list(
        range(messages[0].offset, messages[0].offset + len(messages))
    )
    return [message.payload for message in messages]


async def client_of(broker: TestBroker, **settings: str) -> Client:
    client = await broker.connect()
    await client.create_stream("shop")
    await client.create_topic("shop/orders", **settings)  # type: ignore[arg-type]
    return client


async def test_a_batch_that_is_sent_again_is_not_stored_again() -> None:
    async with TestBroker(settings=SETTINGS) as broker:
        client = await client_of(broker)
        assert await send(client, 1, 2, 3) == 0
        assert await send(client, 4) == 3
        assert [await send(client, 1, 2, 3), await send(client, 4), await send(client, 2, 3)] == [0, 3, 1]
        assert await stored(client) == [b"1", b"2", b"3", b"4"]


async def test_of_a_batch_that_is_partly_known_the_rest_is_stored() -> None:
    async with TestBroker(settings=SETTINGS) as broker:
        client = await client_of(broker)
        await send(client, 1, 2, 3)
        assert await send(client, 2, 7, 3, 8, 7) == 3
        assert await stored(client) == [b"1", b"2", b"3", b"7", b"8"]


async def test_the_id_zero_is_never_a_duplicate() -> None:
    async with TestBroker(settings=SETTINGS) as broker:
        client = await client_of(broker)
        assert [await send(client, 0), await send(client, 0, 0), await send(client, 0, 5)] == [0, 1, 3]


async def test_without_the_setting_everything_is_stored() -> None:
    async with TestBroker() as broker:
        client = await client_of(broker)
        assert [await send(client, 1), await send(client, 1)] == [0, 1]


async def test_the_window_is_limited_by_count_and_by_age() -> None:
    clock = ManualClock()
    async with TestBroker(settings=SETTINGS, clock=clock) as broker:
        client = await client_of(broker)
        await send(client, 1)
        await send(client, *range(2, 101))
        assert await send(client, 1) == 0
        await send(client, 101)
        assert [await send(client, 1), await send(client, 3)] == [101, 2]
        clock.advance(61 * SECOND)
        assert await send(client, 3) == 102


@pytest.mark.parametrize("jump", [-3600 * SECOND, 10 * 365 * 86_400 * SECOND], ids=["back 1 h", "forward 10 years"])
async def test_a_clock_that_is_set_neither_shortens_nor_prolongs_the_window(jump: int) -> None:
    clock = ManualClock()
    async with TestBroker(settings=SETTINGS, clock=clock) as broker:
        client = await client_of(broker)
        await send(client, 1, 2)
        clock.advance(SECOND)
        clock.jump(jump)
        assert [await send(client, 2), await send(client, 3)] == [1, 2]
        clock.advance(58 * SECOND)
        assert [await send(client, 1), await send(client, 3)] == [0, 2]
        clock.advance(62 * SECOND)
        assert await send(client, 3) == 3


async def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    key = EncryptionKey(bytes(range(32)))
    settings = BrokerSettings(
        deduplication=SETTINGS.deduplication, encryption=Encryption(key, os.urandom), keys=KeyRing([key])
    )
    async with TestBroker(tmp_path, settings=settings) as broker:
        client = await client_of(broker, compression_algorithm="zstd")
        await send(client, *range(1, 300))
        for _ in range(2):
            await broker.restart()
            assert [await send(client, 299), await send(client, 250, 251), await send(client, 200)] == [298, 249, 199]
        assert await send(client, 198, 300) == 299
        assert len(await stored(client)) == 301


async def test_messages_that_were_purged_can_be_sent_again() -> None:
    async with TestBroker(settings=SETTINGS) as broker:
        client = await client_of(broker)
        await send(client, 1, 2)
        await client.purge_topic("shop/orders")
        assert await send(client, 1, 2) == 2


@pytest.mark.parametrize("durability", ["default", "synced"])
async def test_of_two_at_the_same_time_one_is_stored(durability: str) -> None:
    async with TestBroker(settings=SETTINGS) as broker:
        client = await client_of(broker, durability=durability, compression_algorithm="gzip")
        clients = [client, *[await broker.connect() for _ in range(3)]]
        large = range(1, 91)
        assert await asyncio.gather(*(send(one, *large) for one in clients)) == [0] * 4
        assert len(await stored(client)) == 90


BATCH = build_batch([NewMessage(b"%d" % number, message_id=number) for number in (1, 2, 3)])
LEVELS = {
    "bounded": DurabilityPolicy(level=Durability.BOUNDED, message_count_max=1),
    "synced": DurabilityPolicy(level=Durability.SYNCED),
}


@pytest.mark.parametrize("level", LEVELS)
async def test_a_repetition_is_not_acknowledged_before_the_original(
    disk: GatedFileSystem, pool: Executor, level: str
) -> None:
    settings = LogSettings(durability=LEVELS[level], deduplication=SETTINGS.deduplication)
    async with opened(disk, pool, settings) as partition:
        disk.gate.clear()
        original = asyncio.create_task(partition.append(BATCH))
        await until(disk.waiting.is_set)
        repetition = asyncio.create_task(partition.append(BATCH))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not original.done()
        assert not repetition.done()
        disk.gate.set()
        assert (await original).base_offset == (await repetition).base_offset == 0
        assert await texts(partition) == ["1", "2", "3"]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_partition_that_failed_acknowledges_no_repetition(
    disk: GatedFileSystem, pool: Executor, level: str
) -> None:
    settings = LogSettings(durability=LEVELS[level], deduplication=SETTINGS.deduplication)
    async with opened(disk, pool, settings) as partition:
        await partition.append(BATCH)
        partition.refuse_writes("the disk failed")
        with pytest.raises(PartitionReadOnly):
            await partition.append(BATCH)
