"""Waits over several partitions, and what ends a wait early."""

import asyncio
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.partition.waiting import WaitingReaders
from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.permissions import ALL_PERMISSIONS
from courser.model.topic_options import TopicOptions
from tests.handlers.messaging import add_topic, partition_of, send, send_command
from tests.handlers.scenes import Scene, opened

SECOND = 1_000_000
ALONE = Consumer(ConsumerKind.CONSUMER, 7)
GROUP = Consumer(ConsumerKind.GROUP, "g")


def wait(
    *positions: tuple[int, int], seconds: int = 20, consumer: Consumer = ALONE, generation: int = 0
) -> c.WaitForArrivals:
    return c.WaitForArrivals(consumer, "s", "t", positions, generation, seconds * SECOND)


async def begun(scene: Scene, session: Session, command: c.Command) -> "asyncio.Task[r.Reply | None]":
    """A request that has begun to wait."""
    task = asyncio.create_task(scene.ask(session, command))
    async with asyncio.timeout(30):
        while session.waiting is None:  # noqa: ASYNC110 - it is about to
            await asyncio.sleep(0)
    return task


async def group_of_two(scene: Scene) -> tuple[Session, Session]:
    await add_topic(scene, partition_count=2)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    first, second = scene.connect(0), scene.connect(0)
    await scene.ask(first, c.JoinConsumerGroup("s", "t", "g"))
    return first, second


async def test_partitions_with_something_to_read_are_named_at_once(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    await send(scene, "a", "b", to=0)
    await send(scene, "a", to=2)
    assert await scene.ask(scene.root, wait((0, 0), (1, 0), (2, 0))) == r.Arrivals(0, (0, 2))
    assert await scene.ask(scene.root, wait((0, 1), (1, 0), (2, 1))) == r.Arrivals(0, (0,))


async def test_the_next_message_in_any_of_them_ends_the_wait(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    task = await begun(scene, scene.root, wait((0, 0), (1, 0), (2, 0)))
    await send(scene, "at last", to=1)
    assert await task == r.Arrivals(0, (1,))
    assert scene.root.waiting is None
    assert [partition_of(scene, number).readers.waiting for number in range(3)] == [{}, {}, {}]


async def test_nothing_arrives_in_time(scene: Scene) -> None:
    await add_topic(scene)
    assert await scene.ask(scene.root, wait((0, 0), seconds=0)) == r.Arrivals(0, ())


async def test_another_request_ends_the_wait_with_nothing(scene: Scene) -> None:
    await add_topic(scene)
    task = await begun(scene, scene.root, wait((0, 0)))
    scene.root.hurry()
    assert await task == r.Arrivals(0, ())
    poll = c.PollMessages(ALONE, "s", "t", 0, PollingKind.OFFSET, 0, 10, auto_commit=False)
    task = await begun(scene, scene.root, c.WaitForMessages(poll, 20 * SECOND, 1000))
    scene.root.hurry()
    polled = await task
    assert isinstance(polled, r.Polled)
    assert (polled.message_count, polled.pieces) == (0, ())


async def test_a_rebalance_ends_the_wait_of_a_member(scene: Scene) -> None:
    first, second = await group_of_two(scene)
    task = await begun(scene, first, wait((0, 0), (1, 0), consumer=GROUP, generation=1))
    await scene.ask(second, c.JoinConsumerGroup("s", "t", "g"))
    assert await task == r.Arrivals(2, ())


async def test_a_member_that_missed_a_rebalance_is_told_at_once(scene: Scene) -> None:
    first, second = await group_of_two(scene)
    await scene.ask(second, c.JoinConsumerGroup("s", "t", "g"))
    assert await scene.ask(first, wait((0, 0), consumer=GROUP, generation=1)) == r.Arrivals(2, ())


async def test_a_long_poll_of_a_partition_that_becomes_anothers_is_refused_at_once(scene: Scene) -> None:
    first, second = await group_of_two(scene)
    poll = c.PollMessages(GROUP, "s", "t", 1, PollingKind.NEXT, 0, 10, auto_commit=False)
    task = asyncio.create_task(scene.refusal(first, c.WaitForMessages(poll, 20 * SECOND, 1000)))
    while first.waiting is None:  # noqa: ASYNC110 - it is about to
        await asyncio.sleep(0)
    await scene.ask(second, c.JoinConsumerGroup("s", "t", "g"))
    assert await task is ErrorCode.PARTITION_NOT_OWNED


async def test_who_is_no_member_may_not_wait_as_one(scene: Scene) -> None:
    _, second = await group_of_two(scene)
    assert await scene.refusal(second, wait((0, 0), consumer=GROUP)) is ErrorCode.GROUP_MEMBER_NOT_FOUND


async def test_a_partition_that_is_not_there_cannot_be_waited_for(scene: Scene) -> None:
    await add_topic(scene)
    assert await scene.refusal(scene.root, wait((0, 0), (1, 0))) is ErrorCode.PARTITION_NOT_FOUND


async def test_a_partition_that_is_deleted_ends_the_wait(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    task = await begun(scene, scene.root, wait((0, 0), (1, 0)))
    await scene.ask(scene.connect(0), c.DeletePartitions("s", "t", 1))
    assert await task == r.Arrivals(0, (1,))


@pytest.mark.parametrize("gone", [c.DeleteTopic("s", "t"), c.DeleteStream("s")])
async def test_a_topic_that_is_deleted_ends_the_wait_of_a_member(scene: Scene, gone: c.Command) -> None:
    member, _ = await group_of_two(scene)
    task = await begun(scene, member, wait((0, 0), consumer=GROUP, generation=1))
    await scene.ask(scene.root, gone)
    with pytest.raises(CommandRejected) as refused:
        await task
    assert refused.value.code is ErrorCode.TOPIC_NOT_FOUND


@pytest.mark.parametrize(
    "waiting",
    [
        wait((0, 0), consumer=GROUP, generation=1),
        c.WaitForMessages(
            c.PollMessages(GROUP, "s", "t", 0, PollingKind.NEXT, 0, 10, auto_commit=True), 20 * SECOND, 1000
        ),
    ],
)
async def test_a_group_that_is_deleted_ends_the_waits_of_its_members(scene: Scene, waiting: c.Command) -> None:
    member, _ = await group_of_two(scene)
    task = await begun(scene, member, waiting)
    await scene.ask(scene.root, c.DeleteConsumerGroup("s", "t", "g"))
    assert task in (await asyncio.wait([task], timeout=60))[0], "it waits for a group that is gone"
    assert isinstance(error := task.exception(), CommandRejected)
    assert error.code is ErrorCode.GROUP_NOT_FOUND


# --- what waits cost ---


async def test_a_partition_that_is_named_often_is_waited_for_once(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    task = await begun(scene, scene.root, wait(*[(1, 5 - number % 5) for number in range(1000)]))
    assert list(partition_of(scene, 1).readers.waiting.values()) == [1], "the first message that is wanted"
    assert scene.broker.polls.rows.by_user.total() == 1000, "rows count as they were sent: they stay in memory"
    await send(scene, "a", "b", to=1)
    assert await task == r.Arrivals(0, (1,))
    assert not scene.broker.polls.rows.by_user


async def test_a_send_does_the_same_work_however_many_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred connections that wait for a far offset cost sends nothing, and those that wait are not woken."""
    await add_topic(scene)
    await send(scene, "the first reserves offsets")
    partition = partition_of(scene)
    tasks = [await begun(scene, scene.connect(0), wait((0, 1_000_000))) for _ in range(100)]
    near = await begun(scene, scene.connect(0), wait((0, 21)))
    told: list[int] = []
    announce = WaitingReaders.announce

    def noted(readers: WaitingReaders) -> None:
        told.append(partition.log.visible_end)
        announce(readers)

    monkeypatch.setattr(WaitingReaders, "announce", noted)
    for number in range(20):
        assert isinstance(scene.dispatcher.begin(scene.root, send_command(f"{number}")), r.Sent)
    assert told == [], "sends themselves tell nobody"
    await asyncio.sleep(0)
    assert told == [21], "all that came in one turn of the loop are told of once"
    await send(scene, "the one that is waited for")
    assert await near == r.Arrivals(0, (0,))
    assert len(partition.readers.waiting) == 100
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert partition.readers.waiting == {}


async def test_a_long_poll_for_a_far_offset_is_not_woken_by_each_message(scene: Scene) -> None:
    await add_topic(scene)
    poll = c.PollMessages(ALONE, "s", "t", 0, PollingKind.OFFSET, 3, 10, auto_commit=False)
    task = await begun(scene, scene.connect(0), c.WaitForMessages(poll, 20 * SECOND, 1000))
    (woken,) = partition_of(scene).readers.waiting
    await send(scene, "0", "1", "2")
    await asyncio.sleep(0)
    assert not woken.done()
    await send(scene, "3")
    reply = await task
    assert isinstance(reply, r.Polled)
    assert reply.message_count == 1


async def test_a_user_waits_for_so_many_partitions_and_no_more(tmp_path: Path) -> None:
    limits = BrokerLimits(row_count_max=10, row_count_of_user_max=6)
    async with opened(tmp_path, settings=BrokerSettings(limits=limits)) as scene:
        await add_topic(scene, partition_count=5)
        await scene.add_user("alice", ALL_PERMISSIONS)
        five = [(number, 0) for number in range(5)]
        tasks = [await begun(scene, scene.connect(0), wait(*five))]
        assert await scene.refusal(scene.connect(0), wait(*five)) is ErrorCode.SERVER_BUSY
        tasks.append(await begun(scene, scene.connect(0), wait((0, 0))))
        assert await scene.refusal(scene.connect(1), wait(*five)) is ErrorCode.SERVER_BUSY
        tasks.append(await begun(scene, scene.connect(1), wait(*five[:4])))
        await send(scene, "a", to=0)
        for task in tasks:
            assert await task == r.Arrivals(0, (0,))
        assert await scene.ask(scene.root, wait(*five)) == r.Arrivals(0, (0,))


# --- several topics -----------------------------------------------------------------------------------


def wait_for_topics(*positions: tuple[str, str, int, int], seconds: int = 20) -> c.WaitForTopics:
    return c.WaitForTopics(positions, seconds * SECOND)


async def two_topics(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await scene.ask(scene.root, c.CreateTopic("s", "u", 1, TopicOptions()))


async def test_rows_of_any_topic_with_something_to_read_are_named_at_once(scene: Scene) -> None:
    await two_topics(scene)
    await send(scene, "a", to=1)
    wanted = (("s", "u", 0, 0), ("s", "t", 0, 0), ("s", "t", 1, 0), ("s", "t", 1, 1))
    assert await scene.ask(scene.root, wait_for_topics(*wanted)) == r.ArrivalsInTopics((2,))


async def test_a_message_in_any_topic_ends_the_wait(scene: Scene) -> None:
    await two_topics(scene)
    wanted = (("s", "u", 0, 0), ("s", "t", 0, 9), ("s", "t", 0, 0))
    task = await begun(scene, scene.root, wait_for_topics(*wanted))
    await send(scene, "at last", to=0)
    assert await task == r.ArrivalsInTopics((2,))
    task = await begun(scene, scene.root, wait_for_topics(("s", "t", 0, 1), ("s", "u", 0, 0)))
    await scene.ask(scene.root, c.SendMessages("s", "u", ToPartition(0), send_command("at last").batches))
    assert await task == r.ArrivalsInTopics((1,))


async def test_a_topic_that_is_deleted_ends_the_wait(scene: Scene) -> None:
    await two_topics(scene)
    waiting = scene.connect(0)
    task = await begun(scene, waiting, wait_for_topics(("s", "t", 0, 0), ("s", "u", 0, 0)))
    await scene.ask(scene.root, c.DeleteTopic("s", "u"))
    assert await task == r.ArrivalsInTopics((1,))


async def test_every_topic_must_be_there_and_allowed(scene: Scene) -> None:
    await two_topics(scene)
    for wanted, code in (
        (("s", "nothing", 0, 0), ErrorCode.TOPIC_NOT_FOUND),
        (("nothing", "t", 0, 0), ErrorCode.STREAM_NOT_FOUND),
        (("s", "u", 7, 0), ErrorCode.PARTITION_NOT_FOUND),
    ):
        with pytest.raises(CommandRejected) as refusal:
            await scene.ask(scene.root, wait_for_topics(("s", "t", 0, 0), wanted))
        assert refusal.value.code is code
