"""What 0.9 can do on the sending side: partitioning, confirmations, ids, headers, the high-level producer."""

import time
from datetime import timedelta
from typing import Any

from tests.sdk.programs.refusals import refused, send_refused
from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import Sdk

register = Register()

KEY_PARTITIONS = {"key-1": 1, "abc": 3, b"k" * 40: 0}
"""Of four partitions: XXH32 of the key, modulo four."""


def confirmed(response: Any) -> list[tuple[int, int]]:
    return [(confirmation.partition_id, confirmation.base_offset) for confirmation in response.confirmations]


@register.scenario(since="0.9")
async def a_send_is_confirmed_with_its_place(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 3)
    for index in (0, 2, 2):
        await sdk.send(client, stream, topic, ["one", "two"], index=index)
    response = await sdk.send(client, stream, topic, ["three"], index=2)
    (confirmation,) = response.confirmations
    assert (confirmation.partition_id, confirmation.base_offset) == (2, 4)
    assert confirmation.stream_id == (await client.get_stream(stream)).id
    assert confirmation.topic_id == (await client.get_topic(stream, topic)).id


@register.scenario(since="0.9")
async def every_partitioning_finds_its_partition(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 4)
    partitioning = sdk.iggy.Partitioning

    async def partition_of(chosen: Any) -> int:
        response = await client.send_messages(stream, topic, chosen, [sdk.message("x")])
        return int(response.confirmations[0].partition_id)

    assert await partition_of(partitioning.partition_id(3)) == 3
    assert await partition_of(2) == 2
    assert [await partition_of(partitioning.balanced()) for _ in range(8)] == [0, 1, 2, 3] * 2
    for key, partition in KEY_PARTITIONS.items():
        assert await partition_of(partitioning.messages_key(key)) == partition
    await send_refused(sdk, "partition missing", partition_of(partitioning.partition_id(4)))


@register.scenario(since="0.9")
async def ids_stay_as_they_were_given(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    chosen = [1, 1, 1 << 64, (1 << 128) - 1]
    messages = [sdk.iggy.SendMessage("x", id=number) for number in chosen]
    await client.send_messages(stream, topic, 0, [*messages, sdk.iggy.SendMessage("no id of its own")])
    found = await sdk.poll(client, stream, topic, sdk.iggy.PollingStrategy.First())
    assert [message.id() for message in found][:4] == chosen
    assert found[4].id() not in (0, *chosen)


def every_header(kinds: Any) -> list[Any]:
    return [
        kinds.Raw(b"\0\xff"),
        kinds.String("text ü"),
        kinds.Bool(True),
        kinds.Int8(-8),
        kinds.Int16(-1600),
        kinds.Int32(-320_000),
        kinds.Int64(-64 << 50),
        kinds.Int128(-128 << 100),
        kinds.UnsignedInt8(200),
        kinds.UnsignedInt16(60_000),
        kinds.UnsignedInt32(4_000_000_000),
        kinds.UnsignedInt64(1 << 63),
        kinds.UnsignedInt128(1 << 127),
        kinds.Float32(0.5),
        kinds.Float64(-1e300),
    ]


@register.scenario(since="0.9")
async def headers_of_every_kind_come_back(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    headers = dict(zip(every_header(sdk.iggy.HeaderKey), every_header(sdk.iggy.HeaderValue), strict=True))
    plain = {"name": "value", "number": 7, "flag": False, "bytes": b"\1\2", "share": 0.25}
    before = time.time_ns() // 1000
    messages = [
        sdk.iggy.SendMessage("typed", user_headers=headers),
        sdk.iggy.SendMessage("plain", user_headers=plain),
        sdk.iggy.SendMessage("wrapped", user_headers=sdk.iggy.UserHeaders(plain)),
        sdk.iggy.SendMessage("none"),
    ]
    await client.send_messages(stream, topic, 0, messages)
    found = await sdk.poll(client, stream, topic, sdk.iggy.PollingStrategy.First())
    assert [message.payload() for message in found] == [b"typed", b"plain", b"wrapped", b"none"]
    assert [(repr(key), repr(value)) for key, value in found[0].user_headers().items()].sort() == [
        (repr(key), repr(value)) for key, value in headers.items()
    ].sort()
    assert dict(found[0].user_headers()) == headers
    assert found[1].user_headers().to_scalar_dict() == plain
    assert found[2].user_headers().to_scalar_dict() == plain
    assert not found[3].user_headers()
    assert all(before - 1_000_000 < message.origin_timestamp() <= message.timestamp() for message in found)


@register.scenario(since="0.9")
async def a_producer_sends_in_every_way_it_offers(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 2)
    partitioning = sdk.iggy.Partitioning
    producer = await client.producer(stream, topic, partitioning=partitioning.partition_id(1))
    assert confirmed(await producer.send([sdk.message("a"), sdk.message("b")])) == [(1, 0)]
    assert confirmed(await producer.send_one(sdk.message("c"))) == [(1, 2)]
    other_partition = partitioning.partition_id(0)
    assert confirmed(await producer.send_with_partitioning([sdk.message("d")], other_partition)) == [(0, 0)]
    other_stream, other_topic = await sdk.topic(client)
    assert confirmed(await producer.send_to(other_stream, other_topic, [sdk.message("e")], other_partition)) == [(0, 0)]
    await producer.shutdown()
    await producer.shutdown()
    assert await sdk.payloads(client, stream, topic, 1) == ["a", "b", "c"]
    assert await sdk.payloads(client, stream, topic, 0) == ["d"]
    assert await sdk.payloads(client, other_stream, other_topic) == ["e"]


def retries(sdk: Sdk, count: int, interval: timedelta | None) -> dict[str, Any]:
    """How often a send is tried again; from 0.10 on, the SDK decides that itself."""
    return {} if sdk.version >= (0, 10) else {"send_retries": count, "send_retry_interval": interval}


@register.scenario(since="0.9")
async def a_producer_makes_its_stream_and_topic(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = sdk.fresh_name("stream"), sdk.fresh_name("topic")
    for _ in range(2):
        producer = await client.producer(
            stream,
            topic,
            mode=sdk.iggy.DirectProducerConfig(batch_length=3, linger_time=timedelta()),
            create_stream_if_not_exists=True,
            create_topic_if_not_exists=True,
            topic_partitions_count=3,
            topic_message_expiry=sdk.iggy.IggyExpiry.NeverExpire(),
            topic_max_size=sdk.iggy.MaxTopicSize.Unlimited(),
            **retries(sdk, 2, timedelta(milliseconds=10)),
        )
        async with producer:
            response = await producer.send([sdk.message(f"{number}") for number in range(10)])
            assert len(response.confirmations) == 4, "in requests of three at most"
    assert (await client.get_topic(stream, topic)).partitions_count == 3
    assert (await client.get_topic(stream, topic)).messages_count == 20
    missing = sdk.fresh_name("missing")
    await refused(sdk, "stream name missing", client.producer(missing, topic, create_stream_if_not_exists=False))
    await refused(sdk, "topic name missing", client.producer(stream, missing, create_topic_if_not_exists=False))


@register.scenario(since="0.9")
async def a_background_producer_has_sent_all_when_it_is_closed(sdk: Sdk) -> None:
    client = await sdk.client()
    pressure = sdk.iggy.BackpressureMode
    timed = pressure.block_with_timeout(timedelta(seconds=5))
    assert (timed.timeout, pressure.block().timeout) == (timedelta(seconds=5), None)
    for failure_mode in (pressure.block(), timed, pressure.fail_immediately()):
        for sharding in (sdk.iggy.ProducerSharding.ORDERED, sdk.iggy.ProducerSharding.BALANCED):
            stream, topic = await sdk.topic(client)
            mode = sdk.iggy.BackgroundProducerConfig(
                num_shards=2,
                linger_time=timedelta(milliseconds=5),
                batch_size=100_000,
                batch_length=10,
                max_buffer_size=10_000_000,
                failure_mode=failure_mode,
                max_in_flight=2,
                sharding=sharding,
            )
            partitioning = sdk.iggy.Partitioning.partition_id(0)
            async with await client.producer(stream, topic, partitioning=partitioning, mode=mode) as producer:
                for number in range(100):
                    assert (await producer.send_one(sdk.message(f"{number}"))).confirmations == []
            found = await sdk.payloads(client, stream, topic)
            expected = [f"{number}" for number in range(100)]
            if sharding == sdk.iggy.ProducerSharding.ORDERED:
                assert found == expected
            assert sorted(found) == sorted(expected)


@register.scenario(since="0.9")
async def the_configuration_of_a_producer_is_what_was_given(sdk: Sdk) -> None:
    mode = sdk.iggy.BackgroundProducerConfig(num_shards=3, linger_time=timedelta(milliseconds=7), batch_size=11)
    assert (mode.num_shards, mode.linger_time, mode.batch_size) == (3, timedelta(milliseconds=7), 11)
    assert (mode.batch_length, mode.max_buffer_size, mode.max_in_flight) == (1000, 32 * 1024 * 1024, 1)
    assert mode.failure_mode == sdk.iggy.BackpressureMode.block()
    assert mode.sharding == sdk.iggy.ProducerSharding.ORDERED
    direct = sdk.iggy.DirectProducerConfig(batch_length=5, linger_time=timedelta(seconds=1))
    assert (direct.batch_length, direct.linger_time) == (5, timedelta(seconds=1))


@register.scenario(since="0.9")
async def a_failed_send_says_what_failed(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    partitioning = sdk.iggy.Partitioning.partition_id(0)
    producer = await client.producer(stream, topic, partitioning=partitioning, **retries(sdk, 1, None))
    await producer.send_one(sdk.message("kept"))
    await client.delete_topic(stream, topic)
    failure: Any = None
    try:
        await producer.send([sdk.message("lost"), sdk.message("too")])
    except sdk.iggy.ProducerSendError as error:
        failure = error
    assert failure is not None, "the topic is gone, and the send was confirmed"
    assert len(failure.failed) == 2
    assert failure.committed == []
    assert failure.cause
