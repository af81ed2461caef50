"""Batches whose hash and write take long: written on another thread, while others are served and keep their order."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from courser.broker.partition.partition import Partition
from courser.broker.partition.waiting import Waiting
from courser.errors import CommandRejected, PartitionReadOnly
from courser.model.buffers import Buffer
from courser.model.durability import Durability
from courser.records.batch import NewMessage, build_batch
from courser.storage.settings import EngineLimits, LogSettings
from tests.broker.open_partitions import MINUTE, ONE, GatedFileSystem, opened, send, settings, texts, until
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFile

LARGE = "large " * 1000


def wanted(level: Durability = Durability.WRITTEN) -> LogSettings:
    return replace(settings(level), limits=EngineLimits(inline_size=2000))


def timed() -> LogSettings:
    """At `bounded`, and far from all bounds but that of time."""
    return replace(settings(Durability.BOUNDED, interval=MINUTE), limits=EngineLimits(inline_size=2000))


class HeldWrites(GatedFileSystem):
    """A disk that holds large writes of logs up on their thread too."""

    def __init__(self, disk: GatedFileSystem) -> None:
        vars(self).update(vars(disk))
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()
        self.threads: list[threading.Thread] = []

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> FakeFile:
        file = super().open(path, writable=writable, create=create)
        write_at = file.write_at

        def held(position: int, buffers: Sequence[Buffer]) -> int:
            if sum(map(len, buffers)) > 2000:
                self.threads.append(threading.current_thread())
                self.has_begun.set()
                assert self.may_go_on.wait(30)
            return write_at(position, buffers)

        file.write_at = held  # type: ignore[method-assign]
        return file


@pytest.fixture
def held(disk: GatedFileSystem) -> HeldWrites:
    return HeldWrites(disk)


@contextmanager
def released(disk: HeldWrites) -> Iterator[None]:
    """The disk goes on at the end of the block, whatever happens in it."""
    try:
        yield
    finally:
        disk.may_go_on.set()


async def begin_large(partition: Partition, disk: HeldWrites) -> asyncio.Task[int]:
    task = asyncio.create_task(send(partition, LARGE))
    await until(disk.has_begun.is_set)
    return task


@pytest.mark.parametrize("level", list(Durability))
async def test_others_read_and_store_offsets_while_a_large_batch_is_written(
    held: HeldWrites, pool: Executor, level: Durability
) -> None:
    async with opened(held, pool, wanted(level)) as partition:
        await send(partition, "first")
        with released(held):
            large = await begin_large(partition, held)
            assert threading.current_thread() not in held.threads
            assert await texts(partition) == ["first"]
            await partition.store_offset(ONE, 0)
            assert not large.done()
        assert await large == 1
        assert await texts(partition) == ["first", LARGE]


async def test_sends_to_the_same_partition_come_behind_a_large_batch(held: HeldWrites, pool: Executor) -> None:
    async with opened(held, pool, wanted()) as partition:
        with released(held):
            large = await begin_large(partition, held)
            behind = [asyncio.create_task(send(partition, text)) for text in ("a", LARGE, "b")]
            flushed = asyncio.create_task(partition.settle())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(task.done() for task in (large, flushed, *behind))
        assert await large == 0
        assert sorted([await task for task in behind]) == [1, 2, 3]
        await flushed
        assert sorted(await texts(partition)) == sorted([LARGE, "a", LARGE, "b"])


async def test_a_small_batch_is_written_at_once(held: HeldWrites, pool: Executor) -> None:
    async with opened(held, pool, wanted()) as partition:
        await send(partition, "first")
        held.may_go_on.set()
        assert not isinstance(partition.try_append(build_batch([NewMessage(b"small")])), Waiting)
        assert isinstance(partition.try_append(build_batch([NewMessage(LARGE.encode())])), Waiting)


async def test_a_purge_and_a_roll_wait_for_a_large_batch(held: HeldWrites, pool: Executor) -> None:
    async with opened(held, pool, wanted()) as partition:
        await send(partition, "first")
        with released(held):
            large = await begin_large(partition, held)
            rolled = asyncio.create_task(partition.roll())
            purged = asyncio.create_task(partition.purge())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(task.done() for task in (rolled, purged))
        assert await large == 1
        await rolled
        await purged
        assert await texts(partition) == []
        assert await send(partition, "next") == 2


async def test_a_large_batch_is_kept_if_its_sender_goes_away(held: HeldWrites, pool: Executor) -> None:
    async with opened(held, pool, wanted()) as partition:
        with released(held):
            large = await begin_large(partition, held)
            large.cancel()
            await asyncio.wait((large,))
            next_one = asyncio.create_task(send(partition, "next"))
        assert await next_one == 1
        assert await texts(partition) == [LARGE, "next"]


async def test_a_large_batch_is_not_acknowledged_if_its_partition_was_deleted(held: HeldWrites, pool: Executor) -> None:
    async with opened(held, pool, wanted()) as partition:
        with released(held):
            large = await begin_large(partition, held)
            partition.mark_deleted()
        with pytest.raises(PartitionReadOnly, match="deleted"):
            await large
        assert partition.log.next_offset == 0


async def test_a_stop_waits_for_a_large_batch(held: HeldWrites, pool: Executor) -> None:
    async with opened(held, pool, wanted()) as partition:
        with released(held):
            large = await begin_large(partition, held)
            closed = asyncio.create_task(partition.close())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not closed.done()
        assert await large == 0
        assert await closed


async def test_a_stop_refuses_a_large_batch_that_waits_for_another(held: HeldWrites, pool: Executor) -> None:
    """It would be written while the files are closed."""
    async with opened(held, pool, wanted()) as partition:
        with released(held):
            large = await begin_large(partition, held)
            behind = asyncio.create_task(send(partition, LARGE))
            for _ in range(10):
                await asyncio.sleep(0)
            closed = asyncio.create_task(partition.close())
            for _ in range(10):
                await asyncio.sleep(0)
        assert await large == 0
        with pytest.raises(CommandRejected, match="stopping"):
            await behind
        assert await closed
        assert partition.log.next_offset == 1


async def test_at_bounded_the_time_that_a_large_write_takes_counts(held: HeldWrites, pool: Executor) -> None:
    clock = ManualClock()
    async with opened(held, pool, timed(), clock) as partition:
        with released(held):
            large = await begin_large(partition, held)
            clock.advance(MINUTE)
        assert await large == 0
        # It is as old as it was when its write began, so its sync is due.
        await until(lambda: partition.log.marks.synced.offset == 1)


async def test_at_bounded_a_write_that_takes_two_intervals_is_acknowledged_after_its_sync(
    held: HeldWrites, pool: Executor
) -> None:
    clock = ManualClock()
    async with opened(held, pool, timed(), clock) as partition:
        held.gate.clear()
        with released(held):
            large = await begin_large(partition, held)
            clock.advance(2 * MINUTE + 1)
        behind = asyncio.create_task(send(partition, "behind"))
        await until(held.waiting.is_set)
        assert not large.done()
        assert not behind.done()
        held.gate.set()
        assert (await large, await behind) == (0, 1)
