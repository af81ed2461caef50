"""Trouble with the disk is told in the log: once, and when it is over."""

import errno
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from courser.api import commands as c
from courser.broker.partition.disk_watch import FULL_SIZE, DiskWatch
from courser.broker.settings import BrokerSettings
from courser.errors import CommandRejected, DiskFull, ErrorCode, PartitionReadOnly
from courser.model.durability import PERSISTED
from courser.model.topic_options import TopicOptions
from tests.broker.fake_disks import FakeServer
from tests.fakes.files import FaultPlan

MIB = 1024 * 1024
TOTAL = 100_000 * MIB


class Disk:
    """One that has as much room as the test says."""

    free = TOTAL

    def space(self) -> tuple[int, int]:
        return self.free, TOTAL


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and words of the lines since the last call."""
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return lines


async def test_a_disk_that_fills_is_told_once_at_each_step_and_when_it_has_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "courser.broker.partition.disk_watch")
    broker, disk = await FakeServer().open(), Disk()
    watch = DiskWatch(broker.partitions, broker.pool, disk.space)
    heard = []
    for free in (TOTAL, 5_001, 4_999, 4_000, 9_000, 63, 0, 100, 200, 9_999, 10_000, 4_999):
        disk.free = free * MIB if free != TOTAL else TOTAL
        await watch.look()
        heard.append([(level, line.partition(" free=")[0]) for level, line in told(caplog)])
    scarce = [("WARNING", "disk space is low")]
    full = [("ERROR", "disk full: refusing sends that do not fit until space is free again")]
    relief = [("INFO", "disk space is available again")]
    assert heard == [[], [], scarce, [], [], full, [], [], relief, [], relief, scarce]
    disk.free = FULL_SIZE - 1
    await watch.look()
    assert told(caplog)[0][1].endswith("free=63MiB total=100000MiB")
    await broker.close()


async def test_a_small_disk_is_not_full_as_long_as_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    broker = await FakeServer().open()
    await DiskWatch(broker.partitions, broker.pool, lambda: (40 * MIB, 50 * MIB)).look()
    assert told(caplog) == []
    await broker.close()


async def test_a_partition_that_takes_no_more_writes_is_named_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer()
    broker = await server.open()
    await server.ask(c.CreateStream("s"))
    await server.add_topic("t", 2, TopicOptions(durability=PERSISTED))
    await server.send("t", "safe")
    watch = DiskWatch(broker.partitions, broker.pool, Disk().space)
    await watch.look()
    assert told(caplog) == []
    server.disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log")
    with pytest.raises(PartitionReadOnly):
        await server.send("t", "lost")
    await watch.look()
    await watch.look()
    ((level, line),) = told(caplog)
    assert level == "ERROR"
    assert line.startswith("partition is read-only until a restart path=/data/streams/0/topics/0/partitions/0-")
    assert "Input/output error" in line
    # Who begins to watch later was told by somebody else.
    await DiskWatch(broker.partitions, broker.pool, Disk().space).look()
    assert told(caplog) == []
    await broker.close()


async def test_a_refused_write_is_told_at_once_and_once(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer()
    broker = await server.open()
    await server.ask(c.CreateStream("s"))
    await server.add_topic("t", 1, TopicOptions())
    await server.send("t", "safe")
    broker.disk_watch = watch = DiskWatch(broker.partitions, broker.pool, Disk().space)
    assert await watch.problems() == []
    server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="*.log", onwards=True)
    caplog.set_level("INFO", "courser.broker.partition.disk_watch")
    for _ in range(2):
        with pytest.raises(DiskFull):
            await server.send("t", "refused")
    ((level, line),) = told(caplog)
    assert level == "ERROR"
    assert line.startswith("disk full: refusing sends that do not fit until space is free again file=/data/streams/0/")
    # The disk says that it has room: it may be a quota.
    assert await watch.problems() == ["the disk is full: it has just refused a write"]
    assert watch.is_full
    await watch.look()
    assert (told(caplog), watch.is_full) == ([], True)
    server.disk.plan = FaultPlan()
    await server.send("t", "fits")
    await watch.look()
    ((level, line),) = told(caplog)
    assert (level, line.partition(" free=")[0]) == ("INFO", "disk space is available again")
    assert (await watch.problems(), watch.is_full) == ([], False)
    await broker.close()


async def test_below_the_minimum_of_free_space_sends_are_refused_until_there_is_space_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "courser.broker.partition.disk_watch")
    server, disk = FakeServer(settings=BrokerSettings(free_space_min=20_000 * MIB)), Disk()
    broker = await server.open()
    await server.ask(c.CreateStream("s"))
    await server.add_topic("t", 1, TopicOptions())
    broker.disk_watch._disk_space = disk.space
    await broker.disk_watch.look()
    await server.send("t", "fits")
    disk.free = 19_999 * MIB
    await broker.disk_watch.look()
    reason = (
        "the disk has 19999 MiB of free space, less than the minimum of 20000 MiB "
        "(data_maintenance.disk.min_free_space)"
    )
    with pytest.raises(CommandRejected, match=re.escape(reason)) as refused:
        await server.send("t", "refused")
    assert refused.value.code is ErrorCode.DISK_FULL
    assert await broker.disk_watch.problems() == [f"sends are refused: {reason}"]
    assert not broker.disk_watch.is_full, "metadata and stored offsets are accepted"
    await server.ask(c.CreateStream("another"))
    disk.free = 20_000 * MIB
    await broker.disk_watch.look()
    await broker.disk_watch.look()
    await server.send("t", "fits again")
    assert [(level, line.partition(":")[0]) for level, line in told(caplog)] == [
        ("ERROR", "refusing all sends"),
        ("INFO", "accepting sends again"),
    ]
    await broker.close()


async def test_no_send_is_refused_if_enough_can_be_deleted() -> None:
    broker, disk, missing = await FakeServer().open(), Disk(), []

    async def relieve(size: int) -> None:
        missing.append(size)
        disk.free += size

    watch = DiskWatch(broker.partitions, broker.pool, disk.space, free_space_min=300, relieve=relieve)
    for free in (300, 200):
        disk.free = free
        await watch.look()
        assert watch.refusal is None
    assert missing == [100]
    await broker.close()


async def test_health_does_not_wait_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("courser.broker.partition.disk_watch._HEALTH_PATIENCE", 0.01)
    broker = await FakeServer().open()
    room, hanging = TOTAL, threading.Event()
    hanging.set()

    def measure() -> tuple[int, int]:
        hanging.wait()
        return room, TOTAL

    with ThreadPoolExecutor(1) as pool:
        watch = DiskWatch(broker.partitions, pool, measure)
        await watch.look()
        hanging.clear()
        assert await watch.problems() == []
        monkeypatch.setattr("courser.broker.partition.disk_watch._SILENCE", 0.01)
        assert await watch.problems() == ["the disk has not answered for 0 s"]
        room = 0
        hanging.set()
        await watch.look()
        await watch.look()
        assert await watch.problems() == [f"the disk is full: 0 of {TOTAL} bytes are free"]
    await broker.close()
