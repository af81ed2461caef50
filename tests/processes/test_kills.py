"""Single processes of a server are killed. Every acknowledged message is there, and the others go on."""

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.client.client import Client, connect
from courser.client.messages import PollingStrategy
from courser.errors import CourserError, ErrorCode, ServerFailure
from courser.processes.router import STREAK_COUNT
from tests.processes.processes import children_of
from tests.servers import RunningServer
from tests.torture.process import until

PROCESS_COUNT = 3
PATIENCE = 120.0
PRODUCER_COUNT = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "server", settings={"server.processes": PROCESS_COUNT}) as server:
        yield server


def url(server: RunningServer) -> str:
    return f"iggy://iggy:iggy@{server.address}"


async def make_topics(client: Client) -> list[str]:
    await client.create_stream("demo")
    topics = [f"demo/topic-{number}" for number in range(PROCESS_COUNT)]
    for topic in topics:
        await client.create_topic(topic, partitions_count=1)
    return topics


async def read(client: Client, topic: str) -> list[str]:
    found: list[str] = []
    while polled := await client.poll_messages(topic, None, 0, PollingStrategy.Offset(len(found)), 10_000):
        found += [message.text() for message in polled]
    return found


async def send(client: Client, topic: str, text: str) -> None:
    """Send a message. On a busy machine a restart may take longer than a request waits for it: then once more."""
    while True:
        try:
            await client.send_messages(topic, None, 0, [text])
        except ServerFailure as failure:
            if failure.code is not ErrorCode.SERVER_BUSY:
                raise
        else:
            return


async def kill_and_wait(server: RunningServer, number: int) -> None:
    """Kill a further process, and wait until another one has its number."""
    old = children_of(server)[number - 1]
    os.kill(old, signal.SIGKILL)

    def is_back() -> bool:
        children = children_of(server)
        return len(children) == PROCESS_COUNT - 1 and old not in children

    await asyncio.to_thread(until, is_back, "the restart of the process", PATIENCE)


async def move_to_first_process(client: Client, topics: list[str]) -> None:
    """Work with a topic of the first process, which is not killed, until the connection is there.

    The fate of a request on a connection that a kill breaks is unknown, which the client reports.
    """
    for _ in range(2 * STREAK_COUNT):
        await send(client, topics[0], "before")


async def test_acknowledged_messages_survive_the_kill_of_any_single_process(server: RunningServer) -> None:
    acknowledged: dict[str, list[str]] = {}
    news = asyncio.Event()
    stopping = asyncio.Event()

    async def produce(topic: str) -> None:
        """One message at a time; one whose fate is unknown is not sent again, and may be there or not."""
        number = 0
        while not stopping.is_set():
            try:
                async with connect(url(server), reconnect=False) as client:
                    while not stopping.is_set():
                        number += 1
                        await client.send_messages(topic, None, 0, [str(number)])
                        acknowledged[topic].append(str(number))
                        news.set()
            except CourserError:
                continue

    async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
        topics = await make_topics(client)
        acknowledged.update((topic, []) for topic in topics)
        producers = [asyncio.create_task(produce(topic)) for topic in topics]
        for number in (1, 2, 1):
            goals = {topic: len(texts) + 50 for topic, texts in acknowledged.items()}
            await kill_and_wait(server, number)
            # All go on, those of the process that was killed too.
            while any(len(acknowledged[topic]) < goal for topic, goal in goals.items()):
                news.clear()
                await news.wait()
        stopping.set()
        await asyncio.gather(*producers)
        for topic in topics:
            found = await read(client, topic)
            expected = set(acknowledged[topic])
            assert [text for text in found if text in expected] == acknowledged[topic]
            assert len(found) == len(set(found))
            assert [int(text) for text in found] == sorted(int(text) for text in found)
    assert server.stop() == 0
    # Nothing is left to recover: the partitions of the processes that were killed are in order.
    server.start()
    async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
        for topic in topics:
            assert set(acknowledged[topic]) <= set(await read(client, topic))


async def test_owners_that_answer_clients_themselves_may_be_killed_at_any_time(server: RunningServer) -> None:
    """Connections that work with topics of all processes in turn stay where they are; owners have their sockets."""
    acknowledged: dict[str, list[int]] = {}
    news = asyncio.Event()
    stopping = asyncio.Event()

    async def produce(first_number: int) -> None:
        number = first_number
        while not stopping.is_set():
            try:
                async with connect(url(server), reconnect=False) as client:
                    for topic in itertools.cycle(acknowledged):
                        for _ in range(STREAK_COUNT // 2):
                            number += PRODUCER_COUNT
                            await client.send_messages(topic, None, 0, [str(number)])
                            acknowledged[topic].append(number)
                        news.set()
                        if stopping.is_set():
                            break
            except CourserError:
                continue

    async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
        topics = await make_topics(client)
        acknowledged.update((topic, []) for topic in topics)
        producers = [asyncio.create_task(produce(number)) for number in range(PRODUCER_COUNT)]
        for number in (1, 2, 1):
            goals = {topic: len(numbers) + 200 for topic, numbers in acknowledged.items()}
            while any(len(acknowledged[topic]) < goal for topic, goal in goals.items()):
                news.clear()
                await news.wait()
            await kill_and_wait(server, number)
        stopping.set()
        await asyncio.gather(*producers)
        for topic in topics:
            found = [int(text) for text in await read(client, topic)]
            assert len(found) == len(set(found))
            for first_number in range(PRODUCER_COUNT):
                mine = [number for number in found if number % PRODUCER_COUNT == first_number]
                assert mine == sorted(mine)
                assert {number for number in acknowledged[topic] if number % PRODUCER_COUNT == first_number} <= set(
                    mine
                )


async def test_other_connections_do_not_notice(server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(server), reconnect=False) as client:
        topics = await make_topics(client)
        await move_to_first_process(client, topics)
        for number in range(1, PROCESS_COUNT):
            await kill_and_wait(server, number)
            await send(client, topics[0], "after")
        # Requests for the topics of processes that come back wait for them.
        for topic in topics:
            await send(client, topic, "after")


async def test_metadata_changes_while_a_process_is_away(server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
        topics = await make_topics(client)
        await move_to_first_process(client, topics)
        for number in range(1, PROCESS_COUNT):
            os.kill(children_of(server)[number - 1], signal.SIGKILL)
            new = [f"demo/new-{number}-{index}" for index in range(PROCESS_COUNT)]
            for topic in new:
                await client.create_topic(topic, partitions_count=1)
            for topic in (*topics, *new):
                await send(client, topic, topic)
                assert topic in await read(client, topic)


async def test_members_of_a_killed_owner_come_back(server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(server), reconnect_interval=0.01) as client:
        topics = await make_topics(client)
        found: dict[str, set[str]] = {topic: set() for topic in topics}
        news = asyncio.Event()

        async def consume(topic: str) -> None:
            async with (
                connect(url(server), reconnect_interval=0.01) as other,
                other.consumer(topic, group="readers") as consumer,
            ):
                async for message in consumer:
                    found[topic].add(message.text())
                    news.set()

        async def sent(text: str) -> None:
            for topic in topics:
                async with client.producer(topic) as producer:
                    await producer.send(text)
            while not all(text in texts for texts in found.values()):
                news.clear()
                await news.wait()

        tasks = [asyncio.create_task(consume(topic)) for topic in topics]
        await sent("first")
        for number in range(1, PROCESS_COUNT):
            await kill_and_wait(server, number)
            await sent(f"after {number}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_all_end_with_the_first_process_and_the_next_start_finds_everything(server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
        topics = await make_topics(client)
        for topic in topics:
            for number in range(50):
                await client.send_messages(topic, None, 0, [str(number)])
    server.kill()
    # At once: the directory may still be locked by processes that the kernel is ending.
    server.start()
    async with asyncio.timeout(PATIENCE), connect(url(server)) as client:
        for topic in topics:
            assert await read(client, topic) == [str(number) for number in range(50)]
