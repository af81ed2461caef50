"""A server of several processes, as its clients see it: no different from one of a single process."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from courser.client.client import Client, connect
from courser.client.messages import PollingStrategy
from courser.errors import NotAllowed, NotFound
from courser.model.permissions import GlobalPermissions, Permissions
from courser.processes.router import STREAK_COUNT
from tests.processes.processes import connection_counts
from tests.servers import RunningServer
from tests.torture.process import until

PROCESS_COUNT = 3
TOPICS = [f"demo/topic-{number}" for number in range(2 * PROCESS_COUNT)]
"""Each process owns two of them."""
PATIENCE = 120.0
FIRST = PollingStrategy.First()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"server.processes": PROCESS_COUNT}
    with RunningServer(tmp_path_factory.mktemp("processes"), settings=settings) as server:
        yield server


def url(server: RunningServer) -> str:
    return f"iggy://iggy:iggy@{server.address}"


async def make_topics(client: Client, stream: str) -> list[str]:
    await client.create_stream(stream)
    topics = [topic.replace("demo", stream) for topic in TOPICS]
    for topic in topics:
        await client.create_topic(topic, partitions_count=2)
    return topics


async def send(client: Client, topic: str, *texts: str, partition_id: int = 0) -> None:
    await client.send_messages(topic, None, partition_id, list(texts))


async def read(client: Client, topic: str, partition_id: int = 0) -> list[str]:
    polled = await client.poll_messages(topic, None, partition_id, FIRST, 100_000)
    return [message.text() for message in polled]


# --- topics and connections -------------------------------------------------------------------------------


async def test_every_connection_reaches_every_topic(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "reached")
    # Some of these are accepted by each process.
    for number in range(4 * PROCESS_COUNT):
        async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
            for topic in topics:
                await send(client, topic, str(number))
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        for topic in topics:
            assert await read(client, topic) == [str(number) for number in range(4 * PROCESS_COUNT)]


async def test_a_connection_moves_to_the_process_that_it_works_with(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "moving")
        counts = []
        for topic in topics[:PROCESS_COUNT]:
            for number in range(3 * STREAK_COUNT):
                await send(client, topic, str(number))
            # The process that gave it away may close its own end a little later.
            await asyncio.to_thread(
                until, lambda: sum(connection_counts(shared_server)) == 1, "the move of the connection", PATIENCE
            )
            counts.append(connection_counts(shared_server))
            assert await read(client, topic) == [str(number) for number in range(3 * STREAK_COUNT)]
        # One connection, and each time it was in another process.
        assert sorted(counts, reverse=True) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


async def test_metadata_is_the_same_in_every_process(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "metadata")
        await client.update_topic(topics[0], name="renamed")
        await client.create_partitions(topics[1], None, 3)
        await client.delete_partitions(topics[2], None, 1)
        await client.delete_topic(topics[3])
    for _ in range(4 * PROCESS_COUNT):
        async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
            await send(client, "metadata/renamed", "kept")
            await send(client, topics[1], "new", partition_id=4)
            for topic, partition_id in ((topics[2], 1), (topics[3], 0)):
                with pytest.raises(NotFound):
                    await send(client, topic, "nowhere", partition_id=partition_id)
            assert (await client.get_topic(topics[1])).topic.partition_count == 5


async def test_figures_are_those_of_all_processes(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "figures")
        before = (await client.get_stats()).message_count
        for topic in topics:
            await send(client, topic, "a", "b")
        assert (await client.get_stream("figures")).stream.message_count == 2 * len(topics)
        assert [topic.message_count for topic in await client.get_topics("figures")] == [2] * len(topics)
        assert (await client.get_stats()).message_count - before == 2 * len(topics)
        stream = next(stream for stream in await client.get_streams() if stream.name == "figures")
        assert stream.message_count == 2 * len(topics)


async def test_purges_delete_in_every_process_and_numbering_goes_on(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "purged")
        for topic in topics:
            await send(client, topic, "old", "old")
        await client.purge_topic(topics[1])
        assert await read(client, topics[1]) == []
        await client.purge_stream("purged")
        for topic in topics:
            await send(client, topic, "new")
            polled = await client.poll_messages(topic, None, 0, FIRST, 10)
            assert [(message.offset, message.text()) for message in polled] == [(2, "new")]


async def test_the_list_of_clients_has_those_of_all_processes(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(url(shared_server))) for _ in range(4 * PROCESS_COUNT)]
        topics = await make_topics(clients[0], "listed")
        ids = {(await client.get_me()).client.client_id for client in clients}
        assert len(ids) == len(clients)
        assert ids <= {info.client_id for info in await clients[0].get_clients()}
        for topic in topics:
            await clients[0].create_consumer_group(topic, None, "readers")
            for client in clients:
                await client.join_consumer_group(topic, None, "readers")
        for client in clients:
            me = await client.get_me()
            assert len(me.groups) == me.client.group_count == len(topics)
            assert (await clients[0].get_client(me.client.client_id)).groups == me.groups
        group = await clients[1].get_consumer_group(topics[1], None, "readers")
        assert group.group.member_count == len(clients)


# --- groups -----------------------------------------------------------------------------------------------


async def test_members_of_a_group_may_be_in_any_process(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        (*_, topic) = await make_topics(client, "groups")
        for partition_id in range(2):
            await send(client, topic, *(f"{partition_id}-{number}" for number in range(100)), partition_id=partition_id)
        found: list[str] = []
        done = asyncio.Event()

        async def consume() -> None:
            async with connect(url(shared_server)) as other, other.consumer(topic, group="all") as consumer:
                async for message in consumer:
                    found.append(message.text())
                    if len(found) >= 200:
                        done.set()

        tasks = [asyncio.create_task(consume()) for _ in range(4)]
        await done.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert set(found) == {f"{partition_id}-{number}" for partition_id in range(2) for number in range(100)}


async def test_a_closed_connection_leaves_its_groups_in_every_process(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "left")
        for topic in topics:
            await client.create_consumer_group(topic, None, "readers")
        for _ in range(PROCESS_COUNT):
            async with connect(url(shared_server)) as other:
                for topic in topics:
                    await other.join_consumer_group(topic, None, "readers")
        for topic in topics:
            while (await client.get_consumer_group(topic, None, "readers")).group.member_count:
                await client.ping()


async def test_a_long_poll_ends_with_the_first_message(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "waiting")
        for topic in topics:
            for _ in range(PROCESS_COUNT):
                async with connect(url(shared_server)) as other:
                    next_offset = len(await read(client, topic))
                    start = PollingStrategy.Offset(next_offset)
                    waiting = asyncio.create_task(other.poll_messages(topic, None, 0, start, 10, wait=20.0))
                    await send(client, topic, "here")
                    assert [message.text() for message in await waiting] == ["here"]


async def test_a_consumer_stores_its_offsets_in_every_process(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "together")
        for topic in topics:
            await send(client, topic, topic)
            await client.store_consumer_offset(topic, None, 0, 0, consumer="me")
            assert (await client.get_consumer_offset(topic, None, 0, consumer="me")).stored_offset == 0


# --- access -----------------------------------------------------------------------------------------------


async def test_permissions_act_at_once_in_every_process(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client, AsyncExitStack() as stack:
        topics = await make_topics(client, "access")
        allowed = Permissions(GlobalPermissions(send_messages=True, poll_messages=True))
        await client.create_user("guest", "secret", permissions=allowed)
        guest_url = f"iggy://guest:secret@{shared_server.address}"
        guests = [await stack.enter_async_context(connect(guest_url)) for _ in range(2 * PROCESS_COUNT)]
        for guest in guests:
            for topic in topics:
                await send(guest, topic, "allowed")
        await client.update_permissions("guest", Permissions(GlobalPermissions()))
        for guest in guests:
            for topic in topics:
                with pytest.raises(NotAllowed):
                    await send(guest, topic, "forbidden")


async def test_a_deleted_user_is_disconnected_from_every_process(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client, AsyncExitStack() as stack:
        await client.create_user("leaver", "secret")
        there = {info.client_id for info in await client.get_clients()}
        leaver_url = f"iggy://leaver:secret@{shared_server.address}"
        for _ in range(2 * PROCESS_COUNT):
            await stack.enter_async_context(connect(leaver_url, reconnect=False))
        # Connections of earlier tests may still be going.
        assert len({info.client_id for info in await client.get_clients()} - there) == 2 * PROCESS_COUNT
        await client.delete_user("leaver")
        while {info.client_id for info in await client.get_clients()} - there:
            await client.ping()
