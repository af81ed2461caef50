"""A broker from its first start to its next one, and starts that find something amiss."""

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker, RootUser
from courser.broker.settings import BrokerSettings
from courser.catalog import changes
from courser.errors import PartitionReadOnly, StartRefused, StorageFailure
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind
from courser.storage.data_directory import DataDirectory
from courser.storage.recovery_cases import StopKind
from tests.broker.fake_disks import FakeServer
from tests.fakes.files import FaultPlan
from tests.handlers.messaging import add_topic, log_of, poll_command, send, texts
from tests.handlers.scenes import PASSWORD_HASH, opened

GROUP = Consumer(ConsumerKind.GROUP, "g")


async def test_the_first_start_makes_the_root_user_and_no_later_one_does(tmp_path: Path) -> None:
    asked: list[str] = []

    def make_root() -> RootUser:
        asked.append("root")
        return RootUser("boss", PASSWORD_HASH)

    for _ in range(2):
        broker = await Broker.open(DataDirectory.open(tmp_path), BrokerSettings(), make_root=make_root)
        assert [(user.user_id, user.name) for user in broker.catalog.state.users.values()] == [(0, "boss")]
        assert await broker.close()
    assert asked == ["root"]


async def test_what_was_sent_and_stored_is_there_after_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=2)
        await send(scene, "one", "two", to=1)
        await texts(scene, poll_command(partition=1, count=1, commit=True))
    async with opened(tmp_path) as scene:
        assert scene.broker.data.stop is StopKind.CLEAN
        assert await texts(scene, poll_command(partition=1)) == ["two"]
        assert (await send(scene, "three", to=1)).base_offset == 2


async def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(StartRefused, match="process"):
            DataDirectory.open(tmp_path)
    async with opened(tmp_path):
        pass


async def test_a_partition_whose_directory_is_gone_takes_nothing_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=2)
        await send(scene, "kept", to=0)
        await send(scene, "lost", to=1)
        directory = log_of(scene, 1).directory
    shutil.rmtree(directory)
    async with opened(tmp_path) as scene:
        assert f"partition lost stream=0 topic=0 partition=1 path={directory}" in caplog.text
        assert await texts(scene, poll_command(partition=0)) == ["kept"]
        assert await texts(scene, poll_command(partition=1)) == []
        with pytest.raises(PartitionReadOnly, match="its directory and its messages are missing"):
            await send(scene, "x", to=1)
        # It can be deleted, and made anew.
        await scene.ask(scene.root, c.DeletePartitions("s", "t", 1))
        await scene.ask(scene.root, c.CreatePartitions("s", "t", 1))
        assert (await send(scene, "new", to=1)).base_offset == 0


async def test_unknown_directories_are_left_alone_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await scene.ask(scene.root, c.CreateStream("gone"))
        await scene.ask(scene.root, c.DeleteStream("gone"))
        async with asyncio.timeout(30):
            while scene.broker.catalog.state.deleted:  # noqa: ASYNC110 - work of a pool, without an event
                await asyncio.sleep(0)
    stranger = tmp_path / "streams" / "1" / "topics"
    stranger.mkdir(parents=True, exist_ok=True)
    async with opened(tmp_path):
        assert stranger.exists()
    assert "a directory that is not in the metadata" in caplog.text


@pytest.mark.parametrize("place", ["streams/0", "streams/0/topics/0"])
@pytest.mark.parametrize("fault", ["damaged", "missing"])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_bad_descriptor_is_reported_as_what_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str, fault: str, is_killed: bool
) -> None:
    async with opened(tmp_path / "first") as scene:
        await add_topic(scene)
        # As a kill would leave it.
        shutil.copytree(tmp_path / "first", tmp_path / "killed")
    data = tmp_path / ("killed" if is_killed else "first")
    path = data / place / "descriptor"
    good = path.read_bytes()
    if fault == "damaged":
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    else:
        path.unlink()
    caplog.clear()
    async with opened(data) as scene:
        assert (scene.broker.data.stop is StopKind.CLEAN) is not is_killed
    (record,) = [record for record in caplog.records if str(path) in record.getMessage()]
    assert record.levelname == "WARNING"
    assert f"it was {fault}" in record.getMessage()
    assert "whose creation was interrupted" not in caplog.text
    assert path.read_bytes() == good


async def test_damage_that_a_start_finds_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await send(scene, "one")
        path = log_of(scene).directory / f"{0:020d}.log"
    path.unlink()
    async with opened(tmp_path) as scene:
        assert "recovery case=" in caplog.text
        assert await texts(scene, poll_command()) == []
        assert (await send(scene, "two")).base_offset == 1


async def test_metadata_that_is_gone_is_rebuilt_only_if_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await send(scene, "one")
    shutil.rmtree(tmp_path / "metadata")
    with pytest.raises(StartRefused, match="recreate_missing_state"):
        async with opened(tmp_path):
            pass
    async with opened(tmp_path, BrokerSettings(recreate_missing_state=True)) as scene:
        assert await texts(scene, poll_command(PollingKind.FIRST)) == ["one"]
    assert "metadata rebuilt" in caplog.text
    assert "metadata lost what=all users" in caplog.text


async def test_offsets_of_a_group_whose_deletion_was_interrupted_go_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await send(scene, "one")
        for name in ("g", "h"):
            group = Consumer(ConsumerKind.GROUP, name)
            await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", name))
            await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", name))
            await texts(scene, poll_command(consumer=group, commit=True))
        await texts(scene, poll_command(commit=True))
        # The server dies between the two deletions.
        await scene.broker.catalog.submit(changes.GroupDeletion(0, 0, 0))
        assert len(log_of(scene).offsets) == 3
    async with opened(tmp_path) as scene:
        assert len(log_of(scene).offsets) == 2


async def test_a_start_that_fails_can_be_repeated() -> None:
    server = FakeServer()
    await server.open()
    await server.ask(c.CreateStream("s"))
    await server.add_topic("t", 40)
    await server.send("t", "kept", 39)
    assert await server.broker.close()
    for operation in ("open", "list_directory", "rename"):
        for call in (1, 5, 20, 60):
            server.disk.plan = FaultPlan().fail(operation, errno.EIO, call=call, onwards=True)
            try:
                await server.open()
            except (StorageFailure, StartRefused, OSError):
                server.disk.kill()
            else:
                server.disk.plan = FaultPlan()
                assert await server.broker.close()
    server.disk.plan = FaultPlan()
    await server.open()
    assert await server.read("t", 39) == {0: "kept"}
    assert await server.broker.close()


async def test_a_clean_stop_that_cannot_be_written_down_is_none() -> None:
    server = FakeServer()
    await server.open()
    await server.ask(c.CreateStream("s"))
    server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="session*", onwards=True)
    assert not await server.broker.close()
    server.disk.plan = FaultPlan()
    server.disk.kill()
    await server.open()
    assert list(server.broker.catalog.state.stream_by_name) == ["s"]
    assert await server.broker.close()


async def test_a_thousand_partitions_are_made_and_summed_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=1000)
        await send(scene, "x", to=999)
        reply = await scene.ask(scene.root, c.GetStream("s"))
        assert isinstance(reply, r.StreamDetails)
        assert (reply.stream.message_count, reply.topics[0].partition_count) == (1, 1000)
