"""Partitions while something else happens to them: purges, trims, other settings, deletion, a close."""

import asyncio
import errno
import threading
from concurrent.futures import Executor

import pytest

from courser.errors import PartitionReadOnly, StorageFailure
from courser.model.durability import Durability, DurabilityPolicy
from courser.records.batch import NewMessage, build_batch
from courser.storage.partition_log import PartitionLog
from courser.storage.read_result import ReadBuffer, ReadResult
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from tests.broker.open_partitions import (
    ALL,
    DIRECTORY,
    IDENTITY,
    ONE,
    GatedFileSystem,
    opened,
    send,
    settings,
    texts,
    until,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FaultPlan


async def test_a_purge_lets_sends_wait_and_numbering_goes_on(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        for number in range(3):
            await send(partition, str(number))
        await partition.store_offset(ONE, 2)
        purge = asyncio.create_task(partition.purge())
        await asyncio.sleep(0)
        assert await send(partition, "after") == 3
        await purge
        assert await texts(partition) == ["after"]
        assert partition.log.offsets.get(ONE) is None


async def test_automatic_commits_that_waited_for_a_purge_do_not_move_back(
    disk: GatedFileSystem, pool: Executor
) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        for number in range(3):
            await send(partition, str(number))
        purge = asyncio.create_task(partition.purge())
        await asyncio.sleep(0)
        await asyncio.gather(*(partition.store_offset(ONE, offset, only_forward=True) for offset in (2, 1)))
        await purge
        assert partition.log.offsets.get(ONE) == 2
        await partition.store_offset(ONE, 0)
        assert partition.log.offsets.get(ONE) == 0, "whoever asks for it goes back"


async def test_a_send_that_waited_for_its_offsets_does_not_get_into_a_purge(
    disk: GatedFileSystem, pool: Executor
) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "before")
        large = build_batch([NewMessage(b"x")] * (partition.log.reserved_end + 1))
        append = asyncio.create_task(partition.append(large))
        await asyncio.sleep(0)
        await partition.purge()
        appended = await append
        result = await partition.reader.read(0, count=ALL, size_max=ALL)
        assert (result.first_offset, result.message_count) == (appended.base_offset, large.count)


async def test_trimming_deletes_whole_segments_from_the_front(disk: GatedFileSystem, pool: Executor) -> None:
    wanted = LogSettings(segment_size=1000, durability=DurabilityPolicy(level=Durability.SYNCED))
    async with opened(disk, pool, wanted) as partition:
        for _ in range(6):
            await send(partition, "x" * 500)
        await until(lambda: partition.log.segments[0].state.value == "sealed")
        await partition.trim(1)
        assert partition.log.start_offset == 1
        assert len(await texts(partition)) == 5


async def test_a_partition_that_was_closed_opens_without_findings(disk: GatedFileSystem, pool: Executor) -> None:
    wanted = settings(Durability.WRITTEN)
    async with opened(disk, pool, wanted) as partition:
        for number in range(50):
            await send(partition, str(number))
        assert await partition.close()
    log = PartitionLog.open(disk, DIRECTORY, IDENTITY, settings=wanted, clock=ManualClock(), stop=StopKind.CLEAN)
    assert (log.findings, log.next_offset, log.failure) == ((), 50, None)


# --- settings that change ---


@pytest.mark.parametrize("before", Durability)
@pytest.mark.parametrize("after", Durability)
async def test_settings_change_while_messages_come(
    disk: GatedFileSystem, pool: Executor, before: Durability, after: Durability
) -> None:
    async with opened(disk, pool, settings(before)) as partition:
        sends = [asyncio.create_task(send(partition, str(number))) for number in range(10)]
        await asyncio.sleep(0)
        await partition.change_settings(settings(after))
        sends += [asyncio.create_task(send(partition, str(number))) for number in range(10, 20)]
        assert sorted(await asyncio.gather(*sends)) == list(range(20))
        assert len(await texts(partition)) == 20
        if after is Durability.SYNCED:
            assert partition.log.marks.synced.offset == 20


async def test_a_send_that_waits_for_its_sync_is_not_acknowledged_early_by_a_change(
    disk: GatedFileSystem, pool: Executor
) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        disk.gate.clear()
        waiting = asyncio.create_task(send(partition, "promised"))
        await until(disk.waiting.is_set)
        change = asyncio.create_task(partition.change_settings(settings(Durability.WRITTEN)))
        later = asyncio.create_task(send(partition, "later"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert not later.done()
        disk.gate.set()
        await change
        assert (await waiting, await later) == (0, 1)


async def test_if_the_sync_before_a_change_fails_the_stricter_level_holds(
    disk: GatedFileSystem, pool: Executor
) -> None:
    for level, expected in ((Durability.WRITTEN, Durability.SYNCED), (Durability.SYNCED, Durability.SYNCED)):
        before = Durability.SYNCED if level is Durability.WRITTEN else Durability.WRITTEN
        disk.plan = FaultPlan()
        directory = DIRECTORY.parent / level.value
        async with opened(disk, pool, settings(before), directory=directory) as partition:
            await send(partition, "x")
            if before is Durability.SYNCED:
                partition.log.append(build_batch([NewMessage(b"unsynced")]))
            disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log")
            with pytest.raises((PartitionReadOnly, StorageFailure)):
                await partition.change_settings(settings(level))
            assert partition.log.settings.durability.level is expected


async def test_other_settings_change_without_a_sync(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "x")
        await partition.change_settings(LogSettings(segment_size=1000))
        assert (partition.log.settings.segment_size, partition.commits.sync_count) == (1000, 0)


# --- rolls, arrivals, the end ---


async def test_a_rolled_segment_is_sealed_and_can_be_trimmed(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await partition.roll()
        await send(partition, "old")
        await partition.roll()
        await partition.roll()
        assert [segment.state.value for segment in partition.log.segments] == ["sealed"]
        await partition.trim(1)
        assert partition.log.segments == ()
        assert await send(partition, "new") == 1


async def test_who_waits_for_messages_hears_of_them_when_they_can_be_read(
    disk: GatedFileSystem, pool: Executor
) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        seen: list[int] = []

        async def watch() -> None:
            while not seen:
                arrival: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                partition.readers.wait_for(arrival, 0)
                await arrival
                seen.extend([1] if await texts(partition) else [])

        watcher = asyncio.create_task(watch())
        disk.gate.clear()
        sending = asyncio.create_task(send(partition, "x"))
        await until(disk.waiting.is_set)
        assert not seen
        disk.gate.set()
        await sending
        await watcher


async def test_a_deleted_partition_gives_an_error_to_whoever_waits(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        disk.gate.clear()
        waiting = asyncio.create_task(send(partition, "x"))
        await until(disk.waiting.is_set)
        arrival: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        partition.readers.wait_for(arrival, 1000)
        partition.mark_deleted()
        with pytest.raises(PartitionReadOnly, match="it was deleted"):
            await waiting
        with pytest.raises(PartitionReadOnly, match="it was deleted"):
            await send(partition, "later")
        assert arrival.done()
        disk.gate.set()
        assert not await partition.close()


async def test_files_stay_open_for_reads_under_way(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "cold")
        entered, leave = threading.Event(), threading.Event()
        read = partition.reader.disk.read

        def slow_read(
            offset: int, count: int, size_max: int, buffer: ReadBuffer | None = None, wait: bool = True
        ) -> ReadResult:
            if wait:
                entered.set()
                assert leave.wait(30)
            return read(offset, count, size_max, buffer, wait)

        partition.reader.disk.read = slow_read  # type: ignore[method-assign]
        disk.cold = True
        reading = asyncio.create_task(texts(partition))
        await until(entered.is_set)
        closing = asyncio.create_task(partition.close())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not closing.done()
        leave.set()
        assert await reading == ["cold"]
        assert await closing
