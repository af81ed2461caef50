"""Sending and polling."""

import itertools
import time
from typing import Any

from tests.sdk.programs.refusals import refused, send_refused
from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import Sdk

register = Register()


def offsets(messages: list[Any]) -> list[int]:
    return [message.offset() for message in messages]


@register.scenario()
async def what_is_sent_is_polled_with_all_its_facts(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 2)
    before = time.time_ns() // 1000
    await sdk.send(client, stream, topic, ["hello", "wörld"], index=1)
    messages = await sdk.poll(client, stream, topic, sdk.iggy.PollingStrategy.First(), index=1)
    assert [message.payload() for message in messages] == [b"hello", "wörld".encode()]
    assert offsets(messages) == [0, 1]
    assert [message.length() for message in messages] == [5, 6]
    assert all(before - 1_000_000 < message.timestamp() < before + 60_000_000 for message in messages)
    assert all(0 < message.id() < 1 << 128 for message in messages)
    assert messages[0].id() != messages[1].id()
    assert all(0 < message.checksum() < 1 << 64 for message in messages)
    if sdk.version >= (0, 7):
        assert [message.partition_id() for message in messages] == [1, 1]
    assert await sdk.poll(client, stream, topic, sdk.iggy.PollingStrategy.First(), index=0) == []


@register.scenario(since="0.6")
async def payloads_are_text_or_bytes(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    every_byte = bytes(range(256))
    await sdk.send(client, stream, topic, ["text", every_byte, b"\0"])
    messages = await sdk.poll(client, stream, topic, sdk.iggy.PollingStrategy.First())
    assert [message.payload() for message in messages] == [b"text", every_byte, b"\0"]


@register.scenario()
async def batches_of_any_shape_come_back_whole(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    batches = [
        ["x" * 1000] * 1000,
        ["y" * (1 + 37 * number % 1800) for number in range(500)],
        ["z" * 2_000_000],
        ["short"],
    ]
    for batch in batches:
        await sdk.send(client, stream, topic, batch)
    expected = list(itertools.chain.from_iterable(batches))
    found: list[Any] = []
    while len(found) < len(expected):
        part = await sdk.poll(client, stream, topic, sdk.iggy.PollingStrategy.Offset(len(found)), count=700)
        assert 0 < len(part) <= 700
        found += part
    assert offsets(found) == list(range(len(expected)))
    assert [message.payload().decode() for message in found] == expected
    assert len({message.id() for message in found}) == len(found)


@register.scenario()
async def messages_near_the_limit_come_one_to_a_poll(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    size = 9_900_000 if sdk.version < (0, 6) else 20_000_000
    for letter in "ab":
        await sdk.send(client, stream, topic, [letter * size])
    for offset, letter in enumerate("ab"):
        (message,) = await sdk.poll(client, stream, topic, sdk.iggy.PollingStrategy.Offset(offset))
        assert message.payload() == letter.encode() * size


@register.scenario()
async def every_polling_strategy_begins_where_it_says(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    for number in range(10):
        await sdk.send(client, stream, topic, [f"message {number}"])
    strategy = sdk.iggy.PollingStrategy
    everything = await sdk.poll(client, stream, topic, strategy.First())
    assert offsets(everything) == list(range(10))
    times = [message.timestamp() for message in everything]
    assert times == sorted(times)

    async def polled(chosen: Any, count: int = 1000) -> list[int]:
        return offsets(await sdk.poll(client, stream, topic, chosen, count=count))

    assert await polled(strategy.First(), 3) == [0, 1, 2]
    assert await polled(strategy.Last(), 3) == [7, 8, 9]
    assert await polled(strategy.Last(), 1) == [9]
    assert await polled(strategy.Last(), 100) == list(range(10))
    assert await polled(strategy.Offset(4), 2) == [4, 5]
    assert await polled(strategy.Offset(10)) == []
    assert await polled(strategy.Offset(1 << 40)) == []
    first_of_time = times.index(times[5])
    assert await polled(strategy.Timestamp(times[5])) == list(range(first_of_time, 10))
    assert await polled(strategy.Timestamp(0), 2) == [0, 1]
    assert await polled(strategy.Timestamp(times[-1] + 1_000_000)) == []
    assert await polled(strategy.Next(), 4) == [0, 1, 2, 3]
    assert await polled(strategy.Next(), 4) == [0, 1, 2, 3], "nothing was committed"


@register.scenario()
async def next_goes_on_behind_what_was_committed(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 2)
    await sdk.send(client, stream, topic, [f"{number}" for number in range(7)], index=1)

    async def following(client: Any, count: int = 3) -> list[int]:
        strategy = sdk.iggy.PollingStrategy.Next()
        return offsets(await sdk.poll(client, stream, topic, strategy, count=count, auto_commit=True, index=1))

    assert await following(client) == [0, 1, 2]
    assert await following(client) == [3, 4, 5]
    # The position belongs to the consumer, not to the connection.
    assert await following(await sdk.client()) == [6]
    assert await following(client) == []
    await sdk.send(client, stream, topic, ["seven"], index=1)
    assert await following(client) == [7]


@register.scenario()
async def auto_commit_counts_for_every_strategy_and_never_goes_back(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    strategy = sdk.iggy.PollingStrategy
    await sdk.send(client, stream, topic, [f"{number}" for number in range(10)])
    await sdk.poll(client, stream, topic, strategy.Offset(4), count=2, auto_commit=True)
    assert offsets(await sdk.poll(client, stream, topic, strategy.Next())) == [6, 7, 8, 9]
    await sdk.poll(client, stream, topic, strategy.First(), count=1, auto_commit=True)
    assert offsets(await sdk.poll(client, stream, topic, strategy.Next())) == [6, 7, 8, 9]
    await sdk.poll(client, stream, topic, strategy.Last(), count=1, auto_commit=True)
    assert await sdk.poll(client, stream, topic, strategy.Next()) == []


@register.scenario()
async def messages_are_found_by_numbers_as_by_names(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    stream_number = (await client.get_stream(stream)).id
    topic_number = (await client.get_topic(stream, topic)).id
    await sdk.send(client, stream_number, topic_number, ["by number"])
    await sdk.send(client, stream, topic, ["by name"])
    assert await sdk.payloads(client, stream_number, topic_number) == ["by number", "by name"]


@register.scenario()
async def nothing_is_created_by_sending_or_polling(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    missing = sdk.fresh_name("missing")
    first = sdk.iggy.PollingStrategy.First()
    await send_refused(sdk, "stream missing", sdk.send(client, missing, topic, ["lost"]))
    await refused(sdk, "stream missing", sdk.poll(client, missing, topic, first))
    await send_refused(sdk, "topic missing", sdk.send(client, stream, missing, ["lost"]))
    await refused(sdk, "topic missing", sdk.poll(client, stream, missing, first))
    await send_refused(sdk, "partition missing", sdk.send(client, stream, topic, ["lost"], index=99))
    await refused(sdk, "partition missing", sdk.poll(client, stream, topic, first, index=99))
    assert await client.get_stream(missing) is None
    assert await client.get_topic(stream, missing) is None
    await sdk.send(client, stream, topic, ["kept"])
    assert await sdk.payloads(client, stream, topic) == ["kept"]


@register.scenario()
async def a_poll_of_nothing_is_empty(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    strategy = sdk.iggy.PollingStrategy
    for chosen in (strategy.First(), strategy.Last(), strategy.Next(), strategy.Offset(0), strategy.Timestamp(1)):
        assert await sdk.poll(client, stream, topic, chosen, auto_commit=True) == []
