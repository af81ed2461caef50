"""Stored offsets: read, moved forth and back, deleted, by single consumers and by groups."""

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.messages import stored_offsets
from courser.broker.messages.consuming import consumer_key, group_key
from courser.errors import ConsumerOffsetNotFound, ErrorCode, InvalidOffset
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind
from courser.storage.offset_table import ConsumerKey
from tests.handlers.messaging import ME, add_topic, fill_segments, log_of, partition_of, poll_command, send, texts
from tests.handlers.scenes import Scene

GROUP = Consumer(ConsumerKind.GROUP, "g")


def store(offset: int, *, partition: int | None = 0, consumer: Consumer = ME) -> c.StoreConsumerOffset:
    return c.StoreConsumerOffset(consumer, "s", "t", partition, offset)


def get(*, partition: int | None = 0, consumer: Consumer = ME) -> c.GetConsumerOffset:
    return c.GetConsumerOffset(consumer, "s", "t", partition)


def delete(*, partition: int | None = 0, consumer: Consumer = ME) -> c.DeleteConsumerOffset:
    return c.DeleteConsumerOffset(consumer, "s", "t", partition)


async def test_what_was_stored_is_told(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a", "b", "c", to=1)
    await scene.ask(scene.root, store(1, partition=1))
    assert await scene.ask(scene.root, get(partition=1)) == r.StoredOffset(1, 2, 1)
    assert await texts(scene, poll_command(partition=1)) == ["c"]


async def test_nothing_stored_is_nothing_found(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a")
    for command in (get(), delete()):
        with pytest.raises(ConsumerOffsetNotFound):
            await scene.ask(scene.root, command)


async def test_an_offset_is_stored_up_to_the_newest_message(scene: Scene) -> None:
    await add_topic(scene)
    with pytest.raises(InvalidOffset):
        await scene.ask(scene.root, store(0))
    await send(scene, "a", "b")
    await scene.ask(scene.root, store(1))
    with pytest.raises(InvalidOffset):
        await scene.ask(scene.root, store(2))


async def test_an_explicit_store_may_move_back_and_below_the_oldest_message(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abc")
    await scene.ask(scene.root, store(2))
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 2))
    await scene.ask(scene.root, store(0))
    assert await texts(scene, poll_command()) == ["c"]


async def test_a_move_back_is_synced_before_the_answer(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a", "b")
    await scene.ask(scene.root, store(1))
    assert log_of(scene).offsets.has_unsynced
    await scene.ask(scene.root, store(0))
    assert not log_of(scene).offsets.has_unsynced


async def test_persisted_offsets_are_synced_before_the_answer(scene: Scene) -> None:
    await add_topic(scene, consumer_offset_durability="persisted")
    await send(scene, "a", "b")
    await scene.ask(scene.root, store(0))
    assert not log_of(scene).offsets.has_unsynced
    await texts(scene, poll_command(commit=True))
    assert not log_of(scene).offsets.has_unsynced
    assert log_of(scene).offsets.get(consumer_key(1)) == 1


async def test_a_deleted_offset_begins_anew(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a", "b")
    await texts(scene, poll_command(commit=True))
    await scene.ask(scene.root, delete())
    assert await texts(scene, poll_command()) == ["a", "b"]


async def test_what_is_not_there_has_its_own_number(scene: Scene) -> None:
    await add_topic(scene)
    for command in (get(partition=1), store(0, partition=1), delete(partition=1)):
        assert await scene.refusal(scene.root, command) is ErrorCode.PARTITION_NOT_FOUND
    for command in (get(consumer=GROUP), store(0, consumer=GROUP), delete(consumer=GROUP)):
        assert await scene.refusal(scene.root, command) is ErrorCode.GROUP_NOT_FOUND


async def test_only_members_change_what_their_group_stored(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a", to=0)
    await send(scene, "b", to=1)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    for command in (store(0, consumer=GROUP), delete(consumer=GROUP)):
        assert await scene.refusal(scene.root, command) is ErrorCode.GROUP_MEMBER_NOT_FOUND
    other = scene.connect(0)
    for session in (scene.root, other):
        await scene.ask(session, c.JoinConsumerGroup("s", "t", "g"))
    assert await scene.refusal(scene.root, store(0, partition=1, consumer=GROUP)) is ErrorCode.PARTITION_NOT_OWNED
    await scene.ask(other, store(0, partition=1, consumer=GROUP))
    # Anybody who may poll may read it, member or not; without a partition it is the first one.
    stranger = scene.connect(0)
    assert await scene.ask(stranger, get(partition=1, consumer=GROUP)) == r.StoredOffset(1, 0, 0)
    with pytest.raises(ConsumerOffsetNotFound):
        await scene.ask(stranger, get(partition=None, consumer=GROUP))


async def test_a_commit_without_a_partition_is_about_the_one_of_the_next_poll(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    for number in range(3):
        await send(scene, "x", to=number)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "g"))
    poll_group = poll_command(PollingKind.NEXT, partition=None, consumer=GROUP)
    await texts(scene, poll_group)
    await texts(scene, poll_group)
    await scene.ask(scene.root, store(0, partition=None, consumer=GROUP))
    assert await scene.ask(scene.root, get(partition=2, consumer=GROUP)) == r.StoredOffset(2, 0, 0)


async def test_offsets_of_a_deleted_group_are_gone_also_for_one_of_the_same_name(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a")
    for _ in range(2):
        await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
        await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "g"))
        assert await texts(scene, poll_command(consumer=GROUP, commit=True)) == ["a"]
        await scene.ask(scene.root, c.DeleteConsumerGroup("s", "t", "g"))
        assert len(log_of(scene).offsets) == 0


async def test_a_start_makes_the_keys_of_known_groups_once_for_each_topic(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_topic(scene, partition_count=4)
    for group_id in range(5):
        await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", f"g{group_id}"))
    for partition_id in range(4):
        await send(scene, "a", to=partition_id)
        # The last one is of a group that was deleted just before a crash.
        for group_id in range(6):
            await partition_of(scene, partition_id).store_offset(group_key(group_id), 0)
    made: list[int] = []

    def make(group_id: int) -> ConsumerKey:
        made.append(group_id)
        return group_key(group_id)

    monkeypatch.setattr(stored_offsets, "group_key", make)
    await scene.broker.offsets.forget_unknown_groups(scene.broker.catalog.state)
    assert sorted(made) == list(range(5))
    assert [len(log_of(scene, partition_id).offsets) for partition_id in range(4)] == [5] * 4


# --- resets -------------------------------------------------------------------------------------------


def reset(*offsets: tuple[int, int], is_forced: bool = False) -> c.ResetGroupOffsets:
    return c.ResetGroupOffsets("s", "t", "g", is_forced, offsets)


def stored_by_group(scene: Scene) -> list[int | None]:
    return [log_of(scene, partition_id).offsets.get(group_key(0)) for partition_id in (0, 1)]


async def test_a_group_is_reset_from_outside_to_the_next_offset_that_it_reads(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    for partition_id in (0, 1):
        await send(scene, "a", "b", "c", to=partition_id)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await scene.ask(scene.root, reset((0, 3), (1, 1)))
    assert stored_by_group(scene) == [2, 0]
    await scene.ask(scene.root, reset((0, 0), (1, 0)))
    assert stored_by_group(scene) == [None, None]
    await scene.ask(scene.root, reset((0, 0)))


async def test_a_reset_with_something_invalid_changes_nothing(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a", "b", to=0)
    assert await scene.refusal(scene.root, reset((0, 1))) is ErrorCode.GROUP_NOT_FOUND
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    assert await scene.refusal(scene.root, reset((0, 1), (2, 0))) is ErrorCode.PARTITION_NOT_FOUND
    with pytest.raises(InvalidOffset):
        await scene.ask(scene.root, reset((0, 1), (1, 1)))
    assert stored_by_group(scene) == [None, None]


async def test_members_are_in_the_way_of_a_reset_unless_it_removes_them(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a", "b", to=0)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    member = scene.connect(0)
    await scene.ask(member, c.JoinConsumerGroup("s", "t", "g"))
    await scene.ask(member, store(1, consumer=GROUP))
    assert await scene.refusal(scene.root, reset((0, 1))) is ErrorCode.GROUP_HAS_MEMBERS
    assert stored_by_group(scene) == [1, None]
    await scene.ask(scene.root, reset((0, 1), is_forced=True))
    assert stored_by_group(scene) == [0, None]
    assert await scene.refusal(member, store(1, consumer=GROUP)) is ErrorCode.GROUP_MEMBER_NOT_FOUND
    await scene.ask(member, c.JoinConsumerGroup("s", "t", "g"))
    assert await texts(scene, poll_command(PollingKind.NEXT, consumer=GROUP), session=member) == ["b"]
