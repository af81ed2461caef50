"""Consumer groups as clients see them."""

import asyncio
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.messages.consuming import group_key
from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.catalog import changes
from courser.errors import ErrorCode
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from tests.handlers.scenes import Scene, opened

GROUP = ("s", "t", "g")


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    """Stream s with topic t of three partitions, and a group g."""
    await scene.add_topic("s", "t", 3)
    await scene.ask(scene.root, c.CreateConsumerGroup(*GROUP))
    return scene


async def details(scene: Scene, group: str = "g") -> r.GroupDetails:
    found = await scene.ask(scene.root, c.GetConsumerGroup("s", "t", group))
    assert isinstance(found, r.GroupDetails)
    return found


async def test_a_new_group_has_the_partitions_of_its_topic_and_no_members(scene: Scene) -> None:
    created = await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "second"))
    assert created == r.GroupDetails(r.GroupInfo(1, 3, 0, "second"), [])
    assert await details(scene, "second") == created
    assert await scene.ask(scene.root, c.GetConsumerGroup(0, 0, 1)) == created


async def test_groups_are_listed_by_id(scene: Scene) -> None:
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "a"))
    await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "a"))
    listed = await scene.ask(scene.root, c.GetConsumerGroups("s", "t"))
    assert listed == r.GroupList([r.GroupInfo(0, 3, 0, "g"), r.GroupInfo(1, 3, 1, "a")])


async def test_names_and_explicit_ids_are_used_once(scene: Scene) -> None:
    assert await scene.refusal(scene.root, c.CreateConsumerGroup(*GROUP)) is ErrorCode.GROUP_NAME_ALREADY_EXISTS
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "G", 5))
    refusal = await scene.refusal(scene.root, c.CreateConsumerGroup("s", "t", "x", 5))
    assert refusal is ErrorCode.GROUP_ID_ALREADY_EXISTS


async def test_members_join_sync_and_leave(scene: Scene) -> None:
    first, second = scene.connect(0), scene.connect(0)
    for session in (first, second):
        assert await scene.ask(session, c.JoinConsumerGroup(*GROUP)) is None
    assert await scene.ask(first, c.SyncConsumerGroup(*GROUP)) == r.Assignment(2, (0, 2))
    assert (await details(scene)).members == [r.GroupMember(0, (0, 2)), r.GroupMember(1, (1,))]
    await scene.ask(first, c.LeaveConsumerGroup(*GROUP))
    assert await scene.ask(second, c.SyncConsumerGroup(*GROUP)) == r.Assignment(3, (0, 1, 2))
    for command in (c.SyncConsumerGroup(*GROUP), c.LeaveConsumerGroup(*GROUP)):
        assert await scene.refusal(first, command) is ErrorCode.GROUP_MEMBER_NOT_FOUND


async def test_a_connection_that_closes_leaves(scene: Scene) -> None:
    first, second = scene.connect(0), scene.connect(0)
    for session in (first, second):
        await scene.ask(session, c.JoinConsumerGroup(*GROUP))
    scene.broker.sessions.close(first)
    assert (await details(scene)).members == [r.GroupMember(1, (0, 1, 2))]


async def test_a_logout_leaves(scene: Scene) -> None:
    session = scene.connect(0)
    await scene.ask(session, c.JoinConsumerGroup(*GROUP))
    await scene.ask(session, c.LogoutUser())
    assert (await details(scene)).members == []
    assert await scene.refusal(session, c.GetMe()) is ErrorCode.UNAUTHENTICATED


async def test_new_and_removed_partitions_are_dealt_at_once(scene: Scene) -> None:
    await scene.ask(scene.root, c.JoinConsumerGroup(*GROUP))
    await scene.broker.catalog.submit(changes.PartitionCreation(0, 0, 2))
    assert await scene.ask(scene.root, c.SyncConsumerGroup(*GROUP)) == r.Assignment(2, (0, 1, 2, 3, 4))
    await scene.broker.catalog.submit(changes.PartitionDeletion(0, 0, 4))
    assert await scene.ask(scene.root, c.SyncConsumerGroup(*GROUP)) == r.Assignment(3, (0,))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (("missing", "t", "g"), ErrorCode.STREAM_NOT_FOUND),
        (("s", "missing", "g"), ErrorCode.TOPIC_NOT_FOUND),
        (("s", "t", "missing"), ErrorCode.GROUP_NOT_FOUND),
        (("s", "t", 99), ErrorCode.GROUP_NOT_FOUND),
    ],
)
async def test_what_is_missing_is_named_before_permissions_are_asked(
    scene: Scene, path: tuple[str, str, str], code: ErrorCode
) -> None:
    await scene.add_user("alice")
    kinds = (
        c.GetConsumerGroup,
        c.DeleteConsumerGroup,
        c.JoinConsumerGroup,
        c.LeaveConsumerGroup,
        c.SyncConsumerGroup,
    )
    for kind in kinds:
        assert await scene.refusal(scene.connect(1), kind(*path)) is code


async def test_a_deleted_group_takes_members_and_offsets_along(scene: Scene) -> None:
    session = scene.connect(0)
    await scene.ask(session, c.JoinConsumerGroup(*GROUP))
    topic = scene.broker.partitions.topics[0, 0]
    for partition in topic.partitions[:2]:
        await partition.append(build_batch([NewMessage(b"hello")]))
        await partition.store_offset(group_key(0), 0)
    await scene.ask(scene.root, c.DeleteConsumerGroup(*GROUP))
    assert session.groups == set()
    assert [partition.log.offsets.get(group_key(0)) for partition in topic.partitions] == [None] * 3
    assert await scene.refusal(session, c.SyncConsumerGroup(*GROUP)) is ErrorCode.GROUP_NOT_FOUND
    assert await scene.refusal(session, c.DeleteConsumerGroup(*GROUP)) is ErrorCode.GROUP_NOT_FOUND
    created = await scene.ask(scene.root, c.CreateConsumerGroup(*GROUP))
    assert isinstance(created, r.GroupDetails)
    assert created.group.group_id == 1, "an offset that came back after a power cut would not be this group's"
    await scene.ask(session, c.JoinConsumerGroup(*GROUP))
    assert await scene.ask(session, c.SyncConsumerGroup(*GROUP)) == r.Assignment(1, (0, 1, 2))


async def test_a_deleted_topic_takes_its_members_along(scene: Scene) -> None:
    session = scene.connect(0)
    await scene.ask(session, c.JoinConsumerGroup(*GROUP))
    await scene.broker.catalog.submit(changes.TopicDeletion(0, 0))
    assert session.groups == set()


async def test_groups_outlive_the_server_and_members_do_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await scene.add_topic("s", "t", 3)
        await scene.ask(scene.root, c.CreateConsumerGroup(*GROUP))
        await scene.ask(scene.root, c.JoinConsumerGroup(*GROUP))
    async with opened(tmp_path) as scene:
        assert await details(scene) == r.GroupDetails(r.GroupInfo(0, 3, 0, "g"), [])


# --- limits ---


async def test_a_topic_has_so_many_groups_and_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=BrokerSettings(group_count_max=3)) as scene:
        for topic in ("t", "u"):
            await scene.add_topic("s" if topic == "t" else "s2", topic, 1)
        for number in range(3):
            await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", f"g{number}"))
        assert await scene.refusal(scene.root, c.CreateConsumerGroup("s", "t", "g3")) is ErrorCode.TOO_MANY_GROUPS
        await scene.ask(scene.root, c.CreateConsumerGroup("s2", "u", "g3"))
        await scene.ask(scene.root, c.DeleteConsumerGroup("s", "t", "g0"))
        await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g3"))


async def test_groups_that_are_asked_for_at_once_are_counted_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=BrokerSettings(group_count_max=3)) as scene:
        await scene.add_topic("s", "t", 1)
        asked = [scene.ask(scene.root, c.CreateConsumerGroup("s", "t", f"g{number}")) for number in range(10)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(result, r.GroupDetails) for result in results) == 3


async def test_a_lower_limit_keeps_the_groups_that_there_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await scene.add_topic("s", "t", 1)
        for number in range(5):
            await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", f"g{number}"))
    async with opened(tmp_path, settings=BrokerSettings(group_count_max=3)) as scene:
        listed = await scene.ask(scene.root, c.GetConsumerGroups("s", "t"))
        assert isinstance(listed, r.GroupList)
        assert len(listed.groups) == 5
        assert await scene.refusal(scene.root, c.CreateConsumerGroup("s", "t", "g5")) is ErrorCode.TOO_MANY_GROUPS


async def test_all_topics_together_have_so_many_groups(tmp_path: Path) -> None:
    limits = BrokerLimits(group_count_of_server_max=2)
    async with opened(tmp_path, settings=BrokerSettings(limits=limits)) as scene:
        for topic in ("t", "u"):
            await scene.add_topic("s", topic)
            await scene.ask(scene.root, c.CreateConsumerGroup("s", topic, "group"))
        assert await scene.refusal(scene.root, c.CreateConsumerGroup("s", "t", "third")) is ErrorCode.TOO_MANY_GROUPS


async def test_streams_topics_and_partitions_are_bounded(tmp_path: Path) -> None:
    limits = BrokerLimits(stream_count_max=1, topic_count_of_stream_max=1, partition_count_of_topic_max=5)
    async with opened(tmp_path, settings=BrokerSettings(limits=limits)) as scene:
        await scene.add_topic("s", "t", 3)
        assert await scene.refusal(scene.root, c.CreateStream("s2")) is ErrorCode.TOO_MANY_STREAMS
        topic = c.CreateTopic("s", "t2", 1, TopicOptions())
        assert await scene.refusal(scene.root, topic) is ErrorCode.TOO_MANY_TOPICS
        assert await scene.refusal(scene.root, c.CreatePartitions("s", "t", 3)) is ErrorCode.TOO_MANY_PARTITIONS
        await scene.ask(scene.root, c.CreatePartitions("s", "t", 2))
