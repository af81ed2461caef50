"""The examples of the introduction to the core concepts, as a reader would type them.

Only what a release names differently is different: in 0.9 ``stream`` and ``consumer_group`` of the group commands are
called ``stream_id`` and ``group_id``, and a poll says who polls; before 0.9, the high-level consumer makes and joins
the group.
"""

from typing import Any

from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import Sdk

register = Register()


@register.scenario()
async def the_examples_of_the_core_concepts_work(sdk: Sdk) -> None:
    orders, events = sdk.fresh_name("orders"), "order-events"
    client = await sdk.client()
    await client.create_stream(name=orders)
    await sdk.create_topic(
        client,
        stream=orders,
        name=events,
        partitions_count=4,
    )
    assert (await client.get_topic(orders, events)).partitions_count == 4

    messages = [sdk.iggy.SendMessage(f"order {number}") for number in range(5)]
    await client.send_messages(stream=orders, topic=events, partitioning=1, messages=messages)

    async def poll(strategy: Any, auto_commit: bool = True) -> list[str]:
        arguments: dict[str, Any] = {} if sdk.is_classic else {"consumer": sdk.iggy.Consumer.Single("reader")}
        polled = await client.poll_messages(
            stream=orders,
            topic=events,
            partition_id=1,
            polling_strategy=strategy,
            count=2,
            auto_commit=auto_commit,
            **arguments,
        )
        return [message.payload().decode() for message in polled]

    strategy = sdk.iggy.PollingStrategy
    assert await poll(strategy.First(), auto_commit=False) == ["order 0", "order 1"]
    assert await poll(strategy.Offset(2), auto_commit=False) == ["order 2", "order 3"]
    assert await poll(strategy.Last(), auto_commit=False) == ["order 3", "order 4"]
    assert await poll(strategy.Next(), auto_commit=False) == ["order 0", "order 1"], "process first, then commit"
    assert await poll(strategy.Next()) == ["order 0", "order 1"]
    assert await poll(strategy.Next()) == ["order 2", "order 3"]
    assert await poll(strategy.Next()) == ["order 4"]
    assert await poll(strategy.Next()) == []


@register.scenario(since="0.9")
async def the_consumer_group_of_the_core_concepts_works(sdk: Sdk) -> None:
    orders, events = sdk.fresh_name("orders"), "order-events"
    client = await sdk.client()
    await client.create_stream(name=orders)
    await sdk.create_topic(client, stream=orders, name=events, partitions_count=4)
    await client.create_consumer_group(
        stream_id=orders,
        topic_id=events,
        name="payment-service",
    )
    await client.join_consumer_group(
        stream_id=orders,
        topic_id=events,
        group_id="payment-service",
    )
    for partition in range(4):
        await client.send_messages(orders, events, partition, [sdk.iggy.SendMessage(f"order {partition}")])
    found: list[str] = []
    for _ in range(4):
        polled = await client.poll_messages(
            stream=orders,
            topic=events,
            consumer=sdk.iggy.Consumer.Group("payment-service"),
            polling_strategy=sdk.iggy.PollingStrategy.Next(),
            count=10,
            auto_commit=True,
        )
        found += [message.payload().decode() for message in polled]
    assert sorted(found) == ["order 0", "order 1", "order 2", "order 3"]


@register.scenario(until="0.8")
async def the_consumer_group_of_the_core_concepts_works_before_0_9(sdk: Sdk) -> None:
    orders, events = sdk.fresh_name("orders"), "order-events"
    client = await sdk.client()
    await client.create_stream(name=orders)
    await sdk.create_topic(client, stream=orders, name=events, partitions_count=4)
    consumer = await sdk.group_consumer(client, "payment-service", orders, events)
    for index in range(4):
        await sdk.send(client, orders, events, [f"order {index}"], index=index)
    found = sorted(message.payload().decode() for message in await sdk.consume(consumer, 4))
    assert found == ["order 0", "order 1", "order 2", "order 3"]
