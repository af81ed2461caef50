"""Purges that the disk refuses, or that a server does not live to finish: nothing sent after them is lost."""

import asyncio
import errno

import pytest

from courser.api import commands as c
from courser.broker.catalog.purging import prepared_purge
from courser.catalog import changes
from courser.catalog.entities import PurgedTopic
from courser.catalog.store import CatalogSettings
from courser.errors import CourserError, DiskFull, ErrorCode, StorageFailure
from courser.model.topic_options import TopicOptions
from courser.storage.journal import SLOT_COUNT
from tests.broker.fake_disks import FakeServer
from tests.fakes.files import FaultPlan

SYNCED = TopicOptions(durability="persisted")
PURGES = [c.PurgeTopic("s", "t"), c.PurgeStream("s")]
every_purge = pytest.mark.parametrize("purge", PURGES, ids=["topic", "stream"])
every_refusal = pytest.mark.parametrize(
    "refusal",
    [("open", errno.EMFILE, "*"), ("open", errno.EMFILE, "ledger"), ("write_at", errno.ENOSPC, "ledger")],
    ids=["no descriptors", "no descriptor for the ledger", "no room for the ledger"],
)


async def started() -> FakeServer:
    server = FakeServer()
    await server.open()
    await server.ask(c.CreateStream("s"))
    await server.add_topic("t", 2, SYNCED)
    for number in range(2):
        await server.send("t", "before", number)
    return server


def refuse(server: FakeServer, refusal: tuple[str, int, str]) -> None:
    operation, error, name = refusal
    server.disk.plan = FaultPlan().fail(operation, error, name=name, onwards=True)


@every_purge
@every_refusal
@pytest.mark.parametrize("with_power_cut", [False, True])
async def test_messages_behind_a_refused_purge_stay(
    purge: c.Command, refusal: tuple[str, int, str], *, with_power_cut: bool
) -> None:
    server = await started()
    refuse(server, refusal)
    with pytest.raises(StorageFailure):
        await server.ask(purge)
    server.disk.plan = FaultPlan()
    offsets = [await server.send("t", f"after {number}", number) for number in range(2)]
    await server.restart(with_power_cut=with_power_cut)
    for number in range(2):
        assert await server.read("t", number) == {offsets[number]: f"after {number}"}
    assert await server.broker.close()


@every_purge
async def test_a_descriptor_that_cannot_be_written_does_not_keep_partitions_from_their_purge(purge: c.Command) -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("open", errno.ENOSPC, name="descriptor*", onwards=True)
    with pytest.raises(DiskFull):
        await server.ask(purge)
    assert [await server.read("t", number) for number in range(2)] == [{}, {}]
    assert await server.send("t", "after") == 1
    await server.restart(with_power_cut=True)
    assert await server.read("t") == {1: "after"}
    assert await server.broker.close()


async def test_a_refused_purge_is_carried_out_without_being_asked_for_again() -> None:
    server = await started()
    server.broker.catalog._catch_up_delay = 0
    refuse(server, ("write_at", errno.ENOSPC, "ledger"))
    with pytest.raises(StorageFailure):
        await server.ask(PURGES[0])
    server.disk.plan = FaultPlan()
    await server.send("t", "after")
    async with asyncio.timeout(30):
        while await server.read("t") != {1: "after"}:  # noqa: ASYNC110 - work of a pool, without an event
            await asyncio.sleep(0.01)
    assert await server.broker.close()


async def test_a_purge_may_be_asked_for_again_while_the_first_one_waits() -> None:
    server = await started()
    refuse(server, ("write_at", errno.ENOSPC, "ledger"))
    for _ in range(3):
        with pytest.raises(StorageFailure):
            await server.ask(PURGES[0])
        await server.send("t", "in between")
    server.disk.plan = FaultPlan()
    await server.ask(PURGES[0])
    assert [await server.read("t", number) for number in range(2)] == [{}, {}]
    assert await server.send("t", "after") == 4
    await server.restart(with_power_cut=True)
    assert await server.read("t") == {4: "after"}
    assert await server.broker.close()


@pytest.mark.parametrize(
    "command",
    [c.DeleteTopic("s", "t"), c.DeleteStream("s"), c.DeletePartitions("s", "u", 1), c.PurgeTopic("s", "u")],
    ids=lambda command: type(command).__name__,
)
async def test_a_purge_that_waits_does_not_block_commands_that_make_room(command: c.Command) -> None:
    server = await started()
    await server.add_topic("u")
    # Only the partitions of the first topic are refused: its ledger is in a block that is full.
    server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="ledger", onwards=True, call=1)
    with pytest.raises(StorageFailure):
        await server.ask(PURGES[0])
    if isinstance(command, c.PurgeTopic):
        server.disk.plan = FaultPlan()
    await server.ask(command)
    server.disk.plan = FaultPlan()
    assert await server.broker.close()


async def test_a_creation_without_room_is_taken_back_for_a_deletion() -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("make_directory", errno.ENOSPC, onwards=True)
    with pytest.raises(DiskFull):
        await server.add_topic("new", 2)
    with pytest.raises(DiskFull):
        await server.ask(c.CreateStream("next"))
    await server.ask(c.DeleteTopic("s", "t"))
    assert server.broker.catalog.state.streams[0].topics == {}
    server.disk.plan = FaultPlan()
    await server.add_topic("new", 2, SYNCED)
    assert await server.send("new", "here", 1) == 0
    await server.restart(with_power_cut=True)
    assert await server.read("new", 1) == {0: "here"}
    assert await server.broker.close()


def refuse_partitions(server: FakeServer) -> FaultPlan:
    """The disk has no room for the directories of partitions."""
    server.disk.plan = FaultPlan().fail("make_directory", errno.ENOSPC, name="[0-9]-*", onwards=True)
    return server.disk.plan


async def test_a_creation_is_still_unfinished_if_its_own_deletion_fails() -> None:
    server = await started()
    refuse_partitions(server)
    with pytest.raises(DiskFull):
        await server.add_topic("new")
    refuse_partitions(server).fail("write_at", errno.ENOSPC, name="journal.wal")
    with pytest.raises(DiskFull):
        await server.ask(c.DeleteTopic("s", "new"))
    # If this followed the creation in the journal, the next start would report the topic's partition as lost.
    with pytest.raises(DiskFull):
        await server.ask(c.UpdateStream("s", "renamed"))
    await server.restart(with_power_cut=True)
    assert await server.send("new", "here") == 0
    assert await server.broker.close()


async def test_no_snapshot_covers_an_unfinished_creation() -> None:
    server = await started()
    # A snapshot before every change.
    server.broker.catalog._store._settings = CatalogSettings(slot_margin=SLOT_COUNT - 1)
    refuse_partitions(server)
    with pytest.raises(DiskFull):
        await server.add_topic("new")
    with pytest.raises(DiskFull):
        await server.ask(c.UpdateStream("s", "renamed"))
    server.broker.pool.shutdown(cancel_futures=True)
    server.disk.kill()
    # The disk is still full. The start undoes the creation, which it finds at the end of the journal.
    await server.open()
    assert [topic.name for topic in server.broker.catalog.state.streams[0].topics.values()] == ["t"]
    server.disk.plan = FaultPlan()
    assert await server.broker.close()


async def test_partitions_without_room_do_not_make_a_deletion_fail() -> None:
    server = await started()
    await server.add_topic("u")
    refuse_partitions(server).fail("write_at", errno.ENOSPC, name="descriptor*", onwards=True)
    with pytest.raises(DiskFull):
        await server.ask(c.CreatePartitions("s", "u", 1))
    # The creation is undone first, but there is no room for the descriptor without the new partition.
    await server.ask(c.DeleteTopic("s", "t"))
    server.disk.plan = FaultPlan()
    await server.restart(with_power_cut=True)
    assert [
        (topic.name, len(topic.partitions)) for topic in server.broker.catalog.state.streams[0].topics.values()
    ] == [("u", 1)]
    assert await server.broker.close()


async def test_a_full_disk_takes_deletions() -> None:
    server = await started()
    server.disk.capacity = server.disk.used
    with pytest.raises(CourserError) as refused:
        await server.ask(c.CreateStream("next"))
    assert refused.value.code is ErrorCode.DISK_FULL
    await server.ask(c.DeleteTopic("s", "t"))
    server.disk.capacity = None
    await server.restart(with_power_cut=True)
    assert server.broker.catalog.state.streams[0].topics == {}
    assert await server.broker.close()


async def test_a_full_disk_does_not_refuse_the_start_behind_an_unfinished_command() -> None:
    server = await started()
    refuse(server, ("write_at", errno.ENOSPC, "descriptor*"))
    with pytest.raises(DiskFull):
        await server.ask(PURGES[0])
    server.broker.pool.shutdown(cancel_futures=True)
    server.disk.kill()
    await server.open()
    assert await server.send("t", "after") == 1
    # The disk is still full, and what makes room works.
    await server.ask(c.DeleteTopic("s", "t"))
    server.disk.plan = FaultPlan()
    assert await server.broker.close()


async def test_a_start_without_room_for_the_last_creation_takes_it_back() -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("make_directory", errno.ENOSPC, name="[0-9]-*", onwards=True)
    with pytest.raises(DiskFull):
        await server.add_topic("new", 2)
    server.broker.pool.shutdown(cancel_futures=True)
    server.disk.kill()
    await server.open()
    assert [topic.name for topic in server.broker.catalog.state.streams[0].topics.values()] == ["t"]
    assert await server.read("t") == {0: "before"}
    await server.ask(c.DeleteTopic("s", "t"))
    server.disk.plan = FaultPlan()
    await server.add_topic("new", 2)
    assert await server.broker.close()


async def test_options_hold_though_the_descriptor_cannot_be_written() -> None:
    server = await started()
    await server.add_topic("u")
    server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="descriptor*", onwards=True)
    with pytest.raises(DiskFull):
        await server.ask(c.UpdateTopic("s", "u", "u", SYNCED, is_patch=True))
    server.disk.plan = FaultPlan()
    # What the topic says of itself, its partitions do.
    await server.send("u", "safe")
    await server.restart(with_power_cut=True)
    assert await server.read("u") == {0: "safe"}
    assert await server.broker.close()


async def test_rebuilt_metadata_that_forgot_purges_does_not_ignore_the_next_one() -> None:
    server = await started()
    for _ in range(3):
        await server.ask(PURGES[0])
    await server.send("t", "old")
    # As after a rebuild without descriptors.
    server.broker.catalog.state.streams[0].topics[0].purge_count = 0
    await server.ask(PURGES[0])
    assert await server.read("t") == {}
    assert await server.broker.close()


@every_purge
@pytest.mark.parametrize("with_power_cut", [False, True])
async def test_a_server_may_die_anywhere_in_a_purge(purge: c.Command, *, with_power_cut: bool) -> None:
    for crash_at in range(1, 60):
        server = await started()
        server.disk.plan = FaultPlan().crash_at(crash_at)
        work = asyncio.ensure_future(server.ask(purge))
        await asyncio.wait((work,), timeout=30)
        assert work.done()
        is_over = work.exception() is None
        await server.restart(with_power_cut=with_power_cut)
        kept = [await server.read("t", number) for number in range(2)]
        assert kept in ([{0: "before"}] * 2, [{}] * 2), "all or nothing"
        assert not is_over or kept == [{}, {}]
        offset = await server.send("t", "after")
        await server.restart(with_power_cut=with_power_cut)
        assert (await server.read("t"))[offset] == "after"
        await server.broker.close()
        if is_over:
            return
    raise AssertionError("the purge never came to its end")


@every_purge
async def test_a_purge_with_ends_deletes_nothing_behind_them(purge: c.Command) -> None:
    """This is what a process is told that purges its own partitions for the first one."""
    server = await started()
    for partition in server.broker.partitions.topics[0, 0].partitions:
        await partition.roll()
    after = [await server.send("t", "after", number) for number in range(2)]
    ends = (after[0], 0)
    change = (
        changes.TopicPurge(0, 0, 0, ends)
        if isinstance(purge, c.PurgeTopic)
        else changes.StreamPurge(0, (PurgedTopic(0, 0, ends),))
    )
    async with prepared_purge(
        server.broker.partitions, server.broker.catalog.state, change, server.broker.catalog.purge_end_of
    ) as prepared:
        assert prepared == (
            changes.TopicPurge(0, 0, 1, ends)
            if isinstance(purge, c.PurgeTopic)
            else changes.StreamPurge(0, (PurgedTopic(0, 1, ends),))
        )
    await server.broker.catalog.submit(change)
    assert list((await server.read("t", 0)).values()) == ["after"]
    assert list((await server.read("t", 1)).values()) == ["before", "after"]
    assert await server.broker.close()
