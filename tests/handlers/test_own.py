"""Courser's own commands: long polls that skip nothing in silence, bounds, segments."""

import asyncio
from typing import Any

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import CommandRejected, ErrorCode, OffsetsUnavailable
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind
from tests.handlers.messaging import (
    add_topic,
    damage,
    fill_segments,
    log_of,
    partition_of,
    poll_command,
    send,
    texts_of,
)
from tests.handlers.scenes import Scene

SECOND = 1_000_000
GROUP = Consumer(ConsumerKind.GROUP, "g")


def wait(
    kind: PollingKind = PollingKind.OFFSET,
    value: int = 0,
    *,
    seconds: int = 20,
    size_max: int = 2**20,
    partition: int | None = 0,
    consumer: Consumer | None = None,
    commit: bool = False,
) -> c.WaitForMessages:
    poll = poll_command(kind, value, partition=partition, commit=commit)
    if consumer is not None:
        poll = poll_command(kind, value, partition=partition, commit=commit, consumer=consumer)
    return c.WaitForMessages(poll, seconds * SECOND, size_max)


async def waited(scene: Scene, command: c.WaitForMessages) -> r.Polled:
    reply = await scene.ask(scene.root, command)
    assert isinstance(reply, r.Polled)
    return reply


async def begun(scene: Scene, command: c.WaitForMessages) -> "asyncio.Task[r.Polled]":
    """A long poll that has begun to wait."""
    task = asyncio.create_task(waited(scene, command))
    async with asyncio.timeout(30):
        while scene.root.waiting is None:  # noqa: ASYNC110 - it is about to
            await asyncio.sleep(0)
    return task


async def test_what_is_there_is_given_at_once(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a", "b")
    assert texts_of(await waited(scene, wait())) == ["a", "b"]
    assert scene.root.waiting is None


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
async def test_a_long_poll_ends_with_the_next_message(scene: Scene, durability: str) -> None:
    await add_topic(scene, durability=durability)
    task = await begun(scene, wait())
    await send(scene, "at last")
    assert texts_of(await task) == ["at last"]


async def test_a_long_poll_that_waits_for_a_later_offset_is_not_disturbed(scene: Scene) -> None:
    await add_topic(scene)
    task = await begun(scene, wait(value=2))
    for text in ("a", "b", "c"):
        assert not task.done()
        await send(scene, text)
    assert texts_of(await task) == ["c"]


async def test_a_long_poll_ends_empty_when_its_time_is_up(scene: Scene) -> None:
    await add_topic(scene)
    reply = await waited(scene, wait(seconds=0))
    assert (reply.message_count, reply.partition_id) == (0, 0)
    assert partition_of(scene).readers.waiting == {}


async def test_a_connection_that_goes_takes_its_long_poll_along(scene: Scene) -> None:
    await add_topic(scene)
    task = await begun(scene, wait())
    assert scene.root.waiting is not None
    scene.root.waiting.cancel()
    with pytest.raises(CommandRejected) as refused:
        await task
    assert refused.value.code is ErrorCode.DISCONNECTED
    assert partition_of(scene).readers.waiting == {}


async def test_a_long_poll_ends_when_its_topic_is_deleted(scene: Scene) -> None:
    await add_topic(scene)
    task = await begun(scene, wait())
    await scene.ask(scene.connect(0), c.DeleteTopic("s", "t"))
    with pytest.raises(CommandRejected) as refused:
        await task
    assert refused.value.code is ErrorCode.PARTITION_NOT_FOUND


async def test_a_member_that_lost_its_partition_while_waiting_gets_nothing_of_it(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    other = scene.connect(0)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await scene.ask(scene.root, c.JoinConsumerGroup("s", "t", "g"))
    task = await begun(scene, wait(PollingKind.NEXT, partition=1, consumer=GROUP))
    await scene.ask(other, c.JoinConsumerGroup("s", "t", "g"))
    await send(scene, "not yours", to=1)
    with pytest.raises(CommandRejected) as refused:
        await task
    assert refused.value.code is ErrorCode.PARTITION_NOT_OWNED


async def test_offsets_that_are_gone_are_named(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abc")
    await scene.ask(scene.root, c.StoreConsumerOffset(poll_command().consumer, "s", "t", 0, 1))
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 2))
    await scene.ask(scene.root, c.StoreConsumerOffset(poll_command().consumer, "s", "t", 0, 0))
    for command, first in ((wait(value=0), 0), (wait(PollingKind.NEXT), 1)):
        with pytest.raises(OffsetsUnavailable, match="continue at 2") as refused:
            await scene.ask(scene.root, command)
        error = refused.value
        assert (error.code, error.first_offset, error.end_offset) == (ErrorCode.OFFSET_GONE, first, 2)
    assert scene.broker.polls.counters.gone_count == 2
    assert texts_of(await waited(scene, wait(PollingKind.FIRST))) == ["c"]


async def test_damaged_offsets_are_named_and_nothing_is_committed(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, ["a", "bad", "c"])
    damage(log_of(scene).directory / f"{1:020d}.log")
    with pytest.raises(OffsetsUnavailable) as refused:
        await scene.ask(scene.root, wait(value=1, commit=True))
    error = refused.value
    assert (error.code, error.first_offset, error.end_offset) == (ErrorCode.DAMAGED_DATA, 1, 2)
    assert len(log_of(scene).offsets) == 0
    assert scene.broker.polls.counters.damaged_count == 1
    assert texts_of(await waited(scene, wait(value=error.end_offset))) == ["c"]


async def test_the_reply_is_as_small_as_asked_with_one_message_at_least(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, *("x" * 100 for _ in range(10)))
    assert (await waited(scene, wait(size_max=1))).message_count == 1
    reply = await waited(scene, wait(size_max=1000))
    assert 1 < reply.message_count < 10
    assert reply.size <= 1000


async def test_bounds_tell_what_can_be_read_now(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await fill_segments(scene, "abc")
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 1))
    reply = await scene.ask(scene.root, c.GetPartitionBounds("s", "t"))
    assert isinstance(reply, r.TopicBounds)
    size = 2 * (256 + 48 + 1)
    assert reply.topic_uuid == log_of(scene).identity.topic_uuid
    assert reply.partitions == [r.PartitionBounds(0, 1, 3, size, 2), r.PartitionBounds(1, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("options", "durability"),
    [
        ({}, r.TopicDurability("written", None, None, None, "written")),
        ({"durability": "replicated"}, r.TopicDurability("written", None, None, None, "written")),
        (
            {"durability": "persisted", "consumer_offset_durability": "persisted"},
            r.TopicDurability("synced", None, None, None, "synced"),
        ),
        (
            {"enforce_fsync": True, "messages_required_to_save": 500},
            r.TopicDurability("bounded", 500, 2**20, 1_000_000, "written"),
        ),
    ],
)
async def test_the_durability_is_that_of_this_server(
    scene: Scene, options: dict[str, Any], durability: r.TopicDurability
) -> None:
    await add_topic(scene, **options)
    assert await scene.ask(scene.root, c.GetTopicDurability("s", "t")) == durability


async def test_segments_are_listed_with_their_place(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "ab")
    await send(scene, "open")
    reply = await scene.ask(scene.root, c.GetSegments("s", "t", 0))
    assert isinstance(reply, r.SegmentList)
    assert scene.broker.data.path / reply.directory == log_of(scene).directory
    now = scene.clock.now()
    assert reply.segments[0] == r.SegmentInfo(0, 1, 305, 1, now, now, True, "rolled", "local")
    assert [(row.first_offset, row.is_sealed) for row in reply.segments] == [(0, True), (1, True), (2, False)]
    assert await scene.refusal(scene.root, c.GetSegments("s", "t", 1)) is ErrorCode.PARTITION_NOT_FOUND


async def test_the_lag_of_a_group(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    for text in ("a", "b", "c"):
        await send(scene, text)
        scene.clock.advance(5)
    await scene.ask(scene.root, c.ResetGroupOffsets("s", "t", "g", is_forced=False, offsets=((0, 1),)))
    reply = await scene.ask(scene.root, c.GetGroupLag("s", "t", "g"))
    assert reply == r.GroupLag([r.PartitionLag(0, 0, 3, 2, 10), r.PartitionLag(1, None, 0, 0, 0)])
    # A purge deletes what the group had not read, so there is nothing left to lag behind.
    await scene.ask(scene.root, c.PurgeTopic("s", "t"))
    reply = await scene.ask(scene.root, c.GetGroupLag("s", "t", "g"))
    assert reply == r.GroupLag([r.PartitionLag(0, None, 3, 0, 0), r.PartitionLag(1, None, 0, 0, 0)])
    assert await scene.refusal(scene.root, c.GetGroupLag("s", "t", "x")) is ErrorCode.GROUP_NOT_FOUND
