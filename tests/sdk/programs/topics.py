"""Streams and topics: made, looked up, refused."""

from datetime import timedelta

from tests.sdk.programs.refusals import refused
from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import Sdk

register = Register()

GIBIBYTE = 1024 * 1024 * 1024


@register.scenario()
async def a_stream_is_found_by_name_and_by_number(sdk: Sdk) -> None:
    client = await sdk.client()
    name = sdk.fresh_name("stream")
    await client.create_stream(name)
    found = await client.get_stream(name)
    assert (found.name, found.topics_count, found.messages_count) == (name, 0, 0)
    assert (await client.get_stream(found.id)).name == name


@register.scenario()
async def a_topic_is_found_by_name_and_by_number(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 3)
    stream_number = (await client.get_stream(stream)).id
    found = await client.get_topic(stream, topic)
    assert (found.name, found.partitions_count, found.messages_count) == (topic, 3, 0)
    assert (await client.get_topic(stream_number, found.id)).name == topic
    assert (await client.get_stream(stream)).topics_count == 1


@register.scenario()
async def counters_follow_the_messages(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 2)
    await sdk.send(client, stream, topic, ["one", "two"], index=0)
    await sdk.send(client, stream, topic, ["three"], index=1)
    assert (await client.get_topic(stream, topic)).messages_count == 3
    assert (await client.get_stream(stream)).messages_count == 3


@register.scenario()
async def what_is_missing_is_none(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, _ = await sdk.topic(client)
    assert await client.get_stream(sdk.fresh_name("missing")) is None
    assert await client.get_stream(4_000_000_000) is None
    assert await client.get_topic(stream, sdk.fresh_name("missing")) is None
    assert await client.get_topic(sdk.fresh_name("missing"), "topic") is None


@register.scenario()
async def a_name_is_taken_only_once(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    await refused(sdk, "stream name taken", client.create_stream(stream))
    await refused(sdk, "topic name taken", sdk.create_topic(client, stream, topic, 1))
    assert (await client.get_stream(stream)).topics_count == 1


@register.scenario()
async def the_same_topic_name_may_stand_in_two_streams(sdk: Sdk) -> None:
    client = await sdk.client()
    streams = [sdk.fresh_name("stream") for _ in range(2)]
    for stream in streams:
        await client.create_stream(stream)
        await sdk.create_topic(client, stream, "same", 1)
        await sdk.send(client, stream, "same", [stream])
    for stream in streams:
        assert await sdk.payloads(client, stream, "same") == [stream]


@register.scenario()
async def a_topic_needs_its_stream_and_not_too_many_partitions(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, _ = await sdk.topic(client)
    # Over HTTP, the answer is the same for all that a path does not find.
    what = "not found" if sdk.is_http else "stream missing"
    await refused(sdk, what, sdk.create_topic(client, sdk.fresh_name("missing"), "topic", 1))
    await refused(sdk, "too many partitions", sdk.create_topic(client, stream, sdk.fresh_name("topic"), 1001))


@register.scenario()
async def names_are_any_text_of_up_to_255_bytes(sdk: Sdk) -> None:
    client = await sdk.client()
    prefix = sdk.fresh_name("n")
    # Over HTTP, the SDK puts names into the path without escaping slashes.
    separator = "-" if sdk.is_http else "/../"
    for name in (prefix + " with spaces", prefix + separator + "ü€🙂", prefix + "-" + "x" * (254 - len(prefix))):
        await client.create_stream(name)
        await sdk.create_topic(client, name, name, 1)
        assert (await client.get_topic(name, name)).name == name
        assert await client.get_stream(name.upper()) is None, "capitals are other letters"


@register.scenario(until="0.5")
async def numbers_can_be_chosen(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = sdk.fresh_name("stream"), sdk.fresh_name("topic")
    await client.create_stream(stream, 70_001)
    await client.create_topic(stream, topic, 2, None, 80_001)
    assert (await client.get_stream(70_001)).name == stream
    assert (await client.get_topic(70_001, 80_001)).name == topic
    await sdk.send(client, 70_001, 80_001, ["by number"])
    assert await sdk.payloads(client, stream, topic) == ["by number"]
    await refused(sdk, "stream id taken", client.create_stream(sdk.fresh_name("stream"), 70_001))
    other = sdk.fresh_name("stream")
    await client.create_stream(other)
    assert (await client.get_stream(other)).id > 70_001, "numbers are never given out twice"


@register.scenario(until="0.8")
async def every_argument_of_create_topic_is_taken(sdk: Sdk) -> None:
    client = await sdk.client()
    stream = sdk.fresh_name("stream")
    await client.create_stream(stream)
    arguments = {"compression_algorithm": "gzip", "replication_factor": 2}
    if sdk.version >= (0, 7):
        arguments |= {"message_expiry": timedelta(hours=1), "max_topic_size": 2 * GIBIBYTE}
    if sdk.version < (0, 6):
        arguments |= {"topic_id": 17}
    await sdk.create_topic(client, stream=stream, name="with-all", partitions_count=5, **arguments)
    assert (await client.get_topic(stream, "with-all")).partitions_count == 5
    await sdk.create_topic(client, stream=stream, name="uncompressed", partitions_count=1, compression_algorithm="none")
    assert (await client.get_stream(stream)).topics_count == 2


@register.scenario(since="0.7")
async def a_topic_smaller_than_16_mebibytes_is_refused(sdk: Sdk) -> None:
    client = await sdk.client()
    stream = sdk.fresh_name("stream")
    await client.create_stream(stream)
    size = 1024 if sdk.is_classic else sdk.iggy.MaxTopicSize.Custom(1024)
    await refused(sdk, "topic size", sdk.create_topic(client, stream, "tiny", 1, max_topic_size=size))
    assert await client.get_topic(stream, "tiny") is None
