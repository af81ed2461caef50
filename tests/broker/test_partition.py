"""A partition on an event loop: sends share syncs, a slow or failing disk hurts only whom it must."""

import asyncio
import errno
import threading
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pytest

from courser.broker.partition.disk_queue import JobKind
from courser.errors import DiskFull, PartitionReadOnly
from courser.model.durability import Durability
from courser.records.batch import NewMessage, build_batch
from courser.storage.offset_table import read_offsets
from courser.storage.settings import EngineLimits, LogSettings
from tests.broker.open_partitions import (
    DIRECTORY,
    IDENTITY,
    MINUTE,
    ONE,
    GatedFileSystem,
    has_unsynced_offsets,
    let_timer_fire,
    opened,
    send,
    settings,
    texts,
    until,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFile, FaultPlan


@pytest.mark.parametrize("level", Durability)
async def test_what_is_sent_is_read(disk: GatedFileSystem, pool: Executor, level: Durability) -> None:
    async with opened(disk, pool, settings(level)) as partition:
        offsets = [await send(partition, f"message {number}") for number in range(20)]
        assert offsets == list(range(20))
        assert await texts(partition) == [f"message {number}" for number in range(20)]


async def test_the_kernel_is_asked_to_write_back_but_not_faster_than_a_disk_follows(
    disk: GatedFileSystem, pool: Executor
) -> None:
    clock = ManualClock()
    hints: list[int] = []
    opened_by = disk.open

    def open_noting_hints(path: Path, *, writable: bool = False, create: bool = False) -> FakeFile:
        file = opened_by(path, writable=writable, create=create)
        file.start_writeback = lambda position, size: hints.append(position + size)  # type: ignore[method-assign]
        return file

    disk.open = open_noting_hints  # type: ignore[method-assign]
    batch = build_batch([NewMessage(bytes(600_000))])
    async with opened(disk, pool, replace(settings(Durability.WRITTEN), writeback_size=1_000_000), clock) as partition:

        async def fill(size: int) -> None:
            while partition.log.size < size:
                await partition.append(batch)
                await asyncio.sleep(0)
            await partition._queue.drain(JobKind.SYNC)

        await fill(2_000_000)
        assert not hints, "a short burst is not slowed down by its own write-back"
        clock.advance(100_000)
        await fill(3_000_000)
        assert len(hints) == 1
        await fill(4_000_000)
        assert len(hints) == 1
        clock.advance(100_000)
        await fill(6_000_000)
        assert len(hints) == 2
        # Nothing is left out: the second one begins where the first one ended.
        assert hints[1] > 4_000_000


async def test_recovery_points_are_synced_but_not_faster_than_a_disk_follows(
    disk: GatedFileSystem, pool: Executor
) -> None:
    clock = ManualClock()
    wanted = replace(settings(Durability.WRITTEN), recovery_point_size=10_000)
    batch = build_batch([NewMessage(bytes(6_000))])
    async with opened(disk, pool, wanted, clock) as partition:

        async def send_twice() -> int:
            for _ in range(2):
                await partition.append(batch)
                await asyncio.sleep(0)
            await partition._queue.drain(JobKind.SYNC)
            return partition.commits.sync_count

        assert await send_twice() == 0
        clock.advance(100_000)
        assert await send_twice() == 1
        assert await send_twice() == 1
        clock.advance(100_000)
        assert await send_twice() == 2


async def test_a_recovery_point_comes_also_if_nothing_more_is_sent(disk: GatedFileSystem, pool: Executor) -> None:
    clock = ManualClock()
    wanted = replace(settings(Durability.WRITTEN), recovery_point_size=10_000)
    batch = build_batch([NewMessage(bytes(12_000))])
    async with opened(disk, pool, wanted, clock) as partition:
        await partition.append(batch)
        assert partition.commits.sync_count == 0
        clock.advance(100_000)
        let_timer_fire(partition)
        await partition._queue.drain(JobKind.SYNC)
        assert partition.log.marks.synced == partition.log.marks.written


async def test_a_message_that_comes_beside_a_sync_is_synced_in_its_own_time(
    disk: GatedFileSystem, pool: Executor
) -> None:
    clock = ManualClock()
    async with opened(disk, pool, settings(Durability.BOUNDED, interval=MINUTE), clock) as partition:
        await send(partition, "first")
        disk.gate.clear()
        clock.advance(MINUTE)
        let_timer_fire(partition)
        await asyncio.sleep(0)
        assert partition.commits.sync_count == 1
        await send(partition, "second")
        disk.gate.set()
        await partition._queue.drain(JobKind.SYNC)
        assert partition.log.marks.synced.offset == 1
        # Nothing follows it, and still somebody looks.
        clock.advance(MINUTE)
        let_timer_fire(partition)
        await partition._queue.drain(JobKind.SYNC)
        assert partition.log.marks.synced.offset == 2


async def test_the_parts_of_a_send_can_have_one_time_and_time_never_goes_back(
    disk: GatedFileSystem, pool: Executor
) -> None:
    clock = ManualClock()
    batch = build_batch([NewMessage(b"part")])
    async with opened(disk, pool, settings(Durability.WRITTEN), clock) as partition:
        first = await partition.append(batch)
        clock.advance(10)
        assert (await partition.append(batch, timestamp=first.timestamp)).timestamp == first.timestamp
        later = await partition.append(batch)
        assert later.timestamp == first.timestamp + 10
        assert (await partition.append(batch, timestamp=first.timestamp)).timestamp == later.timestamp


async def test_sends_that_arrive_together_share_one_sync(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        await send(partition, "first")
        before = partition.commits.sync_count
        await asyncio.gather(*(send(partition, str(number)) for number in range(16)))
        assert partition.commits.sync_count == before + 1


async def test_a_send_at_synced_is_not_acknowledged_before_its_sync(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        disk.gate.clear()
        task = asyncio.create_task(send(partition, "waiting"))
        await until(disk.waiting.is_set)
        assert not task.done()
        assert partition.log.next_offset == 1
        assert await texts(partition) == [], "a reader sees nothing that a power cut could take"
        disk.gate.set()
        assert await task == 0
        assert await texts(partition) == ["waiting"]


async def test_a_slow_sync_delays_neither_reads_nor_other_partitions(disk: GatedFileSystem, pool: Executor) -> None:
    other = DIRECTORY.parent / "other"
    async with (
        opened(disk, pool, settings(Durability.SYNCED)) as slow,
        opened(disk, pool, settings(Durability.WRITTEN), directory=other) as quick,
    ):
        await send(slow, "synced")
        await send(quick, "warm")
        disk.gate.clear()
        task = asyncio.create_task(send(slow, "waiting"))
        await until(disk.waiting.is_set)
        assert await texts(slow) == ["synced"]
        assert [await send(quick, str(number)) for number in range(1, 5)] == [1, 2, 3, 4]
        assert not task.done()
        disk.gate.set()
        await task


async def test_a_failed_sync_fails_every_waiting_send_and_all_later_ones(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        await send(partition, "safe")
        disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log")
        results = await asyncio.gather(*(send(partition, str(number)) for number in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [PartitionReadOnly] * 5
        with pytest.raises(PartitionReadOnly, match="sync"):
            await send(partition, "later")
        assert await texts(partition) == ["safe"], "reads go on"
        assert not await partition.close()


async def test_a_sync_is_no_success_if_another_one_of_the_partition_failed_meanwhile(
    disk: GatedFileSystem, pool: Executor
) -> None:
    """The kernel reports a failure once, so this sync may have succeeded without writing everything."""
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "first")
        disk.gate.clear()
        flushed = asyncio.create_task(partition.sync())
        await until(disk.waiting.is_set)
        partition.log.syncs.has_failed = True
        disk.gate.set()
        with pytest.raises(PartitionReadOnly):
            await flushed


async def test_a_lack_of_descriptors_delays_a_sync_and_fails_nobody(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        disk.plan = FaultPlan().fail("sync_directory", errno.EMFILE)
        assert await send(partition, "patient") == 0
        assert partition.log.failure is None
        assert partition.log.marks.synced.offset == 1


async def test_sends_wait_while_too_many_segments_wait_to_be_sealed(disk: GatedFileSystem, pool: Executor) -> None:
    wanted = LogSettings(segment_size=100)
    async with opened(disk, pool, wanted) as partition:
        disk.gate.clear()
        sent: list[int] = []

        async def send_many() -> None:
            for number in range(100):
                sent.append(await send(partition, str(number)))  # noqa: PERF401, it is watched while it grows

        task = asyncio.create_task(send_many())
        await until(lambda: len(sent) > 60 and disk.waiting.is_set())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        assert partition.log.closing_count == 65
        disk.gate.set()
        await task
        assert sent == list(range(100))


async def test_a_full_disk_refuses_the_send_and_heals(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.SYNCED)) as partition:
        await send(partition, "first")
        disk.capacity = disk.used
        with pytest.raises(DiskFull):
            await send(partition, "x" * 2_000_000)
        disk.capacity = None
        assert await send(partition, "second") == 1
        assert await texts(partition) == ["first", "second"]


async def test_a_reservation_that_finds_no_space_refuses_the_send(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        disk.capacity = disk.used
        with pytest.raises(DiskFull):
            await send(partition, "first")
        disk.capacity = None
        assert await send(partition, "first") == 0


async def test_at_bounded_a_send_past_the_bound_waits_for_the_sync(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.BOUNDED, message_count_max=4)) as partition:
        disk.gate.clear()
        for number in range(4):
            await send(partition, str(number))
        task = asyncio.create_task(send(partition, "one too many"))
        await until(disk.waiting.is_set)
        assert not task.done()
        disk.gate.set()
        assert await task == 4


async def test_at_bounded_the_interval_syncs_by_itself(disk: GatedFileSystem, pool: Executor) -> None:
    wanted = settings(Durability.BOUNDED, interval=1)
    clock = ManualClock()
    async with opened(disk, pool, wanted, clock) as partition:
        await send(partition, "alone")
        clock.advance(10)
        await until(lambda: partition.log.marks.synced.offset == 1)


async def test_at_bounded_most_sends_ask_for_nothing_but_the_time(
    disk: GatedFileSystem, pool: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(disk, pool, settings(Durability.BOUNDED, interval=MINUTE)) as partition:
        await send(partition, "first")

        def refuse(*_: object) -> bool:
            pytest.fail("the bounds are far away")

        monkeypatch.setattr(partition.commits._acknowledgements, "admits", refuse)
        for number in range(20):
            await send(partition, str(number))


async def test_data_that_is_not_in_memory_is_read_in_the_pool(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "cold")
        timestamp = partition.log.segments[0].first_timestamp
        disk.cold = True
        assert await texts(partition) == ["cold"]
        assert await partition.reader.offset_at_time(timestamp) == 0


async def test_a_store_that_moves_back_is_synced_before_it_returns(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        for number in range(3):
            await send(partition, str(number))
        await partition.store_offset(ONE, 2)
        assert has_unsynced_offsets(partition)
        await partition.store_offset(ONE, 1)
        assert not has_unsynced_offsets(partition)
        await partition.delete_offset(ONE)
        assert partition.log.offsets.get(ONE) is None
        assert not has_unsynced_offsets(partition)


async def test_the_first_stored_offset_waits_for_no_sync(disk: GatedFileSystem, pool: Executor) -> None:
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "message")
        syncs = disk.calls["sync"], disk.calls["sync_directory"]
        await partition.store_offset(ONE, 0)
        assert (disk.calls["sync"], disk.calls["sync_directory"]) == syncs
        await partition.sync()
        assert disk.calls["sync_directory"] == syncs[1] + 1, "the name of the file is not durable"


async def test_a_store_waits_while_the_file_of_offsets_is_rewritten(disk: GatedFileSystem, pool: Executor) -> None:
    """It would be in the old file only."""
    gate = threading.Event()
    open_file = disk.open

    def open_with_gate(path: Path, *, writable: bool = False, create: bool = False) -> FakeFile:
        file = open_file(path, writable=writable, create=create)
        if path.name == "offsets.tmp":
            sync = file.sync

            def gated_sync() -> None:
                assert gate.wait(30)
                sync()

            file.sync = gated_sync  # type: ignore[method-assign]
        return file

    disk.open = open_with_gate  # type: ignore[method-assign]
    small = replace(settings(Durability.WRITTEN), limits=EngineLimits(offsets_rewrite_size=64))
    async with opened(disk, pool, small) as partition:
        for number in range(9):
            await send(partition, str(number))
        await partition._queue.drain(JobKind.UPKEEP)
        offset = 0
        while not partition.log.offsets.is_wasteful:
            await partition.store_offset(ONE, offset)
            offset += 1
        await until(lambda: partition.log.offsets.is_rewriting)
        store = asyncio.ensure_future(partition.store_offset(ONE, 8))
        await until(lambda: len(partition._queue._lines[JobKind.UPKEEP].asked) == 1)
        assert partition.log.offsets.get(ONE) == offset - 1 < 8
        gate.set()
        await store
        assert read_offsets(disk.contents(DIRECTORY / "offsets"), 0, IDENTITY).offsets == {ONE: 8}


async def test_a_store_that_fails_after_a_part_was_written_is_cut_durably_before_it_is_refused(
    disk: GatedFileSystem, pool: Executor
) -> None:
    """The part could become complete after a power cut: records end with zeros, and so does a file that grows."""
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        for number in range(10):
            await send(partition, str(number))
        await partition.store_offset(ONE, 1)
        await partition.sync()
        disk.plan = FaultPlan().shorten(take=24).fail("write_at", errno.ENOSPC, call=2)
        with pytest.raises(DiskFull):
            await partition.store_offset(ONE, 9)
        disk.plan = FaultPlan()
        assert not has_unsynced_offsets(partition)
        assert partition.log.offsets.get(ONE) == 1


async def test_offsets_of_a_batch_that_was_refused_in_part_are_given_again_only_after_its_cut_is_durable(
    disk: GatedFileSystem, pool: Executor
) -> None:
    """If nothing but zeros is missing of the batch, a power cut could make it complete."""
    async with opened(disk, pool, settings(Durability.WRITTEN)) as partition:
        await send(partition, "first")
        await partition._queue.drain(JobKind.UPKEEP)
        disk.plan = FaultPlan().shorten("write_at", take=300).fail("write_at", errno.ENOSPC, call=2)
        syncs = disk.calls["sync"]
        with pytest.raises(DiskFull):
            await partition.append(build_batch([NewMessage(bytes(1000))]))
        assert disk.calls["sync"] == syncs, "it was synced on the event loop"
        disk.plan = FaultPlan()
        cut = partition.log.segments[-1].file
        assert isinstance(cut, FakeFile)
        synced: list[int] = []
        sync = cut.sync

        def note_sync() -> None:
            synced.append(partition.log.next_offset)
            sync()

        cut.sync = note_sync  # type: ignore[method-assign]
        assert await send(partition, "second") == 1
        assert synced[:1] == [1], "the offset was given again before the cut was durable"
