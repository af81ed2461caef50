"""Metadata while the disk fails, clients go away and servers die: what was acknowledged holds, nothing is half done."""

import asyncio
import errno
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.catalog import changes
from courser.errors import (
    CommandRejected,
    CourserError,
    ErrorCode,
    MetadataReadOnly,
    PartitionReadOnly,
    StorageFailure,
)
from courser.model.topic_options import TopicOptions
from courser.storage import partition_log
from tests.broker.fake_disks import FakeServer
from tests.fakes.files import FaultPlan


class CountingPlan(FaultPlan):
    """Nothing fails, and the syncs of directories are counted by name."""

    def __init__(self) -> None:
        super().__init__()
        self.directory_syncs: Counter[str] = Counter()

    def failure(self, operation: str, path: Path) -> int | None:
        if operation == "sync_directory":
            self.directory_syncs[path.name] += 1
        return super().failure(operation, path)


async def started() -> FakeServer:
    server = FakeServer()
    await server.open()
    await server.ask(c.CreateStream("s"))
    return server


# --- clients ---


async def test_a_command_is_finished_though_its_client_goes_away() -> None:
    server = await started()
    task = asyncio.ensure_future(server.add_topic("t"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The next command waits for its turn behind it.
    await server.add_topic("u")
    assert await server.send("t", "here") == 0
    assert await server.broker.close()


async def test_commands_that_come_together_are_carried_out_one_after_the_other() -> None:
    server = await started()
    await asyncio.gather(*(server.add_topic(f"t{number}", 2) for number in range(10)))
    results = await asyncio.gather(*(server.add_topic("same") for _ in range(5)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, CommandRejected)]
    assert [error.code for error in refused] == [ErrorCode.TOPIC_NAME_ALREADY_EXISTS] * 4
    assert len(server.broker.partitions.topics) == 11
    assert await server.broker.close()


async def test_no_command_is_taken_while_the_server_stops() -> None:
    server = await started()
    assert await server.broker.close()
    with pytest.raises(CommandRejected, match="stopping"):
        await server.broker.catalog.submit(changes.StreamCreation("late", bytes(16)))


# --- a disk that fails ---


async def test_a_full_disk_leaves_a_command_unfinished_until_there_is_room() -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("make_directory", errno.ENOSPC, onwards=True)
    with pytest.raises(StorageFailure):
        await server.add_topic("t", 2)
    # It is durable, so it is there; but it cannot be used, and nothing comes after it.
    assert "t" in {topic.name for topic in server.broker.catalog.state.streams[0].topics.values()}
    with pytest.raises(CommandRejected, match="still being created"):
        await server.send("t", "too early")
    with pytest.raises(StorageFailure):
        await server.ask(c.CreateStream("next"))
    assert "next" not in server.broker.catalog.state.stream_by_name
    server.disk.plan = FaultPlan()
    await server.ask(c.CreateStream("next"))
    assert await server.send("t", "now", 1) == 0
    assert await server.broker.close()


async def test_what_the_disk_has_no_room_for_is_not_even_begun() -> None:
    server = await started()
    await server.add_topic("t")
    server.disk.capacity = server.disk.used + 50_000
    for command in (c.CreateStream("u"), c.CreatePartitions("s", "t", 1), c.UpdateStream("s", "v")):
        with pytest.raises(StorageFailure) as refused:
            await server.ask(command)
        assert refused.value.code is ErrorCode.DISK_FULL
    # So it does not stand in the way of what makes room.
    assert server.broker.catalog.is_settled
    await server.ask(c.DeleteTopic("s", "t"))
    server.disk.capacity = None
    await server.add_topic("t")
    assert await server.broker.close()


async def test_of_many_partitions_the_names_are_synced_once_and_the_others_together() -> None:
    server = await started()
    server.disk.plan = plan = CountingPlan()
    await server.add_topic("t", 100)
    syncs = plan.directory_syncs
    # One for the names of the partitions; the others look at what is there already, for the topic and for them.
    assert syncs["partitions"] == 1
    assert syncs["topics"] <= 2
    assert sum(syncs.values()) < 100 + 20
    assert await server.broker.close()


async def test_new_partitions_are_not_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has just made them durable, so it knows what is in them."""
    server = await started()

    def refuse(*_: object) -> None:
        pytest.fail("a partition was recovered")

    with monkeypatch.context() as patch:
        patch.setattr(partition_log, "recover_partition", refuse)
        await server.add_topic("t", 3)
        await server.ask(c.CreatePartitions("s", "t", 2))
    assert await server.broker.close()


async def test_a_failed_sync_of_one_of_many_partitions_is_not_overlooked() -> None:
    server = await started()
    server.disk.plan = (
        FaultPlan()
        .fail("open", errno.ENOSPC, name="ledger.*", call=3, onwards=True)
        .fail("sync", errno.EIO, name="ledger.*", call=2)
    )
    with pytest.raises(StorageFailure):
        await server.add_topic("t", 100)
    server.disk.plan = FaultPlan()
    with pytest.raises(MetadataReadOnly, match="could not sync"):
        await server.ask(c.CreateStream("next"))
    assert not await server.broker.close()


async def test_an_unfinished_command_is_finished_by_the_next_start() -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("make_directory", errno.ENOSPC, onwards=True)
    with pytest.raises(StorageFailure):
        await server.add_topic("t", 2)
    # A clean stop would claim that everything came to its end, and nothing would be made again.
    assert not await server.broker.close()
    server.disk.plan = FaultPlan()
    server.disk.kill()
    await server.open()
    assert await server.send("t", "there", 1) == 0
    assert await server.broker.close()


async def test_a_stop_finishes_what_was_left_if_the_disk_lets_it() -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("make_directory", errno.ENOSPC, onwards=True)
    with pytest.raises(StorageFailure):
        await server.add_topic("t")
    server.disk.plan = FaultPlan()
    assert await server.broker.close()
    await server.open()
    assert await server.send("t", "there") == 0
    assert await server.broker.close()


async def test_after_a_failed_sync_of_a_directory_nothing_is_changed_until_a_restart() -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("sync_directory", errno.EIO, name="partitions")
    with pytest.raises(StorageFailure):
        await server.add_topic("t")
    with pytest.raises(MetadataReadOnly, match="could not sync"):
        await server.ask(c.CreateStream("next"))
    assert server.broker.catalog.failure is not None
    assert not await server.broker.close()
    server.disk.plan = FaultPlan()
    server.disk.kill()
    await server.open()
    assert await server.send("t", "there") == 0
    await server.ask(c.CreateStream("next"))
    assert await server.broker.close()


async def test_after_a_failed_sync_of_the_journal_the_stop_is_not_clean() -> None:
    server = await started()
    server.disk.plan = FaultPlan().fail("sync", errno.EIO, name="journal.wal")
    with pytest.raises(CourserError):
        await server.ask(c.CreateStream("next"))
    with pytest.raises(MetadataReadOnly):
        await server.ask(c.CreateStream("another"))
    assert not await server.broker.close()


async def test_a_full_journal_disk_refuses_the_command_and_nothing_else() -> None:
    server = await started()
    await server.add_topic("t")
    server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="journal.wal", onwards=True)
    with pytest.raises(CourserError) as refused:
        await server.ask(c.CreateStream("next"))
    assert refused.value.code is ErrorCode.DISK_FULL
    assert await server.send("t", "still works") == 0
    server.disk.plan = FaultPlan()
    await server.ask(c.CreateStream("next"))
    assert await server.broker.close()


async def test_a_partition_that_cannot_be_purged_takes_nothing_more() -> None:
    server = await started()
    await server.add_topic("t", 2)
    for number in range(2):
        await server.send("t", "before", number)
    server.disk.plan = FaultPlan().fail("unlink", errno.EIO, name="*.log")
    with pytest.raises(PartitionReadOnly, match="could not remove"):
        await server.ask(c.PurgeTopic("s", "t"))
    # The next start purges it with all that it holds then: nothing may be acknowledged until that is done.
    outcomes = await asyncio.gather(*(server.send("t", "after", number) for number in range(2)), return_exceptions=True)
    assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["PartitionReadOnly", "int"]
    assert not await server.broker.close()
    server.disk.plan = FaultPlan()
    server.disk.kill()
    await server.open()
    kept = [await server.read("t", number) for number in range(2)]
    assert sorted(kept, key=len) == [{}, {1: "after"}]
    assert await server.broker.close()


async def test_a_directory_that_cannot_be_removed_is_removed_by_the_next_start() -> None:
    server = await started()
    await server.add_topic("t")
    await server.send("t", "x")
    server.disk.plan = FaultPlan().fail("unlink", errno.EIO, onwards=True, name="*.log")
    await server.ask(c.DeleteTopic("s", "t"))
    await until_removed(server)
    assert list(server.broker.catalog.state.deleted) == ["streams/0/topics/0"]
    server.disk.plan = FaultPlan()
    assert await server.broker.close()
    await server.open()
    assert server.broker.catalog.state.deleted == {}
    assert not [path for path in server.disk.files() if path.is_relative_to("/data/streams/0/topics/0")]
    assert await server.broker.close()


async def until_removed(server: FakeServer) -> None:
    """Until nobody removes directories any more."""
    async with asyncio.timeout(30):
        while server.broker.catalog._remover is not None:  # noqa: ASYNC110 - work of a pool, without an event
            await asyncio.sleep(0)


async def test_snapshots_are_taken_before_the_journal_is_full() -> None:
    server = await started()
    for number in range(1100):
        await server.ask(c.UpdateStream("s" if number % 2 == 0 else "r", "r" if number % 2 == 0 else "s"))
    assert await server.broker.close()
    await server.open()
    assert list(server.broker.catalog.state.stream_by_name) == ["s"]
    assert await server.broker.close()


@pytest.mark.parametrize("operation", ["make_directory", "write_at", "sync", "rename", "open", "sync_directory"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
async def test_whatever_call_fails_what_was_acknowledged_is_there_after_a_restart(operation: str, error: int) -> None:
    for call in range(1, 40, 3):
        server = await started()
        await server.add_topic("before")
        plan = server.disk.plan = FaultPlan().fail(operation, error, call=call)
        acknowledged = await asyncio.gather(
            server.add_topic("t", 2), server.ask(c.CreatePartitions("s", "before", 1)), return_exceptions=True
        )
        is_over = plan.failure(operation, server.disk.files()[0]) is not None or call > 30
        server.disk.plan = FaultPlan()
        is_clean = await server.broker.close()
        server.disk.kill()
        await server.open()
        assert server.broker.catalog.failure is None
        topics = {topic.name: len(topic.partitions) for topic in server.broker.catalog.state.streams[0].topics.values()}
        if not isinstance(acknowledged[0], BaseException):
            assert topics["t"] == 2
        if not isinstance(acknowledged[1], BaseException):
            assert topics["before"] == 2
        for name, count in topics.items():
            for number in range(count):
                assert await server.send(name, "x", number) == 0
        assert await server.broker.close() or not is_clean
        if is_over:
            break


# --- a server that dies ---

SYNCED = TopicOptions(durability="persisted")


class Script:
    """Commands of a busy operator, and what was acknowledged of them."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self.done: list[str] = []

    async def run(self) -> None:
        server = self._server
        await self._step("stream", server.ask(c.CreateStream("s")))
        await self._step("topic", server.add_topic("t", 2, SYNCED))
        await self._step("sent", server.send("t", "first", 1))
        await self._step("other", server.add_topic("u", 1, SYNCED))
        await self._step("partitions", server.ask(c.CreatePartitions("s", "t", 2)))
        await self._step("sent to new", server.send("t", "new", 3))
        await self._step("purged", server.ask(c.PurgeTopic("s", "t")))
        await self._step("sent after purge", server.send("t", "second", 1))
        await self._step("deleted partition", server.ask(c.DeletePartitions("s", "t", 1)))
        await self._step("deleted other", server.ask(c.DeleteTopic("s", "u")))
        await self._step("renamed", server.ask(c.UpdateTopic("s", "t", "v", SYNCED, is_patch=True)))
        await until_removed(server)
        await self._step("closed", server.broker.close())

    async def survives(self) -> bool:
        """Run until the end, or until the server dies."""
        task = asyncio.ensure_future(self.run())
        await asyncio.wait((task,), timeout=30)
        assert task.done(), f"stuck after {self.done}"
        return not task.cancelled() and task.exception() is None

    async def _step(self, name: str, work: Awaitable[object]) -> None:
        await work
        self.done.append(name)

    async def check(self) -> None:
        """What was acknowledged is there; of the command under way all or nothing."""
        server, done = self._server, set(self.done)
        state = server.broker.catalog.state
        assert server.broker.catalog.failure is None
        if "stream" not in done and not state.streams:
            return
        topics = {topic.name: topic for topic in state.streams[0].topics.values()}
        name = "v" if "v" in topics else "t"
        assert "renamed" not in done or name == "v"
        if name not in topics:
            assert "topic" not in done
            return
        assert ("u" in topics) or "other" not in done or "deleted other" in done or self.is_next("deleted other")
        assert "deleted other" not in done or "u" not in topics
        count = len(topics[name].partitions)
        assert count in ((4, 3) if "partitions" in done else (2, 4))
        assert "deleted partition" not in done or count == 3
        messages = await server.read(name, 1)
        if "sent after purge" in done:
            assert messages == {1: "second"}
        elif "purged" in done:
            assert messages in ({}, {1: "second"})
        elif "sent" in done:
            assert messages == {0: "first"} or (self.is_next("purged") and messages == {})
        for number in range(count):
            # Numbering may have gone on above offsets that the crash may have given out.
            assert await server.send(name, "more", number) >= len(await server.read(name, number)) - 1

    def is_next(self, name: str) -> bool:
        """Whether this step was under way."""
        order = ["partitions", "sent to new", "purged", "sent after purge", "deleted partition", "deleted other"]
        return bool(self.done) and name in order and self.done[-1] == ([*order, ""][order.index(name) - 1])


@pytest.mark.parametrize("with_power_cut", [False, True])
@pytest.mark.parametrize("part", range(8))
async def test_a_server_that_dies_anywhere_starts_again_with_all_that_was_acknowledged(
    part: int, *, with_power_cut: bool
) -> None:
    for crash_at in range(5 + part, 400, 24):
        server = FakeServer(seed=crash_at)
        await server.open()
        script = Script(server)
        server.disk.plan = FaultPlan().crash_at(crash_at)
        if await script.survives():
            break
        await server.restart(with_power_cut=with_power_cut)
        await script.check()
        await server.broker.close()
