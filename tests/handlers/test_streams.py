"""Streams: made, listed with real sums, renamed, purged, deleted."""

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from tests.handlers.messaging import add_topic, poll_command, send, texts
from tests.handlers.scenes import Scene


async def test_a_new_stream_is_empty_and_says_when_it_was_made(scene: Scene) -> None:
    reply = await scene.ask(scene.root, c.CreateStream("orders"))
    assert reply == r.StreamInfo(0, scene.clock.now(), 0, 0, 0, "orders")


async def test_a_stream_shows_the_sums_of_its_topics(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "one", "two", to=0)
    await send(scene, "three", to=1)
    reply = await scene.ask(scene.root, c.GetStream("s"))
    assert isinstance(reply, r.StreamDetails)
    # 256 bytes a batch, 48 and the payload a message: as the server of SDK 0.9 counts.
    size = 2 * 256 + 3 * 48 + len("onetwothree")
    assert (reply.stream.topic_count, reply.stream.message_count, reply.stream.size) == (1, 3, size)
    assert [(topic.name, topic.partition_count, topic.message_count, topic.size) for topic in reply.topics] == [
        ("t", 2, 3, size)
    ]
    listed = await scene.ask(scene.root, c.GetStreams())
    assert listed == r.StreamList([reply.stream])


async def test_lists_are_in_the_order_of_ids(scene: Scene) -> None:
    for name in ("c", "a", "b"):
        await scene.ask(scene.root, c.CreateStream(name))
    listed = await scene.ask(scene.root, c.GetStreams())
    assert isinstance(listed, r.StreamList)
    assert [(stream.stream_id, stream.name) for stream in listed.streams] == [(0, "c"), (1, "a"), (2, "b")]


async def test_an_id_is_never_used_again(scene: Scene) -> None:
    await scene.ask(scene.root, c.CreateStream("a", stream_id=7))
    await scene.ask(scene.root, c.DeleteStream(7))
    assert await scene.refusal(scene.root, c.CreateStream("b", stream_id=7)) is ErrorCode.STREAM_ID_ALREADY_EXISTS


async def test_what_is_not_there_has_its_own_number(scene: Scene) -> None:
    for command in (
        c.GetStream("nowhere"),
        c.GetStream(5),
        c.UpdateStream("nowhere", "x"),
        c.DeleteStream("nowhere"),
        c.PurgeStream("nowhere"),
    ):
        assert await scene.refusal(scene.root, command) is ErrorCode.STREAM_NOT_FOUND


async def test_a_number_never_finds_a_name(scene: Scene) -> None:
    await scene.ask(scene.root, c.CreateStream("1"))
    assert await scene.refusal(scene.root, c.GetStream(1)) is ErrorCode.STREAM_NOT_FOUND


async def test_a_name_belongs_to_one_stream(scene: Scene) -> None:
    await scene.ask(scene.root, c.CreateStream("a"))
    await scene.ask(scene.root, c.CreateStream("b"))
    assert await scene.refusal(scene.root, c.CreateStream("a")) is ErrorCode.STREAM_NAME_ALREADY_EXISTS
    assert await scene.refusal(scene.root, c.UpdateStream("b", "a")) is ErrorCode.STREAM_NAME_ALREADY_EXISTS
    await scene.ask(scene.root, c.UpdateStream("b", "b"))
    await scene.ask(scene.root, c.UpdateStream("b", "c"))
    assert await scene.refusal(scene.root, c.GetStream("b")) is ErrorCode.STREAM_NOT_FOUND


async def test_a_purge_empties_every_topic_and_numbering_goes_on(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "one", "two")
    await scene.ask(scene.root, c.PurgeStream("s"))
    assert await texts(scene, poll_command()) == []
    assert (await send(scene, "three")).base_offset == 2
    assert await texts(scene, poll_command()) == ["three"]


async def test_a_deleted_stream_takes_nothing_more(scene: Scene) -> None:
    await add_topic(scene)
    await scene.ask(scene.root, c.DeleteStream("s"))
    assert await scene.refusal(scene.root, poll_command()) is ErrorCode.STREAM_NOT_FOUND
    assert scene.broker.partitions.topics == {}
