"""The high-level consumer: a member of a consumer group."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.sdk.programs.refusals import refused
from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import MOMENT, Sdk

register = Register()


UNTIL_PATIENCE = 60.0
"""Seconds that the SDK may take for what it does in the background. On a busy machine ten were not always enough."""


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for it. The SDK commits in the background and tells nobody."""
    deadline = asyncio.get_running_loop().time() + UNTIL_PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.01)


def texts(messages: list[Any]) -> list[str]:
    return [message.payload().decode() for message in messages]


@register.scenario()
async def a_member_is_given_every_message_in_order(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    expected = [f"message {number}" for number in range(100)]
    await sdk.send(client, stream, topic, expected)
    group = sdk.fresh_name("group")
    consumer = await sdk.group_consumer(client, group, stream, topic, batch_length=7)
    assert (consumer.name(), consumer.stream(), consumer.topic()) == (group, stream, topic)
    messages = await sdk.consume(consumer, 100)
    assert texts(messages) == expected
    assert [message.offset() for message in messages] == list(range(100))
    assert consumer.partition_id() == sdk.partition(0)
    assert consumer.get_last_consumed_offset(sdk.partition(0)) == 99


@register.scenario()
async def a_member_sees_what_is_sent_while_it_waits(sdk: Sdk) -> None:
    client, producer = await sdk.client(), await sdk.client()
    stream, topic = await sdk.topic(client, 3)
    consumer = await sdk.group_consumer(client, sdk.fresh_name("group"), stream, topic)
    async with sdk.consuming(consumer) as received:
        for number in range(30):
            await sdk.send(producer, stream, topic, [f"{number}"], index=number % 3)
            message = await received.get()
            assert message.payload() == f"{number}".encode()
            if sdk.version >= (0, 7):
                assert message.partition_id() == number % 3


@register.scenario(since="0.7")
async def a_member_can_be_iterated_over(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    expected = [f"message {number}" for number in range(20)]
    await sdk.send(client, stream, topic, expected)
    consumer = await sdk.group_consumer(client, sdk.fresh_name("group"), stream, topic, batch_length=6)
    found: list[str] = []
    async for message in consumer.iter_messages():
        found.append(message.payload().decode())
        if len(found) == len(expected):
            break
    assert found == expected


def modes_that_commit(sdk: Sdk) -> list[Any]:
    """Every mode but the one in which the server commits while it answers a poll: of that the SDK keeps no account."""
    commit, when, after = sdk.iggy.AutoCommit, sdk.iggy.AutoCommitWhen, sdk.iggy.AutoCommitAfter
    moment = timedelta(milliseconds=50)
    return [
        commit.Interval(moment),
        commit.IntervalOrWhen(moment, when.ConsumingAllMessages()),
        commit.IntervalOrAfter(moment, after.ConsumingAllMessages()),
        commit.When(when.ConsumingAllMessages()),
        commit.When(when.ConsumingEachMessage()),
        commit.When(when.ConsumingEveryNthMessage(5)),
        commit.After(after.ConsumingAllMessages()),
        commit.After(after.ConsumingEachMessage()),
        commit.After(after.ConsumingEveryNthMessage(5)),
    ]


@register.scenario()
async def what_any_mode_of_auto_commit_stored_the_next_consumer_is_not_given_again(sdk: Sdk) -> None:
    client, producer = await sdk.client(), await sdk.client()
    on_the_server = sdk.iggy.AutoCommit.When(sdk.iggy.AutoCommitWhen.PollingMessages())

    async def try_mode(mode: Any) -> None:
        stream, topic = await sdk.topic(client)
        await sdk.send(client, stream, topic, [f"{number}" for number in range(6)])
        group = sdk.fresh_name("group")
        consumer = await sdk.group_consumer(client, group, stream, topic, batch_length=6, auto_commit=mode)
        assert texts(await sdk.consume(consumer, 6)) == [f"{number}" for number in range(6)]
        if mode is on_the_server:
            successor = await sdk.group_consumer(client, group, stream, topic)
            # A poll that the first consumer started before it was stopped may reach the server late: the server then
            # commits a message that no consumer is given. So one message is sent after the other.
            assert int(await first_given(successor, stream, topic, first=6)) >= 6
            return
        await until(lambda: consumer.get_last_stored_offset(sdk.partition(0)) == 5, f"{mode} has stored 5")
        # Not before: from 0.10 on, a consumer reads ahead as soon as there is one.
        successor = await sdk.group_consumer(client, group, stream, topic)
        await sdk.send(client, stream, topic, ["6"])
        given = texts(await sdk.consume(successor, 1))
        assert given == ["6"], f"after {mode}: {given}"

    async def first_given(consumer: Any, stream: str, topic: str, first: int) -> str:
        """Send numbers until the consumer is given one; return that."""
        async with sdk.consuming(consumer) as received:
            for number in itertools.count(first):
                await sdk.send(producer, stream, topic, [f"{number}"])
                await asyncio.sleep(MOMENT.total_seconds())
                if not received.empty():
                    break
            message = received.get_nowait()
        assert message is not None, "the consumer ended"
        return texts([message])[0]

    for mode in (on_the_server, *modes_that_commit(sdk)):
        await try_mode(mode)


@register.scenario()
async def without_auto_commit_the_next_consumer_is_given_everything_again(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    await sdk.send(client, stream, topic, ["one", "two", "three"])
    group = sdk.fresh_name("group")
    disabled = sdk.iggy.AutoCommit.Disabled()
    for _ in range(2):
        consumer = await sdk.group_consumer(client, group, stream, topic, auto_commit=disabled)
        assert texts(await sdk.consume(consumer, 3)) == ["one", "two", "three"]


@register.scenario()
async def offsets_are_stored_and_deleted_by_hand(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 2)
    await sdk.send(client, stream, topic, [f"{number}" for number in range(6)], index=1)
    group, partition = sdk.fresh_name("group"), sdk.partition(1)

    async def member() -> Any:
        disabled = sdk.iggy.AutoCommit.Disabled()
        return await sdk.group_consumer(client, group, stream, topic, auto_commit=disabled)

    async def first_given() -> str:
        return texts(await sdk.consume(await member(), 1))[0]

    consumer = await member()
    await sdk.consume(consumer, 6)
    assert await first_given() == "0"
    await consumer.store_offset(2, partition)
    assert consumer.get_last_stored_offset(partition) == 2
    assert await first_given() == "3"
    await consumer.store_offset(4, None)
    assert await first_given() == "5", "without a number, the partition of the last message is meant"
    await consumer.store_offset(0, partition)
    # From 0.10 on, the SDK itself ignores an offset below the last one that it has stored.
    went_back = sdk.version < (0, 10)
    assert await first_given() == ("1" if went_back else "5"), "an offset may go back when it is stored by hand"
    await refused(sdk, "offset beyond the end", consumer.store_offset(6, partition))
    assert await first_given() == ("1" if went_back else "5")
    await consumer.delete_offset(partition)
    assert await first_given() == "0"
    await refused(sdk, "no stored offset", consumer.delete_offset(partition))


@register.scenario()
async def every_argument_of_consumer_group_is_taken(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    await sdk.send(client, stream, topic, [f"{number}" for number in range(5)])
    group = sdk.fresh_name("group")
    arguments = {
        "partition_id": None,
        "polling_strategy": sdk.iggy.PollingStrategy.Next(),
        "batch_length": 2,
        "auto_commit": sdk.iggy.AutoCommit.Disabled(),
        "create_consumer_group_if_not_exists": True,
        "auto_join_consumer_group": True,
        "polling_retry_interval": MOMENT,
        "init_retries": 2,
        "init_retry_interval": MOMENT,
        "allow_replay": True,
    }
    if sdk.version < (0, 10):
        arguments["poll_interval"] = MOMENT
    consumer = await sdk.group_consumer(client, group, stream, topic, **arguments)
    # Nothing is committed and replay is allowed: the same two messages come again and again, as long as the next poll
    # begins behind what was committed. From 0.10 on, it begins behind what was polled.
    expected = ["0", "1"] * 3 if sdk.version < (0, 10) else ["0", "1", "2", "3", "4"]
    assert texts(await sdk.consume(consumer, len(expected))) == expected


@register.scenario()
async def a_member_begins_where_its_strategy_says(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    await sdk.send(client, stream, topic, ["0", "1", "2"])
    await sdk.send(client, stream, topic, ["3", "4"])
    strategy = sdk.iggy.PollingStrategy
    time_of_the_last = (await sdk.poll(client, stream, topic, strategy.Last(), count=1))[0].timestamp()
    for chosen, batch, expected in (
        (strategy.First(), 2, ["0", "1"]),
        (strategy.Offset(3), 10, ["3", "4"]),
        (strategy.Last(), 2, ["3", "4"]),
        (strategy.Timestamp(time_of_the_last), 10, ["3", "4"]),
        (strategy.Next(), 10, ["0", "1", "2", "3", "4"]),
    ):
        consumer = await sdk.group_consumer(
            client, sdk.fresh_name("group"), stream, topic, polling_strategy=chosen, batch_length=batch
        )
        assert texts(await sdk.consume(consumer, len(expected))) == expected, type(chosen).__name__


@register.scenario()
async def a_group_that_is_missing_is_not_made_unless_asked_for(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    missing = sdk.fresh_name("missing")

    async def begin(topic: str, **arguments: Any) -> None:
        await sdk.consume(await sdk.group_consumer(client, missing, stream, topic, **arguments), 1)

    await refused(sdk, "group name missing", begin(topic, create_consumer_group_if_not_exists=False))
    await refused(sdk, "topic name missing", begin(missing, init_retries=1, init_retry_interval=MOMENT))


Queues = tuple["asyncio.Queue[Any]", "asyncio.Queue[Any]"]


async def both_have_joined(sdk: Sdk, client: Any, stream: str, topic: str, queues: Queues) -> None:
    """Send to all four partitions until both members have been given something; leave nothing in the queues."""

    def given_count() -> int:
        return sum(queue.qsize() for queue in queues)

    for round_number in range(1, 100):
        for index in range(4):
            await sdk.send(client, stream, topic, ["early"], index=index)
        await until(lambda goal=4 * round_number: given_count() >= goal, "all of them have come")  # type: ignore[misc]
        if all(queue.qsize() for queue in queues):
            break
    for queue in queues:
        while not queue.empty():
            queue.get_nowait()


@register.scenario()
async def two_members_share_the_partitions(sdk: Sdk) -> None:
    """Four partitions, two members: each message comes once, and a partition's messages all come to one member."""
    clients = [await sdk.client() for _ in range(2)]
    stream, topic = await sdk.topic(clients[0], 4)
    group = sdk.fresh_name("group")
    members = [await sdk.group_consumer(client, group, stream, topic) for client in clients]
    async with sdk.consuming(members[0]) as first, sdk.consuming(members[1]) as second:
        await both_have_joined(sdk, clients[0], stream, topic, (first, second))
        for index in range(4):
            payloads = [f"{index} {number}" for number in range(10)]
            await sdk.send(clients[0], stream, topic, payloads, index=index)
        await until(lambda: first.qsize() + second.qsize() >= 40, "all 40 messages have come")
        shares = [texts([queue.get_nowait() for _ in range(queue.qsize())]) for queue in (first, second)]
    assert sorted(shares[0] + shares[1]) == sorted(f"{index} {number}" for index in range(4) for number in range(10))
    partitions = [{text.split()[0] for text in share} for share in shares]
    assert [len(part) for part in partitions] == [2, 2]
    assert partitions[0].isdisjoint(partitions[1])
    for share in shares:
        for index in range(4):
            own = [text for text in share if text.startswith(f"{index} ")]
            assert own == sorted(own, key=lambda text: int(text.split()[1])), "order within a partition"


@register.scenario()
async def a_member_more_than_partitions_waits_for_nothing(sdk: Sdk) -> None:
    clients = [await sdk.client() for _ in range(2)]
    stream, topic = await sdk.topic(clients[0], 1)
    group = sdk.fresh_name("group")
    members = [await sdk.group_consumer(client, group, stream, topic) for client in clients]
    async with sdk.consuming(members[0]) as first, sdk.consuming(members[1]) as second:
        await sdk.send(clients[0], stream, topic, [f"{number}" for number in range(20)])
        await until(lambda: first.qsize() + second.qsize() >= 20, "all messages have come")
        assert sorted([first.qsize(), second.qsize()]) == [0, 20]
