"""Reads that wait, in topics of all processes of a server: each waits where its topic is."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from courser.client.client import connect
from courser.errors import ErrorCode
from tests.processes.processes import children_of
from tests.servers import RunningServer
from tests.torture.process import until
from tests.transports.waiting_clients import NEXT, Client, connected, fetch, fetched, place_of, poll, polled, status_of
from tests.transports.whole_servers import PATIENCE

PROCESS_COUNT = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("processes"), settings={"server.processes": PROCESS_COUNT}) as running:
        yield running


@asynccontextmanager
async def client_of(server: RunningServer) -> AsyncIterator[Client]:
    async with connected(server.host, server.port) as client:
        await client.log_in()
        yield client


async def make_topics(server: RunningServer, stream: str) -> list[bytes]:
    """One topic with two partitions for each process."""
    names = [f"topic-{number}" for number in range(PROCESS_COUNT)]
    async with connect(f"iggy://iggy:iggy@{server.address}") as client:
        await client.create_stream(stream)
        for name in names:
            await client.create_topic(f"{stream}/{name}", partitions_count=2)
    return [place_of(stream, name) for name in names]


async def within_patience(reply: "asyncio.Future[bytes]") -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await reply


async def test_reads_of_all_processes_wait_on_one_connection(server: RunningServer) -> None:
    places = await make_topics(server, "waits")
    async with client_of(server) as client, client_of(server) as producer:
        replies = [(await client.begin(poll(0, place=place)))[1] for place in places]
        replies += [(await client.begin(fetch(0, 1, place=place)))[1] for place in places]
        await client.ping()
        for place in places:
            await client.send("one", 1, place)
        assert [fetched(await within_patience(reply)) for reply in replies[PROCESS_COUNT:]] == [
            ([1], ["one"])
        ] * PROCESS_COUNT
        for place in places:
            await producer.send("other", 0, place)
        assert [polled(await within_patience(reply)) for reply in replies[:PROCESS_COUNT]] == [
            ["other"]
        ] * PROCESS_COUNT


async def test_a_cancellation_reaches_the_process_of_the_topic(server: RunningServer) -> None:
    places = await make_topics(server, "cancels")
    async with client_of(server) as client:
        for place in places:
            number, reply = await client.begin(fetch(0, 1, kind=NEXT, commits=True, place=place))
            await client.ping()
            await client.cancel(number)
            assert status_of(await within_patience(reply)) == ErrorCode.NOT_ACCEPTED
            await client.send("later", 0, place)
            assert fetched(await client.ask(fetch(0, kind=NEXT, place=place))) == ([0], ["later"])


async def test_requests_in_the_line_go_on_while_the_wait_for_the_same_topic_ends(server: RunningServer) -> None:
    # The memory of a read belongs to the session: the end of a wait beside it must not give it back.
    places = await make_topics(server, "beside")
    text = "x" * 100_000
    async with client_of(server) as client:
        for place in places:
            await client.send(text, 0, place)
            for _ in range(20):
                number, waiting = await client.begin(fetch(1, place=place))
                _, reading = await client.begin(poll(0, place=place))
                await client.cancel(number)
                assert polled(await within_patience(reading)) == [text]
                assert status_of(await within_patience(waiting)) == ErrorCode.NOT_ACCEPTED


async def test_reads_that_wait_in_a_process_that_ends_are_over(server: RunningServer) -> None:
    places = await make_topics(server, "kills")
    async with client_of(server) as client:
        for place in places:
            await client.begin(poll(0, place=place))
        await client.ping()
        children, said_before = children_of(server), server.output.count("starting it again")
        for child in children:
            os.kill(child, signal.SIGKILL)
        # Whether the client is told or not: it must not wait for a read that nobody carries out.
        async with asyncio.timeout(PATIENCE):
            await client.is_closed.wait()
    # The end of another one may be noticed later, and closes the connections that it worked for then.
    await asyncio.to_thread(
        until,
        lambda: server.output.count("starting it again") - said_before >= len(children),
        "the end of all processes",
        PATIENCE,
    )
    async with client_of(server) as client:
        for place in places:
            _, reply = await client.begin(poll(0, place=place))
            await client.send("again", 0, place)
            assert polled(await within_patience(reply)) == ["again"]
