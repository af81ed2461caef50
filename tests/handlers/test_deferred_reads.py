"""Reads of SDK 0.10: waits for enough messages, polls of a limited size, fetches from several partitions."""

import asyncio
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind
from courser.model.permissions import ALL_PERMISSIONS
from tests.handlers.messaging import (
    ME,
    add_topic,
    damage,
    fill_segments,
    log_of,
    partition_of,
    poll_command,
    send,
    texts_of,
)
from tests.handlers.scenes import Scene, opened
from tests.records.reference import read_wire

SECOND = 1_000_000
MIB = 1 << 20
GROUP = Consumer(ConsumerKind.GROUP, "g")
OFFSET, NEXT = PollingKind.OFFSET, PollingKind.NEXT


def at(partition: int, value: int = 0, kind: PollingKind = OFFSET, **other: int) -> c.ReadTarget:
    return c.ReadTarget(partition, kind, value, **{"size_max": MIB} | other)


def awaited(*targets: c.ReadTarget, count: int = 1, wait: int = 600, consumer: Consumer = ME) -> c.AwaitMessages:
    return c.AwaitMessages(consumer, "s", "t", targets, count, wait * SECOND)


def fetching(
    *targets: c.ReadTarget, count: int = 1000, size_max: int = MIB, commit: bool = False, consumer: Consumer = ME
) -> c.FetchMessages:
    return c.FetchMessages(consumer, "s", "t", targets, count, size_max, commit)


async def ready(scene: Scene, command: c.AwaitMessages, session: Session | None = None) -> tuple[int, ...]:
    reply = await scene.ask(session or scene.root, command)
    assert isinstance(reply, r.ReadyPartitions)
    return reply.partition_ids


async def begun(
    scene: Scene, command: c.AwaitMessages, session: Session | None = None
) -> "asyncio.Task[tuple[int, ...]]":
    """A wait that has begun."""
    session = session or scene.root
    before = len(session.parked)
    task = asyncio.create_task(ready(scene, command, session))
    async with asyncio.timeout(30):
        while len(session.parked) == before:  # noqa: ASYNC110 - it is about to
            await asyncio.sleep(0)
    return task


async def fetched(scene: Scene, command: c.FetchMessages, session: Session | None = None) -> r.Fetched:
    reply = await scene.ask(session or scene.root, command)
    assert isinstance(reply, r.Fetched)
    assert reply.size == sum(map(len, reply.pieces)) == sum(row.size for row in reply.partitions)
    for row in reply.partitions:
        assert not row.status or (row.message_count, row.size) == (0, 0)
    return reply


def rows_of(reply: r.Fetched) -> list[tuple[int, int, int, int]]:
    """Partition, status, number of messages, and where to read on."""
    return [(row.partition_id, row.status, row.message_count, row.next_offset) for row in reply.partitions]


def payloads(reply: r.Fetched) -> list[str]:
    return [message.payload.decode() for message in read_wire(b"".join(reply.pieces))]


async def group_of(scene: Scene, count: int, partition_count: int = 2) -> list[Session]:
    """Members of a group."""
    await add_topic(scene, partition_count=partition_count)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    members = [scene.connect(0) for _ in range(count)]
    for member in members:
        await scene.ask(member, c.JoinConsumerGroup("s", "t", "g"))
    return members


# --- waiting ---


async def test_partitions_that_can_be_read_are_named_at_once(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    await send(scene, "a", "b", to=0)
    await send(scene, "a", to=2)
    assert await ready(scene, awaited(at(0), at(1), at(2))) == (0, 2)
    assert await ready(scene, awaited(at(0, 1), at(1), at(2, 1))) == (0,)
    assert scene.root.parked == frozenset()


@pytest.mark.parametrize("kind", [OFFSET, NEXT, PollingKind.FIRST, PollingKind.LAST, PollingKind.TIMESTAMP])
async def test_a_message_in_any_of_them_ends_the_wait(scene: Scene, kind: PollingKind) -> None:
    await add_topic(scene, partition_count=3)
    task = await begun(scene, awaited(*(at(number, kind=kind) for number in range(3))))
    assert scene.root.waiting is None, "nothing that another request would end"
    await send(scene, "at last", to=1)
    assert await task == (1,)
    assert scene.root.parked == frozenset()
    assert [partition_of(scene, number).readers.waiting for number in range(3)] == [{}, {}, {}]


async def test_it_waits_for_as_many_messages_as_are_wanted(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a")
    alone = await begun(scene, awaited(at(0), count=3))
    together = await begun(scene, awaited(at(0), at(1), count=3))
    await send(scene, "b")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not alone.done()
    assert not together.done()
    await send(scene, "c", to=1)
    assert await together == (0, 1)
    assert not alone.done()
    await send(scene, "d")
    assert await alone == (0,)


async def test_the_time_ends_a_wait_with_what_is_there(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a")
    assert await ready(scene, awaited(at(0), at(1), count=2, wait=0)) == (0,)
    command = c.AwaitMessages(ME, "s", "t", (at(0), at(1)), 2, 1000)
    assert await ready(scene, command) == (0,)


async def test_a_wait_begins_behind_what_is_stored(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a", "b")
    await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 0))
    assert await ready(scene, awaited(at(0, kind=NEXT))) == (0,)
    await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 1))
    task = await begun(scene, awaited(at(0, kind=NEXT)))
    await send(scene, "c")
    assert await task == (0,)


async def test_other_requests_do_not_end_a_wait(scene: Scene) -> None:
    await add_topic(scene)
    tasks = [await begun(scene, awaited(at(0))) for _ in range(2)]
    scene.root.hurry()
    await asyncio.sleep(0)
    assert len(scene.root.parked) == 2
    await send(scene, "a")
    assert [await task for task in tasks] == [(0,), (0,)]


async def test_a_partition_that_is_not_there_ends_the_wait(scene: Scene) -> None:
    await add_topic(scene)
    assert await ready(scene, awaited(at(0), at(1))) == (1,)
    incarnation = partition_of(scene).log.identity.incarnation
    assert await ready(scene, awaited(at(0, incarnation=incarnation + 1))) == (0,)


async def test_a_partition_that_is_deleted_ends_the_wait(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    task = await begun(scene, awaited(at(0), at(1)))
    await scene.ask(scene.root, c.DeletePartitions("s", "t", 1))
    assert await task == (1,)


async def test_a_topic_that_is_deleted_ends_the_wait(scene: Scene) -> None:
    await add_topic(scene)
    task = await begun(scene, awaited(at(0)))
    await scene.ask(scene.root, c.DeleteTopic("s", "t"))
    assert await task == (0,)
    assert await scene.refusal(scene.root, fetching(at(0))) is ErrorCode.TOPIC_NOT_FOUND


async def test_a_rebalance_ends_the_wait_of_a_member(scene: Scene) -> None:
    (first,) = await group_of(scene, 1)
    task = await begun(scene, awaited(at(0), at(1), consumer=GROUP), first)
    second = scene.connect(0)
    await scene.ask(second, c.JoinConsumerGroup("s", "t", "g"))
    assert await task == (1,), "the one that it has lost"
    assert [row[:2] for row in rows_of(await fetched(scene, fetching(at(0), at(1), consumer=GROUP), first))] == [
        (0, 0),
        (1, ErrorCode.PARTITION_NOT_OWNED),
    ]


async def test_who_is_no_member_does_not_wait(scene: Scene) -> None:
    await group_of(scene, 1)
    for command in (awaited(at(0), consumer=GROUP), fetching(at(0), consumer=GROUP)):
        assert await scene.refusal(scene.root, command) is ErrorCode.GROUP_MEMBER_NOT_FOUND


async def test_the_partitions_of_all_waits_are_limited(tmp_path: Path) -> None:
    settings = BrokerSettings(limits=BrokerLimits(row_count_max=3, row_count_of_user_max=3))
    async with opened(tmp_path, settings) as scene:
        await add_topic(scene, partition_count=2)
        task = await begun(scene, awaited(at(0), at(1)))
        assert await scene.refusal(scene.root, awaited(at(0), at(1))) is ErrorCode.SERVER_BUSY
        await send(scene, "a")
        assert await task == (0,)
        assert await ready(scene, awaited(at(0), at(1))) == (0,), "what does not wait does not count"


@pytest.mark.parametrize("is_ended", [False, True])
async def test_nothing_is_left_of_a_wait_that_is_given_up(scene: Scene, is_ended: bool) -> None:
    await add_topic(scene)
    task = await begun(scene, awaited(at(0)))
    if is_ended:
        scene.root.end(CommandRejected(ErrorCode.STALE_CLIENT, "too late"))
    else:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled() or isinstance(task.exception(), CommandRejected)
    assert scene.root.parked == frozenset()
    assert partition_of(scene).readers.waiting == {}
    assert not scene.broker.polls.rows.by_user


async def test_a_permission_that_is_revoked_meanwhile_counts(scene: Scene) -> None:
    await add_topic(scene)
    user = await scene.add_user("reader", None)
    await scene.ask(scene.root, c.UpdatePermissions("reader", ALL_PERMISSIONS))
    reader = scene.connect(user.user_id)
    task = asyncio.create_task(scene.refusal(reader, awaited(at(0))))
    while not reader.parked:  # noqa: ASYNC110 - it is about to
        await asyncio.sleep(0)
    await scene.ask(scene.root, c.UpdatePermissions("reader", None))
    await send(scene, "secret")
    assert await task is ErrorCode.UNAUTHORIZED


# --- one partition ---


async def test_a_poll_has_at_most_so_many_bytes_and_at_least_a_message(scene: Scene) -> None:
    await add_topic(scene)
    for letter in "abc":
        await send(scene, letter * 1000)
    for size_max, count in ((100, 1), (2 * 1400, 2), (MIB, 3)):
        reply = await scene.ask(scene.root, c.ReadMessages(poll_command(OFFSET), size_max))
        assert isinstance(reply, r.Polled)
        assert texts_of(reply) == [letter * 1000 for letter in "abc"[:count]]
        scene.broker.buffers.give_back(scene.root)


async def test_a_poll_commits_what_it_returns(scene: Scene) -> None:
    await add_topic(scene)
    for letter in "abc":
        await send(scene, letter * 1000)
    seen = []
    for _ in range(3):
        reply = await scene.ask(scene.root, c.ReadMessages(poll_command(NEXT, commit=True), 500))
        assert isinstance(reply, r.Polled)
        seen += texts_of(reply)
        scene.broker.buffers.give_back(scene.root)
    assert seen == [letter * 1000 for letter in "abc"]


# --- several partitions ---


async def test_a_fetch_reads_partitions_in_the_order_of_the_request(scene: Scene) -> None:
    await add_topic(scene, partition_count=4)
    await send(scene, "a", "b", to=0)
    await send(scene, "c", to=1)
    await send(scene, "d", "e", "f", to=3)
    reply = await fetched(scene, fetching(at(3, 1), at(2), at(0), at(1, 5)))
    assert rows_of(reply) == [(3, 0, 2, 3), (2, 0, 0, 0), (0, 0, 2, 2), (1, 0, 0, 5)]
    assert [row.current_offset for row in reply.partitions] == [2, 0, 1, 0]
    assert payloads(reply) == ["e", "f", "a", "b"]
    assert reply.is_copied
    assert {row.incarnation for row in reply.partitions} == {partition_of(scene).log.identity.incarnation}
    assert scene.broker.buffers.ledger.size == 0, "a copy needs no memory of reads"


async def test_a_fetch_of_one_partition_is_not_copied(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "a")
    reply = await fetched(scene, fetching(at(0)))
    assert not reply.is_copied
    assert payloads(reply) == ["a"]
    assert scene.broker.buffers.ledger.size
    scene.broker.buffers.give_back(scene.root)
    assert scene.broker.buffers.ledger.size == 0


async def test_a_fetch_ends_with_its_last_message(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    for number in range(3):
        await send(scene, "a", "b", to=number)
    reply = await fetched(scene, fetching(at(0), at(1), at(2), count=3))
    assert rows_of(reply) == [(0, 0, 2, 2), (1, 0, 1, 1)]
    reply = await fetched(scene, fetching(at(0), at(1), at(2), count=2))
    assert rows_of(reply) == [(0, 0, 2, 2)]


async def test_a_fetch_ends_with_its_last_byte(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    for number in range(3):
        await send(scene, "x" * 1000, to=number)
    size = (await fetched(scene, fetching(at(0)))).size
    reply = await fetched(scene, fetching(at(0), at(1), at(2), size_max=2 * size))
    assert rows_of(reply) == [(0, 0, 1, 1), (1, 0, 1, 1)]
    reply = await fetched(scene, fetching(at(0), at(1), at(2), size_max=2 * size - 1))
    assert rows_of(reply) == [(0, 0, 1, 1)], "the next one would have room alone"


async def test_a_message_that_is_larger_than_the_share_of_its_partition_is_read_alone(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "x" * 1000, to=0)
    await send(scene, "small", to=1)
    reply = await fetched(scene, fetching(at(0, size_max=500), at(1), commit=True))
    assert rows_of(reply) == [(0, ErrorCode.READ_TOO_LARGE, 0, 0), (1, 0, 1, 1)]
    assert payloads(reply) == ["small"]
    assert [len(tuple(partition_of(scene, number).log.offsets.items())) for number in (0, 1)] == [0, 1]


async def test_a_partition_that_cannot_be_read_does_not_affect_the_others(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a", to=1)
    incarnation = partition_of(scene).log.identity.incarnation
    targets = (at(7), at(0, incarnation=incarnation + 1), at(1, incarnation=incarnation))
    assert rows_of(await fetched(scene, fetching(*targets))) == [
        (7, ErrorCode.PARTITION_NOT_FOUND, 0, 0),
        (0, ErrorCode.HISTORY_UNAVAILABLE, 0, 0),
        (1, 0, 1, 1),
    ]


async def test_a_fetch_commits_every_partition_that_it_returns(scene: Scene) -> None:
    await add_topic(scene, partition_count=3)
    await send(scene, "a", "b", to=0)
    await send(scene, "c", to=2)
    targets = tuple(at(number, kind=NEXT) for number in range(3))
    assert rows_of(await fetched(scene, fetching(*targets, commit=True))) == [(0, 0, 2, 2), (1, 0, 0, 0), (2, 0, 1, 1)]
    for number, stored in ((0, 1), (2, 0)):
        offset = await scene.ask(scene.root, c.GetConsumerOffset(ME, "s", "t", number))
        assert isinstance(offset, r.StoredOffset)
        assert offset.stored_offset == stored
    # The value is what the client expects, and does not count.
    again = tuple(at(number, 99, NEXT) for number in range(3))
    assert rows_of(await fetched(scene, fetching(*again, commit=True))) == [(0, 0, 0, 2), (1, 0, 0, 0), (2, 0, 0, 1)]


async def test_a_partition_whose_commit_fails_is_not_returned(scene: Scene) -> None:
    (member,) = await group_of(scene, 1)
    await send(scene, "a", to=0)
    await send(scene, "b", to=1)
    # The rebalance comes between the read and the commit.
    polls, second = scene.broker.polls, scene.connect(0)
    read = polls.read

    async def read_and_lose(*arguments: object) -> object:
        result = await read(*arguments)  # type: ignore[arg-type]
        if not second.groups:
            await scene.ask(second, c.JoinConsumerGroup("s", "t", "g"))
        return result

    polls.read = read_and_lose  # type: ignore[method-assign,assignment]
    command = fetching(at(1, kind=NEXT), at(0, kind=NEXT), commit=True, consumer=GROUP)
    reply = await fetched(scene, command, member)
    assert rows_of(reply) == [(1, ErrorCode.PARTITION_NOT_OWNED, 0, 1), (0, 0, 1, 1)]
    assert payloads(reply) == ["a"]
    assert [len(tuple(partition_of(scene, number).log.offsets.items())) for number in (0, 1)] == [1, 0]


async def test_a_fetch_needs_the_permission(scene: Scene) -> None:
    await add_topic(scene)
    nobody = scene.connect((await scene.add_user("nobody")).user_id)
    for command in (awaited(at(0)), fetching(at(0)), c.ReadMessages(poll_command(), MIB)):
        assert await scene.refusal(nobody, command) is ErrorCode.UNAUTHORIZED
    assert await scene.refusal(scene.root, c.FetchMessages(ME, "s", "other", (at(0),), 1, MIB, False)) is (
        ErrorCode.TOPIC_NOT_FOUND
    )


# --- where there is nothing ---


@pytest.mark.parametrize("kind", [OFFSET, NEXT, PollingKind.FIRST])
async def test_messages_that_were_deleted_are_not_waited_for(scene: Scene, kind: PollingKind) -> None:
    await add_topic(scene)
    await send(scene, "a", "b", "c")
    await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 0))
    await scene.ask(scene.root, c.PurgeTopic("s", "t"))
    task = await begun(scene, awaited(at(0, 1, kind)))
    await asyncio.sleep(0)
    assert not task.done(), "a client that got nothing would ask again at once"
    await send(scene, "d")
    assert await task == (0,)
    reply = await fetched(scene, fetching(at(0, 1)))
    assert (rows_of(reply), payloads(reply)) == ([(0, 0, 1, 4)], ["d"])


async def test_a_read_that_was_in_vain_is_not_repeated_without_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await fill_segments(scene, ["good", "bad"])
        damage(log_of(scene).directory / f"{1:020d}.log")
        assert await ready(scene, awaited(at(0, 1))) == (0,), "nobody has looked yet"
        reply = await scene.ask(scene.root, c.ReadMessages(poll_command(OFFSET, 1), MIB))
        assert isinstance(reply, r.Polled)
        assert reply.message_count == 0
        task = await begun(scene, awaited(at(0, 1)))
        await send(scene, "next")
        assert await task == (0,)
        reply = await scene.ask(scene.root, c.ReadMessages(poll_command(OFFSET, 1), MIB))
        assert isinstance(reply, r.Polled)
        assert texts_of(reply) == ["next"]
        assert await ready(scene, awaited(at(0, 0))) == (0,)
