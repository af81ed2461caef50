"""Partition directories in the wrong place: left as they are, not served, and whole again when they are back."""

import asyncio
import shutil
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.settings import BrokerSettings
from courser.errors import ErrorCode, PartitionOffline, PartitionReadOnly, StartRefused
from courser.inspect.verify import Verification
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.storage.local_files import LocalFileSystem
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from tests.handlers.messaging import ME
from tests.handlers.scenes import Scene, opened

Place = tuple[str, str, int]
"""Stream, topic and partition."""
HOME: Place = ("s", "t", 0)
ELSEWHERE: dict[str, Place] = {
    "in one topic": ("s", "t", 1),
    "between topics": ("s", "other", 0),
    "between streams": ("far", "t", 0),
}


async def make(scene: Scene) -> None:
    """Two streams with topics, and messages in every partition that say where they are."""
    for stream, topics in (("s", ("t", "other")), ("far", ("t",))):
        await scene.ask(scene.root, c.CreateStream(stream))
        for topic in topics:
            await scene.ask(scene.root, c.CreateTopic(stream, topic, 2, TopicOptions()))
            for partition in (0, 1):
                await fill(scene, (stream, topic, partition))


async def fill(scene: Scene, place: Place, *, count: int = 3) -> None:
    for number in range(count):
        await send(scene, place, f"{place} {number}")


async def send(scene: Scene, place: Place, text: str) -> int:
    stream, topic, partition = place
    command = c.SendMessages(stream, topic, ToPartition(partition), [build_batch([NewMessage(text.encode())])])
    reply = await scene.ask(scene.root, command)
    assert isinstance(reply, r.Sent)
    return reply.base_offset


def poll(place: Place, kind: PollingKind = PollingKind.OFFSET, value: int = 0) -> c.PollMessages:
    stream, topic, partition = place
    return c.PollMessages(ME, stream, topic, partition, kind, value, 100, False)


async def count_of(scene: Scene, place: Place) -> int:
    reply = await scene.ask(scene.root, poll(place))
    assert isinstance(reply, r.Polled)
    scene.broker.buffers.give_back(scene.root)
    return reply.message_count


def directory_of(scene: Scene, place: Place) -> Path:
    return log_of(scene, place).directory


def log_of(scene: Scene, place: Place) -> PartitionLog:
    stream = scene.broker.catalog.state.streams[scene.broker.catalog.state.stream_by_name[place[0]]]
    topic = next(topic for topic in stream.topics.values() if topic.name == place[1])
    return scene.broker.partitions.topics[stream.stream_id, topic.topic_id].partitions[place[2]].log


def swap(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def contents(*directories: Path) -> dict[Path, bytes]:
    paths = [path for directory in directories for path in directory.rglob("*")]
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


def deleted_in(scene: Scene) -> list[str]:
    return list(scene.broker.catalog.state.deleted)


async def assert_refused(scene: Scene, place: Place) -> PartitionOffline:
    """Nothing is read, written or stored."""
    stream, topic, partition = place
    for request in (
        poll(place),
        poll(place, PollingKind.NEXT),
        poll(place, PollingKind.FIRST),
        poll(place, PollingKind.LAST),
        poll(place, PollingKind.TIMESTAMP, 1),
        c.StoreConsumerOffset(ME, stream, topic, partition, 0),
        c.GetConsumerOffset(ME, stream, topic, partition),
        c.WaitForMessages(poll(place), 60_000_000, 1_000_000),
        c.GetPartitionBounds(stream, topic),
    ):
        with pytest.raises(PartitionOffline):
            await scene.ask(scene.root, request)
    with pytest.raises(PartitionOffline) as refusal:
        await send(scene, place, "no")
    assert refusal.value.code is ErrorCode.PARTITION_OFFLINE
    return refusal.value


@pytest.mark.parametrize("other", ELSEWHERE.values(), ids=ELSEWHERE.keys())
async def test_swapped_directories_are_left_alone_and_swapping_them_back_restores_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: Place
) -> None:
    async with opened(tmp_path) as scene:
        await make(scene)
        places = {place: log_of(scene, place) for place in (HOME, other)}
    (one, own), (two, foreign) = ((log.directory, log.identity) for log in places.values())
    swap(one, two)
    before = contents(one, two)
    for _ in range(2):
        async with opened(tmp_path) as scene:
            refusal = await assert_refused(scene, HOME)
            await assert_refused(scene, other)
            for part in (str(own), str(foreign), str(two), "swap them back"):
                assert part in str(refusal)
                assert part in caplog.text
            assert f"recovery case=Y path={one}" in caplog.text
            assert "partition is offline stream=0 topic=0 partition=0" in caplog.text
            # All others are served.
            untouched = [("s", "t", 0), ("s", "t", 1), ("s", "other", 0), ("s", "other", 1), ("far", "t", 0)]
            for place in untouched:
                if place not in (HOME, other):
                    assert await count_of(scene, place) == 3
            # Whoever waits for several partitions is sent to the one that refuses, and hears why.
            waiting = c.WaitForArrivals(ME, "s", "t", ((0, 0),), 0, 60_000_000)
            arrivals = await scene.ask(scene.root, waiting)
            assert isinstance(arrivals, r.Arrivals)
            assert arrivals.partition_ids == (0,)
        assert contents(one, two) == before
    found = [finding for finding in Verification(LocalFileSystem(), tmp_path).findings() if finding.check == "tree"]
    assert {finding.path for finding in found} == {one, two}
    for finding in found:
        home = two if finding.path == one else one
        assert all(part in finding.reason for part in (str(own), str(foreign), f"which belongs in {home}"))
    swap(one, two)
    first = 0
    async with opened(tmp_path) as scene:
        assert scene.broker.data.stop is StopKind.CLEAN
        for place in (HOME, other):
            assert await count_of(scene, place) == 3
            # Not opened for two sessions: nobody knows how it was left, so numbering goes on above what was reserved.
            assert log_of(scene, place).next_offset >= 1000
            first = await send(scene, place, "more")
    async with opened(tmp_path) as scene:
        assert await send(scene, other, "no other gap") == first + 1


async def test_swapped_directories_of_topics_lose_no_message(tmp_path: Path) -> None:
    """Their partitions have other names: they count as gone, and are back when the directories are."""
    far = ("far", "t", 0)
    async with opened(tmp_path) as scene:
        await make(scene)
        one, two = (directory_of(scene, place).parents[1] for place in (HOME, far))
    partitions = contents(one / "partitions", two / "partitions")
    swap(one, two)
    async with opened(tmp_path) as scene:
        for place in (HOME, far):
            with pytest.raises(PartitionReadOnly):
                await send(scene, place, "no")
    swap(one, two)
    now = contents(one / "partitions", two / "partitions")
    assert {path: now[path] for path in partitions} == partitions
    async with opened(tmp_path) as scene:
        for place in (HOME, far):
            assert await count_of(scene, place) == 3
            assert await send(scene, place, "more") >= 1000


async def test_swapped_directories_of_streams_refuse_the_start_with_the_remedy(tmp_path: Path) -> None:
    far = ("far", "t", 0)
    async with opened(tmp_path) as scene:
        await make(scene)
        one, two = (directory_of(scene, place).parents[3] for place in (HOME, far))
    swap(one, two)
    before = contents(one, two)
    with pytest.raises(StartRefused, match=r"directory of another stream.*swap them back"):
        async with opened(tmp_path):
            pass
    assert contents(one, two) == before
    swap(one, two)
    async with opened(tmp_path) as scene:
        for place in (HOME, far):
            assert await count_of(scene, place) == 3


async def test_a_copy_over_another_partition_takes_only_that_one_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as scene:
        await make(scene)
        one, two = directory_of(scene, HOME), directory_of(scene, ("far", "t", 0))
    backup = tmp_path.parent / f"{tmp_path.name}-backup"
    shutil.copytree(one, backup)
    shutil.rmtree(one)
    shutil.copytree(two, one)
    before = contents(one)
    async with opened(tmp_path) as scene:
        await assert_refused(scene, HOME)
        assert await count_of(scene, ("far", "t", 0)) == 3
        assert f"whose directory is {two}" in caplog.text
    assert contents(one) == before
    shutil.rmtree(one)
    shutil.copytree(backup, one)
    async with opened(tmp_path) as scene:
        assert await count_of(scene, HOME) == 3
        assert await send(scene, HOME, "more") >= 3


async def test_a_directory_of_another_server_is_named_as_such(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directories: list[Path] = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        async with opened(tmp_path / name) as scene:
            await make(scene)
            directories.append(directory_of(scene, HOME))
    here, directory = directories
    shutil.rmtree(here)
    shutil.copytree(directory, here)
    async with opened(tmp_path / "here") as scene:
        await assert_refused(scene, HOME)
    assert "which is not a partition of this server" in caplog.text
    assert contents(here).keys() == {here / path.relative_to(directory) for path in contents(directory)}


async def test_a_directory_that_was_gone_for_a_session_comes_back_above_what_was_reserved(tmp_path: Path) -> None:
    """It may be left by a crash that a clean stop of a session without it does not tell of."""
    async with opened(tmp_path) as scene:
        await make(scene)
        directory = directory_of(scene, HOME)
    away = tmp_path.parent / f"{tmp_path.name}-away"
    directory.rename(away)
    async with opened(tmp_path) as scene:
        with pytest.raises(PartitionReadOnly):
            await send(scene, HOME, "no")
    away.rename(directory)
    async with opened(tmp_path) as scene:
        assert scene.broker.data.stop is StopKind.CLEAN
        assert await count_of(scene, HOME) == 3
        assert await send(scene, HOME, "more") >= 1000


@pytest.mark.parametrize("delete", [c.DeleteTopic("s", "t"), c.DeleteStream("s"), c.DeletePartitions("s", "t", 2)])
async def test_deleting_a_topic_does_not_delete_the_messages_of_another_that_lie_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, delete: c.Command
) -> None:
    far = ("far", "t", 0)
    async with opened(tmp_path) as scene:
        await make(scene)
        one, two = directory_of(scene, HOME), directory_of(scene, far)
    swap(one, two)
    before = contents(one)

    async with opened(tmp_path) as scene:
        await scene.ask(scene.root, delete)
        async with asyncio.timeout(30):
            while "has the files of another partition" not in caplog.text or len(deleted_in(scene)) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
    for _ in range(2):
        async with opened(tmp_path):
            assert contents(one) == before
    shutil.rmtree(two)
    one.rename(two)
    async with opened(tmp_path) as scene:
        assert deleted_in(scene) == []
        assert await count_of(scene, far) == 3
    assert not one.exists()


@pytest.mark.parametrize("is_descriptor_there", [True, False], ids=["with descriptors", "without descriptors"])
async def test_a_rebuild_of_the_metadata_leaves_swapped_directories_alone(
    tmp_path: Path, is_descriptor_there: bool
) -> None:
    rebuilding = BrokerSettings(recreate_missing_state=True)
    far = ("far", "t", 0)
    async with opened(tmp_path) as scene:
        await make(scene)
        one, two = directory_of(scene, HOME), directory_of(scene, far)
        topics = [one.parent.parent, two.parent.parent]
    swap(one, two)
    before = contents(one, two)
    shutil.rmtree(tmp_path / "metadata")
    if not is_descriptor_there:
        for path in topics:
            (path / "descriptor").unlink()
    async with opened(tmp_path, rebuilding) as scene:
        topic = "t" if is_descriptor_there else "recovered-0"
        for stream in ("s", "far"):
            await assert_refused(scene, (stream, topic, 0))
            assert await count_of(scene, (stream, topic, 1)) == 3
    assert contents(one, two) == before
    swap(one, two)
    async with opened(tmp_path) as scene:
        for stream in ("s", "far"):
            assert await count_of(scene, (stream, topic, 0)) == 3
