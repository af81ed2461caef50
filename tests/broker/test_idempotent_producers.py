"""Batches of idempotent producers that are sent again: stored once, acknowledged when the original may be."""

import asyncio
import os
import random
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.broker.partition.partition import Partition
from courser.errors import CommandRejected, DiskFull, ErrorCode, PartitionReadOnly, RequestFailed
from courser.model.durability import Durability, DurabilityPolicy
from courser.model.messaging import Balanced, ByKey, Partitioning
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.encryption import EncryptionKey, KeyRing
from courser.records.layout import Compression
from courser.records.producers import BatchProducer
from courser.records.stored_body import Encoding, Encryption
from courser.storage.message_window import Deduplication
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import DEFAULT_LIMITS, LogSettings
from courser.testing.broker import TestBroker
from tests.broker.open_partitions import DIRECTORY, IDENTITY, GatedFileSystem, opened, texts, until
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem

LEVELS = {
    "bounded": DurabilityPolicy(level=Durability.BOUNDED, message_count_max=1),
    "synced": DurabilityPolicy(level=Durability.SYNCED),
}
KEY = EncryptionKey(bytes(range(32)))
ENCODED = LogSettings(encoding=Encoding(Compression.GZIP, Encryption(KEY, os.urandom)), keys=KeyRing([KEY]))
KINDS = {
    "plain": LogSettings(),
    "encoded": ENCODED,
    "encoded in the pool": replace(ENCODED, limits=replace(DEFAULT_LIMITS, inline_coding_size=1)),
    "large": LogSettings(limits=replace(DEFAULT_LIMITS, inline_size=1)),
    "deduplicated": LogSettings(deduplication=Deduplication(count_max=100)),
    "synced": LogSettings(durability=LEVELS["synced"]),
    "bounded": LogSettings(durability=LEVELS["bounded"]),
}


def batch_of(sequence: int, *messages: int, producer: int = 1, epoch: int = 0) -> Batch:
    """Messages that say their number, which is also their id."""
    batch = build_batch([NewMessage(b"%d" % number, message_id=number) for number in messages])
    batch.producer = BatchProducer(producer, epoch, sequence, len(messages))
    return batch


async def send(partition: Partition, sequence: int, *messages: int, producer: int = 1, epoch: int = 0) -> int:
    return (await partition.append(batch_of(sequence, *messages, producer=producer, epoch=epoch))).base_offset


async def refusal(partition: Partition, sequence: int, *messages: int, producer: int = 1, epoch: int = 0) -> ErrorCode:
    with pytest.raises(CommandRejected) as caught:
        await send(partition, sequence, *messages, producer=producer, epoch=epoch)
    return caught.value.code


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_sent_again_is_stored_once(disk: GatedFileSystem, pool: Executor, kind: str) -> None:
    async with opened(disk, pool, KINDS[kind]) as partition:
        assert [await send(partition, 0, 1, 2), await send(partition, 2, 3)] == [0, 2]
        assert [await send(partition, 0, 1, 2), await send(partition, 2, 3)] == [0, 2]
        assert await send(partition, 0, 4, producer=2) == 3
        assert await send(partition, 3, 5, 6) == 4
        assert await texts(partition) == ["1", "2", "3", "4", "5", "6"]
        assert await refusal(partition, 9, 9) is ErrorCode.PRODUCER_OUT_OF_ORDER
        assert await refusal(partition, 1, 9, producer=3) is ErrorCode.PRODUCER_UNKNOWN
        assert await send(partition, 0, 7, epoch=1) == 6
        assert await refusal(partition, 5, 9) is ErrorCode.PRODUCER_FENCED
        assert len(await texts(partition)) == 7


@pytest.mark.parametrize("kind", KINDS)
async def test_of_many_at_the_same_time_one_is_stored(disk: GatedFileSystem, pool: Executor, kind: str) -> None:
    async with opened(disk, pool, KINDS[kind]) as partition:
        assert await asyncio.gather(*(send(partition, 0, 1, 2) for _ in range(8))) == [0] * 8
        assert await asyncio.gather(*(send(partition, 2, 3, 4) for _ in range(8))) == [2] * 8
        assert await texts(partition) == ["1", "2", "3", "4"]


def begin(disk: FakeFileSystem, pool: Executor, settings: LogSettings, clock: ManualClock, stop: StopKind) -> Partition:
    log = PartitionLog.open(disk, DIRECTORY, IDENTITY, settings=settings, clock=clock, stop=stop)
    return Partition(log, pool, clock)


async def end(partition: Partition, disk: FakeFileSystem, stop: StopKind) -> None:
    """After a kill, the partition is only forgotten: none of its files can be used."""
    if stop is StopKind.CLEAN:
        await partition.close()
    elif stop is StopKind.KILLED:
        disk.kill()
    else:
        disk.power_cut()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED, StopKind.CRASHED])
async def test_a_restart_forgets_nothing(pool: Executor, disk: GatedFileSystem, kind: str, stop: StopKind) -> None:
    clock = ManualClock()
    PartitionLog.create(disk, DIRECTORY, IDENTITY, below=DIRECTORY.parent)
    partition = begin(disk, pool, KINDS[kind], clock, StopKind.CLEAN)
    await send(partition, 0, 1, 2)
    await send(partition, 0, 3, epoch=2, producer=2)
    await send(partition, 2, 4)
    await partition.sync()
    await end(partition, disk, stop)
    partition = begin(disk, pool, KINDS[kind], clock, stop)
    assert [await send(partition, 2, 4), await send(partition, 0, 1, 2)] == [3, 0]
    assert await refusal(partition, 1, 9, producer=2, epoch=1) is ErrorCode.PRODUCER_FENCED
    assert await refusal(partition, 5, 9) is ErrorCode.PRODUCER_UNKNOWN
    await send(partition, 3, 5)
    await send(partition, 1, 6, epoch=2, producer=2)
    assert await texts(partition) == ["1", "2", "3", "4", "5", "6"]
    await partition.close()


@pytest.mark.parametrize("level", LEVELS)
async def test_a_repetition_is_not_acknowledged_before_the_original(
    disk: GatedFileSystem, pool: Executor, level: str
) -> None:
    async with opened(disk, pool, LogSettings(durability=LEVELS[level])) as partition:
        await send(partition, 0, 1)
        disk.gate.clear()
        original = asyncio.create_task(partition.append(batch_of(1, 2, 3, 4)))
        await until(disk.waiting.is_set)
        repetition = asyncio.create_task(partition.append(batch_of(1, 2, 3, 4)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not original.done()
        assert not repetition.done()
        disk.gate.set()
        assert (await original).base_offset == (await repetition).base_offset == 1
        assert await texts(partition) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_partition_that_failed_acknowledges_no_repetition(
    disk: GatedFileSystem, pool: Executor, level: str
) -> None:
    async with opened(disk, pool, LogSettings(durability=LEVELS[level])) as partition:
        await send(partition, 0, 1)
        partition.refuse_writes("the disk failed")
        with pytest.raises(PartitionReadOnly):
            await send(partition, 0, 1)


async def test_a_batch_that_could_not_be_written_is_the_next_one_still(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, LogSettings()) as partition:
        await send(partition, 0, 1)
        disk.capacity = disk.used
        with pytest.raises(DiskFull):
            await send(partition, 1, *range(2, 100_000))
        assert await refusal(partition, 2, 9) is ErrorCode.PRODUCER_OUT_OF_ORDER
        disk.capacity = None
        assert await send(partition, 1, 2) == 1


async def test_numbers_go_on_where_the_ids_of_messages_are_known(disk: GatedFileSystem, pool: Executor) -> None:
    """Two producers send the same messages: what the second sends is known, whole or in part."""
    async with opened(disk, pool, KINDS["deduplicated"]) as partition:
        await send(partition, 0, 1, 2)
        assert await send(partition, 0, 1, 2, producer=2) == 0
        assert await send(partition, 2, 2, 3, producer=2) == 2
        assert [await send(partition, 0, 1, 2, producer=2), await send(partition, 2, 2, 3, producer=2)] == [0, 2]
        assert await send(partition, 4, 4, producer=2) == 3
        assert await texts(partition) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("partitioning", [Balanced(), ByKey(b"key")])
async def test_the_producer_chooses_the_partition(tmp_path: Path, partitioning: Partitioning) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await client.create_stream("shop")
        await client.create_topic("shop/orders", partitions_count=2)
        with pytest.raises(RequestFailed, match="must name the partition") as caught:
            await client._link.request(c.SendMessages("shop", "orders", partitioning, [batch_of(0, 1)]))
        assert caught.value.code == ErrorCode.PRODUCER_NEEDS_PARTITION


async def test_any_sends_and_restarts(disk: GatedFileSystem, pool: Executor) -> None:
    """What producers send until it is acknowledged is stored once and in order, through kills and power cuts."""
    dice, clock, settings = random.Random(7), ManualClock(), LogSettings(durability=LEVELS["synced"])
    PartitionLog.create(disk, DIRECTORY, IDENTITY, below=DIRECTORY.parent)
    expected, stop = [list[int]() for _ in range(3)], StopKind.CLEAN
    number = 0
    for _ in range(40):
        partition = begin(disk, pool, settings, clock, stop)
        sends = list[asyncio.Task[int]]()
        for _ in range(dice.randrange(8)):
            producer = dice.randrange(3)
            messages = range(number, number + dice.randint(1, 3))
            number = messages.stop
            sequence = len(expected[producer])
            expected[producer] += messages
            sends += [
                asyncio.create_task(send(partition, sequence, *messages, producer=producer))
                for _ in range(dice.randint(1, 3))
            ]
        await asyncio.gather(*sends)
        stored = [int(text) for text in await texts(partition)]
        assert sorted(stored) == list(range(number))
        assert [[one for one in stored if one in messages] for messages in expected] == expected
        stop = dice.choice([StopKind.CLEAN, StopKind.KILLED, StopKind.CRASHED])
        await end(partition, disk, stop)
