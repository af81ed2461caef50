"""Subscriptions and searches, whose clients the first process has, in topics of all processes."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed

from courser.client.client import Client, connect
from courser.model.permissions import GlobalPermissions, Permissions
from tests.http.event_streams import Stream, opened
from tests.http.serving import HttpClient
from tests.processes.processes import children_of
from tests.servers import RunningServer

PROCESS_COUNT = 3
PATIENCE = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {
        "server.processes": PROCESS_COUNT,
        "http.enabled": "true",
        "http.address": "127.0.0.1:0",
        "websocket.enabled": "true",
        "websocket.address": "127.0.0.1:0",
    }
    with RunningServer(tmp_path_factory.mktemp("processes"), settings=settings) as running:
        yield running


@asynccontextmanager
async def client_of(server: RunningServer) -> AsyncIterator[Client]:
    async with asyncio.timeout(PATIENCE), connect(f"iggy://iggy:iggy@{server.address}") as client:
        yield client


async def http_of(server: RunningServer) -> HttpClient:
    return await HttpClient(int(server.address_of("http").rpartition(":")[2])).login()


async def make_topics(client: Client, stream: str) -> list[str]:
    """One topic for each process."""
    await client.create_stream(stream)
    topics = [f"{stream}/topic-{number}" for number in range(PROCESS_COUNT)]
    for topic in topics:
        await client.create_topic(topic, partitions_count=1)
    return topics


# --- WebSocket --------------------------------------------------------------------------------------------


@asynccontextmanager
async def subscriber(server: RunningServer, token: str, **fields: object) -> AsyncIterator[ClientConnection]:
    url = f"ws://{server.address_of('websocket')}/subscribe"
    async with connect_websocket(url, max_size=None, compression=None, proxy=None, open_timeout=PATIENCE) as found:
        assert (await ask(found, "login", token=token, **fields))["type"] == "logged_in"
        yield found


async def ask(connection: ClientConnection, kind: str, **fields: object) -> dict[str, Any]:
    await connection.send(json.dumps({"type": kind, **fields}))
    return await coming(connection)


async def coming(connection: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await connection.recv())
    return found


async def subscribe(connection: ClientConnection, topic: str, **fields: object) -> dict[str, Any]:
    stream, _, name = topic.partition("/")
    return await ask(connection, "subscribe", stream=stream, topic=name, encoding="text", **fields)


async def token_of(client: Client, name: str) -> str:
    return await client.create_personal_access_token(name)


async def test_a_subscriber_hears_topics_of_all_processes(server: RunningServer) -> None:
    async with client_of(server) as client:
        topics = await make_topics(client, "heard")
        await client.send_messages(topics[1], None, 0, ["before"])
        async with subscriber(server, await token_of(client, "heard")) as connection:
            for topic in topics:
                answer = await subscribe(connection, topic)
                assert answer["type"] == "subscribed", answer
                assert answer["offsets"] == {"0": int(topic == topics[1])}
            again = await subscribe(connection, topics[2])
            assert again["type"] == "error", "already subscribed to"
            for number in range(3):
                for topic in topics:
                    await client.send_messages(topic, None, 0, [f"{topic} {number}"])
                    found = await coming(connection)
                    assert [message["payload"] for message in found["messages"]] == [f"{topic} {number}"]
                    assert found["topic"] == topic.partition("/")[2]
            stream, _, name = topics[1].partition("/")
            assert (await ask(connection, "unsubscribe", stream=stream, topic=name))["type"] == "unsubscribed"
            assert (await ask(connection, "unsubscribe", stream=stream, topic=name))["type"] == "error"
            await client.send_messages(topics[1], None, 0, ["unheard"])
            await client.send_messages(topics[2], None, 0, ["last"])
            assert [message["payload"] for message in (await coming(connection))["messages"]] == ["last"]
            # A topic that is deleted ends, and the others go on.
            await client.delete_topic(topics[2])
            assert (await coming(connection))["topic"] == "topic-2"
            await client.send_messages(topics[0], None, 0, ["more"])
            assert [message["payload"] for message in (await coming(connection))["messages"]] == ["more"]


async def test_no_process_sends_more_than_there_is_credit_for(server: RunningServer) -> None:
    async with client_of(server) as client:
        topics = await make_topics(client, "credit")
        for topic in topics:
            await client.send_messages(topic, None, 0, [str(number) for number in range(10)])
        async with subscriber(server, await token_of(client, "credit"), credit=0) as connection:
            for topic in topics:
                await subscribe(connection, topic, start="first")
            found: list[str] = []
            for credit in (1, 7, 4, 18):
                await connection.send(json.dumps({"type": "credit", "count": credit}))
                came = 0
                while came < credit:
                    messages = (await coming(connection))["messages"]
                    came += len(messages)
                    found += [message["payload"] for message in messages]
                assert came == credit
            assert sorted(found) == sorted(3 * [str(number) for number in range(10)])


async def test_who_may_not_read_a_topic_any_more_hears_nothing_more(server: RunningServer) -> None:
    async with client_of(server) as client:
        topics = await make_topics(client, "secret")
        await client.create_user(
            "reader", "secret-secret", permissions=Permissions(GlobalPermissions(poll_messages=True))
        )
        reader = connect(f"iggy://reader:secret-secret@{server.address}")
        async with reader as other, subscriber(server, await token_of(other, "reader")) as connection:
            for topic in topics:
                assert (await subscribe(connection, topic))["type"] == "subscribed"
            await client.update_permissions("reader", Permissions(GlobalPermissions()))
            ended = {(await coming(connection))["topic"] for _ in topics}
            assert ended == {"topic-0", "topic-1", "topic-2"}


async def test_a_subscriber_is_disconnected_when_the_owner_of_a_topic_ends(server: RunningServer) -> None:
    async with client_of(server) as client:
        topics = await make_topics(client, "ended")
        async with subscriber(server, await token_of(client, "ended")) as connection:
            for topic in topics:
                await subscribe(connection, topic)
            os.kill(children_of(server)[0], signal.SIGKILL)
            assert (await coming(connection))["type"] == "error"
            with pytest.raises(ConnectionClosed):
                await coming(connection)


# --- server-sent events -----------------------------------------------------------------------------------


async def test_events_come_from_topics_of_all_processes(server: RunningServer) -> None:
    async with client_of(server) as client:
        topics = await make_topics(client, "events")
        http = await http_of(server)
        query = "&".join(f"topic={topic}" for topic in topics)
        async with opened(http, f"/events?{query}&payload=text") as stream:
            event = await stream.event()
            for topic in topics:
                await client.send_messages(topic, None, 0, [topic])
                event = await stream.event()
                assert event.data["payload"] == topic, event
        # It resumes where it was.
        for topic in topics:
            await client.send_messages(topic, None, 0, ["later"])
        async with opened(http, f"/events?{query}&payload=text", event.event_id) as stream:
            await stream.event()
            assert [(await stream.event()).data["payload"] for _ in topics] == ["later"] * PROCESS_COUNT


# --- searches ---------------------------------------------------------------------------------------------


async def begins(http: HttpClient, target: str) -> bool:
    """Begin a search and leave it. False if there are too many."""
    reader, writer = await http.open()
    writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {http.token}\r\n\r\n".encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    assert status in (b"200", b"503")
    return status == b"200"


@asynccontextmanager
async def opened_once_free(http: HttpClient, target: str) -> AsyncIterator[Stream]:
    """A search, as soon as the server has noticed that earlier ones are over."""
    async with AsyncExitStack() as stack:
        found: Stream | None = None
        while found is None:
            try:
                found = await stack.enter_async_context(opened(http, target))
            except AssertionError as refusal:
                if " 503 " not in str(refusal):
                    raise
        yield found


async def test_messages_are_found_in_topics_of_all_processes(server: RunningServer) -> None:
    async with client_of(server) as client:
        topics = await make_topics(client, "searched")
        http = await http_of(server)
        for topic in topics:
            await client.send_messages(topic, None, 0, [f"message {number}" for number in range(500)])
            stream, _, name = topic.partition("/")
            path = f"/streams/{stream}/topics/{name}/search"
            async with opened_once_free(http, f"{path}?filter=text~message%2042&count=100&order=oldest") as found:
                events = [await found.event()]
                while events[-1].kind not in ("done", "stopped"):
                    events.append(await found.event())
            assert events[-1].kind == "done", events[-1]
            offsets = [event.data["offset"] for event in events if event.kind == "message"]
            assert offsets == [42, *range(420, 430)]
            # Who goes early leaves nothing behind: there is room for as many searches as ever.
            for _ in range(12):
                while not await begins(http, f"{path}?count=100"):
                    # The server may not have noticed yet that the last ones are over.
                    continue
        missing = await http.ask("GET", "/streams/searched/topics/nothing/search?count=1")
        assert missing.status == 404
