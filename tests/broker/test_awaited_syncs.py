"""Syncs that clients wait for: alone, or with one call for a crowd."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from courser.broker.partition.awaited_syncs import AwaitedSyncs
from courser.broker.partition.disk_pool import DiskPool
from courser.broker.partition.partition import Partition
from courser.broker.partition.sync_ways import SyncWays
from courser.broker.partition.whole_syncs import WholeSyncs
from courser.errors import PartitionReadOnly
from courser.model.durability import Durability
from courser.storage.limits import EngineLimits
from courser.testing.clocks import ManualClock
from courser.testing.faults import FaultPlan
from courser.testing.files import FakeFileSystem
from tests.broker.open_partitions import DIRECTORY, opened, send, settings

CROWD = 4
DATA = DIRECTORY.parent


class FakeWhole:
    """A file system of which a test says how much waits to be written, and whether it can be synced."""

    def __init__(self) -> None:
        self.unwritten: int | None = 0
        self.count = 0
        self.takes = 0
        self.clock = ManualClock()

    def covers(self, directory: Path) -> bool:
        del directory
        return True

    def sync(self) -> None:
        self.count += 1
        self.clock.advance(self.takes)

    def unwritten_size(self) -> int | None:
        return self.unwritten

    def close(self) -> None:
        pass


class Crowd:
    """Starts syncs by the turn of the loop, and waits for them."""

    def __init__(self, pool: Executor) -> None:
        self.whole = FakeWhole()
        self.syncs = AwaitedSyncs(WholeSyncs(self.whole), pool, self.whole.clock, CROWD)
        self.alone_count = 0

    def _run(self) -> None:
        self.alone_count += 1
        self.whole.clock.advance(100)

    async def sync(self, count: int) -> list[BaseException | None]:
        loop = asyncio.get_running_loop()
        done: list[asyncio.Future[BaseException | None]] = [loop.create_future() for _ in range(count)]
        for future in done:
            self.syncs.start(self._run, future.set_result)
        return await asyncio.gather(*done)


@pytest.fixture
def pool() -> Iterator[Executor]:
    found = DiskPool(1)
    yield found
    found.shutdown()


async def test_a_few_sync_alone(pool: Executor) -> None:
    crowd = Crowd(pool)
    for _ in range(20):
        assert await crowd.sync(CROWD - 1) == [None] * (CROWD - 1)
    assert crowd.whole.count == 0
    assert crowd.alone_count == 20 * (CROWD - 1)


async def test_a_crowd_needs_one_call_and_a_proof(pool: Executor) -> None:
    crowd = Crowd(pool)
    await crowd.sync(CROWD)
    crowd.alone_count = 0
    assert await crowd.sync(CROWD) == [None] * CROWD
    assert crowd.whole.count == crowd.alone_count == 1


async def test_a_crowd_that_leaves_is_no_crowd(pool: Executor) -> None:
    crowd = Crowd(pool)
    await crowd.sync(CROWD)
    await crowd.sync(1)
    count = crowd.whole.count
    for _ in range(20):
        await crowd.sync(1)
    assert crowd.whole.count == count


@pytest.mark.parametrize("unwritten", [None, 1 << 30])
async def test_the_data_of_others_is_not_waited_for(pool: Executor, unwritten: int | None) -> None:
    crowd = Crowd(pool)
    crowd.whole.unwritten = unwritten
    for _ in range(20):
        await crowd.sync(CROWD)
    assert crowd.whole.count == 0


async def test_the_quicker_way_is_taken_and_the_other_one_is_tried_now_and_then(pool: Executor) -> None:
    crowd = Crowd(pool)
    crowd.whole.takes = 1_000_000
    for _ in range(3):
        await crowd.sync(CROWD)
    count = crowd.whole.count
    assert count, "it has to be tried to be known"
    for _ in range(200):
        await crowd.sync(CROWD)
    assert crowd.whole.count == count, "ten times slower: it is not tried often"
    crowd.whole.takes = 0
    for _ in range(2000):
        await crowd.sync(CROWD)
    assert crowd.whole.count > count, "it has become quicker, and nobody noticed"


# --- partitions ---------------------------------------------------------------------------------------------


def a_disk() -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1))
    disk.make_directory(DATA)
    return disk


@asynccontextmanager
async def partitions(disk: FakeFileSystem, pool: Executor) -> AsyncIterator[list[Partition]]:
    clock = ManualClock()
    ways = SyncWays.of(disk.open_whole(DATA), pool, clock, EngineLimits(awaited_sync_count=2))
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                opened(disk, pool, settings(Durability.SYNCED), clock, DATA / str(number), ways)
            )
            for number in range(CROWD)
        ]


async def test_nothing_is_acknowledged_before_it_is_durable(pool: Executor) -> None:
    disk = a_disk()
    async with partitions(disk, pool) as found:
        for number in range(5):
            await asyncio.gather(*(send(partition, str(number)) for partition in found))
            assert {partition.log.marks.synced.offset for partition in found} == {number + 1}
        assert disk.calls["sync_whole"]


async def test_a_failure_fails_every_send_that_lost_something(pool: Executor) -> None:
    disk = a_disk()
    async with partitions(disk, pool) as found:
        for number in range(2):
            await asyncio.gather(*(send(partition, str(number)) for partition in found))
        disk.plan = FaultPlan().fail("sync_whole", errno.EIO)
        results = await asyncio.gather(*(send(partition, "lost") for partition in found), return_exceptions=True)
        assert disk.calls["sync_whole"]
        assert all(isinstance(result, PartitionReadOnly) for result in results), results
        assert {partition.log.marks.synced.offset for partition in found} == {2}
