"""Subscriptions: what arrives is delivered once and in order, only to those who may read it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from courser.api import commands as c
from courser.api.subscriptions import Delivery, Event, Gap, Selection, TopicEnded
from courser.broker.access.sessions import Session
from courser.errors import CommandRejected, ErrorCode
from courser.handlers.subscriptions import Subscription
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, PollingKind
from courser.model.permissions import GlobalPermissions, Permissions
from courser.records.batch import NewMessage, build_batch
from tests.handlers.messaging import add_topic, fill_segments, send, texts_of
from tests.handlers.scenes import Scene

ALL = Selection(stream="s", topic="t", start=PollingKind.FIRST)
NEW = Selection(stream="s", topic="t")


@asynccontextmanager
async def subscribed(
    scene: Scene, *selections: Selection, session: Session | None = None
) -> AsyncIterator[Subscription]:
    subscription = scene.subscriptions.open(session or scene.root)
    try:
        for selection in selections:
            await subscription.add(selection)
        yield subscription
    finally:
        subscription.close()
        assert not len(scene.subscriptions)


async def texts_until(subscription: Subscription, count: int) -> list[str]:
    """So many messages, sorted: partitions take turns."""
    found: list[str] = []
    while len(found) < count:
        found += texts_of(delivery(await subscription.next()).polled)
    return sorted(found)


def delivery(event: Event) -> Delivery:
    assert isinstance(event, Delivery), event
    return event


def ended(event: Event) -> ErrorCode:
    assert isinstance(event, TopicEnded), event
    assert isinstance(event.error, CommandRejected)
    return event.error.code


async def waits(subscription: Subscription, session: Session) -> "asyncio.Task[Event]":
    """A task that waits for the next event."""
    task = asyncio.ensure_future(subscription.next())
    while session.waiting is None:
        assert not task.done()
        await asyncio.sleep(0)
    return task


# --- what is delivered ---


async def test_what_is_there_comes_first_and_then_what_arrives(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a", "b", to=0)
    async with subscribed(scene, ALL) as subscription:
        assert await texts_until(subscription, 2) == ["a", "b"]
        task = await waits(subscription, scene.root)
        await send(scene, "c", to=1)
        found = delivery(await task)
        assert (texts_of(found.polled), found.polled.partition_id, found.next_offset) == (["c"], 1, 1)


async def test_without_a_start_only_new_messages_come(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "old")
    async with subscribed(scene, NEW) as subscription:
        await send(scene, "new")
        assert await texts_until(subscription, 1) == ["new"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(stream="s", topic="t", start=PollingKind.OFFSET, value=2), "cd"),
        (Selection(stream="s", topic="t", start=PollingKind.LAST, count=3), "bcd"),
        (Selection(stream="s", topic="t", start=PollingKind.NEXT, consumer="me"), "bcd"),
        (Selection(stream="s", topic="t", start=PollingKind.TIMESTAMP, value=1_700_000_004_000_000), "d"),
        (Selection(stream="s", topic="t", start=PollingKind.FIRST, offsets={0: 3}), "d"),
    ],
)
async def test_where_a_subscription_starts(scene: Scene, selection: Selection, expected: str) -> None:
    await add_topic(scene)
    for text in "abcd":
        scene.clock.advance(1_000_000)
        await send(scene, text)
    me = Consumer(ConsumerKind.CONSUMER, "me")
    await scene.ask(scene.root, c.StoreConsumerOffset(me, "s", "t", 0, 0))
    async with subscribed(scene, selection) as subscription:
        assert await texts_until(subscription, len(expected)) == list(expected)


async def test_several_topics_take_turns(scene: Scene) -> None:
    await add_topic(scene)
    await scene.add_topic("s", "u")
    other = Selection(stream="s", topic="u", start=PollingKind.FIRST)
    await send(scene, *("x" * 1000 for _ in range(1500)))
    await scene.ask(scene.root, c.CreateStream("unrelated"))
    async with subscribed(scene, ALL, other) as subscription:
        assert delivery(await subscription.next()).selection is ALL
        await send_to(scene, "u", "y")
        assert delivery(await subscription.next()).selection is other
        assert delivery(await subscription.next()).selection is ALL
        subscription.remove(ALL)
        task = await waits(subscription, scene.root)
        await send(scene, "z")
        await send_to(scene, "u", "last")
        assert texts_of(delivery(await task).polled) == ["last"]


async def send_to(scene: Scene, topic: str, text: str) -> None:
    batch = build_batch([NewMessage(text.encode())])
    await scene.ask(scene.root, c.SendMessages("s", topic, Balanced(), [batch]))


async def test_deleted_messages_are_a_gap_and_not_an_end(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abc")
    async with subscribed(scene, ALL) as subscription:
        await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 2))
        found = delivery(await subscription.next())
        assert (texts_of(found.polled), found.gaps) == (["c"], (Gap(0, 2, "trimmed"),))


async def test_new_partitions_belong_to_all_and_deleted_ones_do_not(scene: Scene) -> None:
    await add_topic(scene)
    async with subscribed(scene, NEW) as subscription:
        task = await waits(subscription, scene.root)
        await scene.ask(scene.root, c.CreatePartitions("s", "t", 2))
        await send(scene, "a", to=2)
        assert texts_of(delivery(await task).polled) == ["a"]
        task = await waits(subscription, scene.root)
        await scene.ask(scene.root, c.DeletePartitions("s", "t", 2))
        await send(scene, "b", to=0)
        assert texts_of(delivery(await task).polled) == ["b"]


async def test_changes_elsewhere_wake_nobody(scene: Scene) -> None:
    await add_topic(scene)
    async with subscribed(scene, NEW) as subscription:
        # The first review notes the permissions.
        await send(scene, "a")
        assert await texts_until(subscription, 1) == ["a"]
        task = await waits(subscription, scene.root)
        waiting = scene.root.waiting
        await scene.add_topic("s", "u")
        await asyncio.sleep(0)
        assert scene.root.waiting is waiting
        await send(scene, "b")
        assert texts_of(delivery(await task).polled) == ["b"]


async def test_a_subscriber_far_behind_lets_others_go_first(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, *("x" * 1000 for _ in range(2500)))
    turns: list[int] = []

    async def take_turns() -> None:
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    other = asyncio.ensure_future(take_turns())
    async with subscribed(scene, ALL) as subscription:
        for _ in range(5):
            before = len(turns)
            _ = delivery(await subscription.next())
            assert len(turns) > before
    other.cancel()


# --- ends ---


async def test_a_deleted_topic_ends_and_the_others_go_on(scene: Scene) -> None:
    await add_topic(scene)
    await scene.add_topic("s", "u")
    async with subscribed(scene, NEW, Selection(stream="s", topic="u")) as subscription:
        task = await waits(subscription, scene.root)
        await scene.ask(scene.root, c.DeleteTopic("s", "t"))
        assert ended(await task) is ErrorCode.TOPIC_NOT_FOUND
        await send_to(scene, "u", "still here")
        assert await texts_until(subscription, 1) == ["still here"]


async def test_a_deleted_partition_that_was_named_is_an_end(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    async with subscribed(scene, Selection(stream="s", topic="t", partition_ids=(1,))) as subscription:
        await scene.ask(scene.root, c.DeletePartitions("s", "t", 1))
        assert ended(await subscription.next()) is ErrorCode.PARTITION_NOT_FOUND


async def test_a_permission_that_is_taken_away_ends_the_topic(scene: Scene) -> None:
    await add_topic(scene)
    user = await scene.add_user("alice", Permissions(GlobalPermissions(poll_messages=True)))
    alice = scene.connect(user.user_id)
    async with subscribed(scene, NEW, session=alice) as subscription:
        task = await waits(subscription, alice)
        await scene.ask(scene.root, c.UpdatePermissions("alice", None))
        assert ended(await task) is ErrorCode.UNAUTHORIZED
        await send(scene, "not for alice")
        with pytest.raises(CommandRejected) as refused:
            await subscription.add(ALL)
        assert refused.value.code is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (c.UpdateUser("alice", None, False), {ErrorCode.USER_INACTIVE}),
        # Whichever is noticed first: that there is no such user, or that the session has ended.
        (c.DeleteUser("alice"), {ErrorCode.UNAUTHENTICATED, ErrorCode.CLIENT_NOT_FOUND}),
    ],
)
async def test_a_user_who_may_do_nothing_any_more_gets_nothing(
    scene: Scene, command: c.Command, expected: set[ErrorCode]
) -> None:
    await add_topic(scene)
    user = await scene.add_user("alice", Permissions(GlobalPermissions(poll_messages=True)))
    alice = scene.connect(user.user_id)
    async with subscribed(scene, NEW, session=alice) as subscription:
        task = await waits(subscription, alice)
        await scene.ask(scene.root, command)
        with pytest.raises(CommandRejected) as refused:
            await task
        assert refused.value.code in expected


async def test_a_login_that_is_not_valid_any_more_ends_everything(scene: Scene) -> None:
    await add_topic(scene)
    is_valid = True

    def check_login() -> None:
        if not is_valid:
            raise CommandRejected(ErrorCode.UNAUTHENTICATED, "the token was revoked")

    subscription = scene.subscriptions.open(scene.root, check_login)
    await subscription.add(NEW)
    task = await waits(subscription, scene.root)
    is_valid = False
    scene.subscriptions.review()
    with pytest.raises(CommandRejected, match="revoked"):
        await task
    subscription.close()


# --- what is refused ---


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(stream="nowhere", topic="t"), ErrorCode.STREAM_NOT_FOUND),
        (Selection(stream="s", topic="nothing"), ErrorCode.TOPIC_NOT_FOUND),
        (Selection(stream="s", topic="u", partition_ids=(7,)), ErrorCode.PARTITION_NOT_FOUND),
        (Selection(stream=0, topic=0), ErrorCode.INVALID_COMMAND),
    ],
)
async def test_what_cannot_be_subscribed_to(scene: Scene, selection: Selection, expected: ErrorCode) -> None:
    await add_topic(scene)
    await scene.add_topic("s", "u")
    async with subscribed(scene, ALL) as subscription:
        with pytest.raises(CommandRejected) as refused:
            await subscription.add(selection)
        assert refused.value.code is expected
