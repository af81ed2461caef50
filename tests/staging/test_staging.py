"""Staged writes as a client sees them: nothing before the publish, everything after it, once."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.client.client import Client
from courser.client.connection import Connection
from courser.client.messages import Partitioning, PollingStrategy, SendMessage
from courser.client.targets import Target
from courser.errors import CourserError, ErrorCode, InvalidRequest, NotAllowed, NotFound, ServerFailure
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions
from courser.testing.broker import TestBroker
from tests.fakes.clocks import ManualClock

SINK = "a query"
MIB = 1024 * 1024
DAY = 86_400_000_000
DECADE = 3650 * DAY
MAY_SEND = Permissions(streams={0: StreamPermissions(send_messages=True)})


async def stage_part(client: Client, batch: int, part: int, attempt: int, *texts: str, partition: int = 0) -> None:
    """A part with a chunk for each text."""
    for chunk, text in enumerate(texts):
        await client.stage(SINK, batch, part, attempt, chunk, "s/t", None, partition, text)
    await client.finish_stage(SINK, batch, part, attempt, len(texts))


async def read(client: Client, partition: int = 0) -> list[str]:
    messages = await client.poll_messages("s/t", None, partition, PollingStrategy.First(), 100, auto_commit=False)
    return [bytes(message.payload).decode() for message in messages]


async def prepared(broker: TestBroker) -> Client:
    client = await broker.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t", 2)
    return client


async def code_of(work: object) -> ErrorCode:
    with pytest.raises(CourserError) as raised:
        await work  # type: ignore[misc]
    return raised.value.code


async def test_a_publish_shows_all_parts_at_once() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 10, "a", "b")
        await stage_part(client, 0, 1, 11, "c", partition=1)
        assert await read(client) + await read(client, 1) == []
        published = await client.publish_staged(SINK, 0, {0: 10, 1: 11})
        assert (published.is_repeated, published.message_count) == (False, 3)
        assert (await read(client), await read(client, 1)) == (["a", "b"], ["c"])
        await broker.broker.publishing.idle()
        sink = await client.get_sink(SINK)
        assert (sink.batch, sink.is_open, sink.part_count, sink.staged_size) == (0, False, 0, 0)


async def test_a_repeated_publish_changes_nothing() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 3, 0, 1, "a")
        await client.publish_staged(SINK, 3, {0: 1})
        assert (await client.publish_staged(SINK, 3, {0: 1})).is_repeated
        assert (await client.publish_staged(SINK, 2, {0: 9})).is_repeated
        assert await read(client) == ["a"]


async def test_of_several_attempts_only_the_chosen_one_is_seen() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "first try")
        await stage_part(client, 0, 0, 2, "second try")
        # A zombie, still at work.
        await client.stage(SINK, 0, 0, 3, 0, "s/t", None, 0, "third try")
        await client.publish_staged(SINK, 0, {0: 2})
        assert await read(client) == ["second try"]
        await broker.broker.publishing.idle()
        late = client.stage(SINK, 0, 0, 3, 1, "s/t", None, 0, "too late")
        assert await code_of(late) is ErrorCode.BATCH_ALREADY_PUBLISHED
        assert await code_of(client.finish_stage(SINK, 0, 0, 3, 1)) is ErrorCode.BATCH_ALREADY_PUBLISHED
        assert await read(client) == ["second try"]
        assert (await client.get_sink(SINK)).part_count == 0


async def test_a_repeated_chunk_is_not_added_twice() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        for chunk in (0, 0, 1, 1, 0):
            await client.stage(SINK, 0, 0, 1, chunk, "s/t", None, 0, f"chunk {chunk}")
        await client.finish_stage(SINK, 0, 0, 1, 2)
        await client.finish_stage(SINK, 0, 0, 1, 2)
        await client.publish_staged(SINK, 0, {0: 1})
        assert await read(client) == ["chunk 0", "chunk 1"]


async def test_a_part_that_is_not_whole_is_not_published() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await client.stage(SINK, 0, 0, 1, 0, "s/t", None, 0, "a")
        gap = client.stage(SINK, 0, 0, 1, 2, "s/t", None, 0, "c")
        assert await code_of(gap) is ErrorCode.STAGED_PART_INCOMPLETE
        assert await code_of(client.finish_stage(SINK, 0, 0, 1, 2)) is ErrorCode.STAGED_PART_INCOMPLETE
        assert await code_of(client.publish_staged(SINK, 0, {0: 1})) is ErrorCode.STAGED_PART_INCOMPLETE
        assert await code_of(client.publish_staged(SINK, 0, {0: 7})) is ErrorCode.STAGED_PART_NOT_FOUND
        assert await read(client) == []
        # None of this is in the way of the right one.
        await client.stage(SINK, 0, 0, 1, 1, "s/t", None, 0, "b")
        await client.finish_stage(SINK, 0, 0, 1, 2)
        await client.publish_staged(SINK, 0, {0: 1})
        assert await read(client) == ["a", "b"]


async def test_a_deleted_topic_is_an_error_that_does_not_wedge_the_sink() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a")
        await client.delete_topic("s", "t")
        with pytest.raises(NotFound, match="was deleted; discard them") as raised:
            await client.publish_staged(SINK, 0, {0: 1})
        assert raised.value.code is ErrorCode.STAGED_TARGET_GONE
        await client.create_topic("s", "t", 1)
        # Another topic of the same name: what was staged is not for it.
        assert await code_of(client.publish_staged(SINK, 0, {0: 1})) is ErrorCode.STAGED_TARGET_GONE
        await client.discard_staged(SINK, 0)
        await stage_part(client, 0, 0, 2, "b")
        await client.publish_staged(SINK, 0, {0: 2})
        assert await read(client) == ["b"]


async def test_keys_choose_partitions_and_are_kept() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        key = Partitioning.key("order-7")
        await client.stage(SINK, 0, 0, 1, 0, "s/t", None, key, [SendMessage("x", headers={"a": "b"})])
        sent = await client.send_messages("s/t", None, key, "sent")
        await client.finish_stage(SINK, 0, 0, 1, 1)
        await client.publish_staged(SINK, 0, {0: 1})
        messages = await client.poll_messages(
            "s/t", None, sent.partition_id, PollingStrategy.First(), 10, auto_commit=False
        )
        assert [bytes(message.payload) for message in messages] == [b"sent", b"x"]
        assert messages[1].key == b"order-7"


async def test_who_may_not_send_can_neither_stage_nor_publish() -> None:
    async with TestBroker() as broker:
        root = await prepared(broker)
        await root.create_user("writer", "secret-secret", permissions=MAY_SEND)
        writer = await broker.connect(username="writer", password="secret-secret")
        # To choose partitions by key, a writer has to know how many there are.
        assert len((await writer.get_partition_bounds("s/t")).partitions) == 2
        await stage_part(writer, 0, 0, 1, "a")
        await root.update_permissions("writer", None)
        with pytest.raises(NotAllowed):
            await writer.stage(SINK, 0, 1, 1, 0, "s/t", None, 0, "b")
        with pytest.raises(NotAllowed):
            await writer.publish_staged(SINK, 0, {0: 1})
        await root.update_permissions("writer", MAY_SEND)
        await writer.publish_staged(SINK, 0, {0: 1})
        assert await read(root) == ["a"]


async def test_a_sink_belongs_to_its_user() -> None:
    async with TestBroker() as broker:
        root = await prepared(broker)
        for name in ("writer", "other"):
            await root.create_user(name, "secret-secret", permissions=MAY_SEND)
        writer = await broker.connect(username="writer", password="secret-secret")
        other = await broker.connect(username="other", password="secret-secret")
        await stage_part(writer, 0, 0, 1, "a")
        assert await code_of(other.publish_staged(SINK, 0, {0: 1})) is ErrorCode.STAGED_PART_NOT_FOUND
        await writer.publish_staged(SINK, 0, {0: 1})
        with pytest.raises(NotAllowed, match="does not belong to user"):
            await other.publish_staged(SINK, 5, {})
        with pytest.raises(NotAllowed):
            await other.discard_staged(SINK, forget=True)
        await root.discard_staged(SINK, forget=True)
        assert (await writer.get_sink(SINK)).batch is None


async def test_staged_bytes_have_a_limit() -> None:
    async with TestBroker(settings=BrokerSettings(staging_size_max=4096)) as broker:
        client = await prepared(broker)
        await client.stage(SINK, 0, 0, 1, 0, "s/t", None, 0, "x" * 1000)
        with pytest.raises(ServerFailure, match=r"system\.staging\.size_max") as raised:
            await client.stage(SINK, 0, 0, 1, 1, "s/t", None, 0, "x" * 3000)
        assert raised.value.code is ErrorCode.STAGING_FULL
        await client.discard_staged(SINK)
        await client.stage(SINK, 0, 0, 2, 0, "s/t", None, 0, "x" * 3000)


async def test_one_user_leaves_room_to_the_others() -> None:
    limits = BrokerLimits(unfinished_count_of_user_max=2, part_count_of_user_max=3)
    async with TestBroker(settings=BrokerSettings(limits=limits)) as broker:
        root = await prepared(broker)
        await root.create_user("writer", "secret-secret", permissions=MAY_SEND)
        writer = await broker.connect(username="writer", password="secret-secret")
        for part in range(2):
            await writer.stage(SINK, 0, part, 1, 0, "s/t", None, 0, "x")
        assert await code_of(writer.stage(SINK, 0, 2, 1, 0, "s/t", None, 0, "x")) is ErrorCode.STAGING_FULL
        await root.stage("other", 0, 0, 1, 0, "s/t", None, 0, "x")
        for part in range(2):
            await writer.finish_stage(SINK, 0, part, 1, 1)
        await writer.stage(SINK, 0, 2, 1, 0, "s/t", None, 0, "x")
        assert await code_of(writer.stage(SINK, 0, 3, 1, 0, "s/t", None, 0, "x")) is ErrorCode.STAGING_FULL
        await root.stage("other", 0, 1, 1, 0, "s/t", None, 0, "x")


async def test_all_users_together_stage_so_many_parts() -> None:
    limits = BrokerLimits(unfinished_count_max=1, part_count_max=2)
    async with TestBroker(settings=BrokerSettings(limits=limits)) as broker:
        client = await prepared(broker)
        await client.stage(SINK, 0, 0, 1, 0, "s/t", None, 0, "x")
        with pytest.raises(ServerFailure, match="1 parts are already being staged"):
            await client.stage(SINK, 0, 1, 1, 0, "s/t", None, 0, "x")
        await client.finish_stage(SINK, 0, 0, 1, 1)
        await stage_part(client, 0, 1, 1, "x")
        with pytest.raises(ServerFailure, match="the limit of 2 staged parts is reached"):
            await client.stage(SINK, 0, 2, 1, 0, "s/t", None, 0, "x")
        await client.discard_staged(SINK)
        await client.stage(SINK, 0, 2, 1, 0, "s/t", None, 0, "x")


async def test_one_user_leaves_sinks_to_the_others() -> None:
    async with TestBroker(settings=BrokerSettings(limits=BrokerLimits(sink_count_of_user_max=2))) as broker:
        root = await prepared(broker)
        await root.create_user("writer", "secret-secret", permissions=MAY_SEND)
        writer = await broker.connect(username="writer", password="secret-secret")
        for sink in ("a", "b"):
            await writer.publish_staged(sink, 0, {})
        assert await code_of(writer.publish_staged("c", 0, {})) is ErrorCode.TOO_MANY_SINKS
        await writer.publish_staged("a", 1, {})
        await root.publish_staged("d", 0, {})


async def test_a_publish_that_is_refused_takes_no_room_from_sends() -> None:
    settings = BrokerSettings(delete_oldest_segments=False, limits=BrokerLimits(sink_count_of_user_max=1))
    async with TestBroker(settings=settings) as broker:
        client = await broker.connect()
        await client.create_stream("s")
        await client.create_topic("s", "t", 1, max_topic_size=16 * MIB)
        await client.publish_staged("a", 0, {})
        await client.stage("b", 0, 0, 1, 0, "s/t", None, 0, "x" * 5 * MIB)
        await client.finish_stage("b", 0, 0, 1, 1)
        for _ in range(4):
            assert await code_of(client.publish_staged("b", 0, {0: 1})) is ErrorCode.TOO_MANY_SINKS
        for _ in range(3):
            await client.send_messages("s/t", None, 0, "x" * 5 * MIB)
        assert await code_of(client.send_messages("s/t", None, 0, "x" * 5 * MIB)) is ErrorCode.TOPIC_FULL


async def test_parts_that_are_published_make_room_for_the_next_batch() -> None:
    async with TestBroker(settings=BrokerSettings(staging_size_max=4096)) as broker:
        client = await prepared(broker)
        for batch in range(5):
            # Behind the answer the parts of the batch before may still be there.
            await stage_part(client, batch, 0, 1, "x" * 3000)
            await client.publish_staged(SINK, batch, {0: 1})


async def test_what_nobody_publishes_is_removed_when_it_is_old(tmp_path: Path) -> None:
    async with TestBroker(settings=BrokerSettings(staging_expiry=0)) as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a")
        await broker.broker.look_after_staging()
        assert (await client.get_sink(SINK)).part_count == 0
        assert list(broker.broker.staging.directory.iterdir()) == []
        assert await code_of(client.publish_staged(SINK, 0, {0: 1})) is ErrorCode.STAGED_PART_NOT_FOUND


@pytest.mark.parametrize("step", [-DECADE, DECADE])
async def test_staged_parts_expire_by_the_time_that_passes_whatever_the_clock_says(step: int) -> None:
    clock = ManualClock()
    async with TestBroker(settings=BrokerSettings(staging_expiry=DAY), clock=clock) as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a")
        clock.jump(step)
        clock.advance(DAY)
        await broker.broker.look_after_staging()
        assert (await client.get_sink(SINK)).part_count == 1
        clock.advance(1)
        await broker.broker.look_after_staging()
        assert (await client.get_sink(SINK)).part_count == 0


async def test_the_same_part_twice_is_refused() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        with pytest.raises(InvalidRequest, match="numbered from 0"):
            await client.publish_staged(SINK, 2**63, {})


async def test_a_part_goes_on_after_a_restart_of_the_server() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await client.stage(SINK, 0, 0, 1, 0, "s/t", None, 0, "before")
        await stage_part(client, 0, 1, 1, "finished")
        await broker.restart()
        await client.stage(SINK, 0, 0, 1, 0, "s/t", None, 0, "before")
        await client.stage(SINK, 0, 0, 1, 1, "s/t", None, 0, "behind")
        await client.finish_stage(SINK, 0, 0, 1, 2)
        await broker.restart()
        await client.publish_staged(SINK, 0, {0: 1, 1: 1})
        assert await read(client) == ["before", "behind", "finished"]
        await broker.restart()
        assert (await client.get_sink(SINK)).batch == 0
        assert (await client.publish_staged(SINK, 0, {0: 1, 1: 1})).is_repeated


async def test_a_publish_that_takes_longer_than_a_request_may_is_asked_for_again() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a")
        connections: list[Connection] = []
        is_third = asyncio.Event()

        async def dial(target: Target) -> Connection:
            # Long enough for a login. The third one has all the time that it wants.
            wanted = replace(target, request_timeout=0.5) if len(connections) < 2 else target
            connections.append(await broker.dial(wanted))
            if len(connections) == 3:
                is_third.set()
            return connections[-1]

        async with Client(broker.target(), dial) as hasty:
            # Nothing is journaled meanwhile. Each time that is up ends a connection.
            async with broker.broker.catalog._turn:
                publishing = asyncio.create_task(hasty.publish_staged(SINK, 0, {0: 1}))
                await is_third.wait()
            await publishing
        assert await read(client) == ["a"]


async def test_two_publishes_of_one_batch_at_a_time_are_one() -> None:
    async with TestBroker() as broker:
        client, other = await prepared(broker), await broker.connect()
        await stage_part(client, 0, 0, 1, "a")
        await stage_part(client, 0, 0, 2, "b")
        both = await asyncio.gather(client.publish_staged(SINK, 0, {0: 1}), other.publish_staged(SINK, 0, {0: 2}))
        assert sorted(published.is_repeated for published in both) == [False, True]
        assert len(await read(client)) == 1


async def test_a_sink_of_a_job_is_forgotten_after_its_time() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a")
        await client.publish_staged(SINK, 0, {0: 1}, keep=0.000001)
        assert (await client.get_sink(SINK)).batch == 0
        await broker.broker.publishing.idle()
        await client.publish_staged("another", 0, {})
        assert (await client.get_sink(SINK)).batch is None


async def test_sinks_are_listed_whether_they_have_published_or_only_staged() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        assert await client.get_sinks() == []
        await stage_part(client, 0, 0, 10, "a", "b")
        await client.publish_staged(SINK, 0, {0: 10}, keep=60)
        await broker.broker.publishing.idle()
        await stage_part(client, 1, 0, 11, "c")
        await client.stage(SINK, 1, 1, 12, 0, "s/t", None, 0, "d")
        await client.stage("another", 7, 0, 1, 0, "s/t", None, 0, "e")
        published, staged = await client.get_sinks()
        assert (staged.name, staged.batch, staged.published_at, staged.part_count) == ("another", None, 0, 1)
        assert (published.name, published.batch, published.is_open, published.part_count) == (SINK, 0, False, 2)
        assert published.expires_at == published.published_at + 60_000_000
        finished, unfinished = await client.get_staged_parts(SINK)
        assert (finished.batch, finished.part, finished.attempt, finished.message_count) == (1, 0, 11, 1)
        assert (finished.is_finished, unfinished.is_finished, unfinished.part) == (True, False, 1)
        assert finished.size + unfinished.size == published.staged_size
        assert await client.get_staged_parts("nobody's") == []


async def test_sinks_of_others_are_seen_by_those_who_may_read_the_server() -> None:
    async with TestBroker() as broker:
        root = await prepared(broker)
        await root.create_user("writer", "password", permissions=MAY_SEND)
        everywhere = GlobalPermissions(read_servers=True)
        await root.create_user("watcher", "password", permissions=Permissions(everywhere))
        await stage_part(root, 0, 0, 10, "root's")
        await root.publish_staged(SINK, 0, {0: 10})
        await stage_part(root, 1, 0, 10, "root's")
        writer = await broker.connect(username="writer", password="password")
        await writer.stage("own", 0, 0, 1, 0, "s/t", None, 0, "own")
        watcher = await broker.connect(username="watcher", password="password")
        assert [sink.name for sink in await writer.get_sinks()] == ["own"]
        assert [sink.name for sink in await watcher.get_sinks()] == [SINK, "own"]
        assert [sink.name for sink in await root.get_sinks()] == [SINK, "own"]
        assert await writer.get_staged_parts(SINK) == []
        assert [part.user_id for part in await watcher.get_staged_parts(SINK)] == [0]
