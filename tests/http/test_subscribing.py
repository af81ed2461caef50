"""Subscriptions in JSON over WebSocket, on its own port and on that of HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from courser.api import commands as c
from courser.model.permissions import GlobalPermissions, Permissions
from courser.transports.connections import Connection
from courser.transports.settings import ConnectionSettings
from courser.transports.subscription_loop import SubscriptionLoop
from tests.fakes.clocks import ManualClock
from tests.http.serving import HttpClient
from tests.transports.tcp_servers import MIB, SECOND
from tests.transports.whole_servers import PATIENCE, WholeServer, whole_server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WholeServer]:
    async with whole_server(tmp_path / "data") as server:
        await server.add_topic()
        yield server


class Subscriber:
    """A client that is not logged in yet."""

    def __init__(self, client: ClientConnection) -> None:
        self.client = client

    async def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        """Send a request. Returns the next thing that comes."""
        await self.tell(kind, **fields)
        return await self.next()

    async def tell(self, kind: str, **fields: object) -> None:
        await self.client.send(json.dumps({"type": kind, **fields}))

    async def next(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await asyncio.wait_for(self.client.recv(), PATIENCE))
        return found

    async def payloads(self) -> list[object]:
        """Of the next delivery."""
        found = await self.next()
        assert found["type"] == "messages", found
        return [message["payload"] for message in found["messages"]]

    async def end(self) -> tuple[int, str]:
        """The code and reason of the close. Nothing else comes before."""
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(self.client.recv(), PATIENCE)
        assert self.client.close_code is not None
        return self.client.close_code, self.client.close_reason or ""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Subscriber]:
    url = f"ws://127.0.0.1:{port}/subscribe"
    async with connect(url, max_size=None, compression=None, proxy=None, open_timeout=PATIENCE) as client:
        yield Subscriber(client)


@asynccontextmanager
async def logged_in(server: WholeServer, **fields: object) -> AsyncIterator[Subscriber]:
    """On the port of HTTP."""
    async with connected(server.http_port) as subscriber:
        token = await server.make_token(f"token {len(server.subscriptions)}")
        assert await subscriber.ask("login", token=token, **fields) == {"type": "logged_in", "user_id": 0}
        yield subscriber


# --- what works ---


async def test_messages_come_as_they_arrive_on_either_port(server: WholeServer) -> None:
    await server.send(b'{"n": 1}')
    for port in (server.http_port, server.websocket_port):
        async with connected(port) as subscriber:
            token = (await HttpClient(server.http_port).login()).token
            assert await subscriber.ask("login", token=token) == {"type": "logged_in", "user_id": 0}
            answer = await subscriber.ask("subscribe", stream="s", topic="t", start="last", encoding="json")
            assert answer["type"] == "subscribed"
            assert len(await subscriber.payloads()) == 1
            await server.send(b'{"n": 2}', b"no JSON")
            assert await subscriber.payloads() == [{"n": 2}, "bm8gSlNPTg=="]


async def test_several_topics_on_one_connection(server: WholeServer) -> None:
    await server.add_topic(topic="u", partition_count=3)
    async with logged_in(server) as subscriber:
        await subscriber.ask("subscribe", stream="s", topic="t", payload=False)
        answer = await subscriber.ask("subscribe", stream=0, topic="u", encoding="text")
        assert answer == {"type": "subscribed", "stream": 0, "topic": "u", "offsets": {"0": 0, "1": 0, "2": 0}}
        await server.send(b"first", topic="t")
        found = await subscriber.next()
        assert (found["topic"], found["partition_id"], found["next_offset"]) == ("t", 0, 1)
        assert found["messages"][0].keys() == {"offset", "id", "timestamp", "origin_timestamp"}
        await server.send(b"second", topic="u")
        assert await subscriber.payloads() == ["second"]
        assert (await subscriber.ask("unsubscribe", stream="s", topic="u"))["type"] == "unsubscribed"
        await server.send(b"third", topic="u")
        await server.send(b"fourth", topic="t")
        assert (await subscriber.next())["topic"] == "t"


async def test_no_more_messages_come_than_there_is_credit_for(server: WholeServer) -> None:
    await server.send(b"a", b"b", b"c", b"d")
    async with logged_in(server, credit=1) as subscriber:
        await subscriber.tell("subscribe", stream="s", topic="t", start="first", encoding="text")
        assert (await subscriber.next())["type"] == "subscribed"
        assert await subscriber.payloads() == ["a"]
        # There is no credit left: the next thing that comes is the answer.
        assert (await subscriber.ask("subscribe", stream="s", topic="nothing"))["type"] == "error"
        await subscriber.tell("credit", count=2)
        assert await subscriber.payloads() == ["b", "c"]
        await subscriber.tell("credit", count=100)
        assert await subscriber.payloads() == ["d"]


async def test_a_large_message_comes_whole(server: WholeServer) -> None:
    payload = b"x" * 9 * MIB
    async with logged_in(server) as subscriber:
        await subscriber.ask("subscribe", stream="s", topic="t", encoding="text")
        await server.send(payload)
        assert await subscriber.payloads() == [payload.decode()]


# --- what is refused ---


@pytest.mark.parametrize(
    ("request_text", "code", "word"),
    [
        ("{", 3, "truncated"),
        ('{"type":"subscribe","stream":"s","topic":"t"}', 40, "first message must be a login"),
        ('{"type":"login","token":"wrong"}', 53, "token"),
        ('{"type":"login","token":"not.a.token"}', 40, "not a token"),
    ],
)
async def test_without_a_login_nothing_else_is_possible(
    server: WholeServer, request_text: str, code: int, word: str
) -> None:
    async with connected(server.http_port) as subscriber:
        await subscriber.client.send(request_text)
        found = await subscriber.next()
        assert (found["type"], found["error"]["id"]) == ("error", code)
        assert word in found["error"]["reason"]
        close_code, reason = await subscriber.end()
        assert close_code == 1008
        assert word in reason


async def test_an_error_names_the_topic_and_the_connection_goes_on(server: WholeServer) -> None:
    async with logged_in(server) as subscriber:
        found = await subscriber.ask("subscribe", stream="s", topic="nothing")
        assert (found["type"], found["topic"], found["error"]["id"]) == ("error", "nothing", 2010)
        for fields in ({"type": "login", "token": "again"}, {"type": "credit", "count": 1}, {"type": "shout"}):
            await subscriber.client.send(json.dumps(fields))
            assert (await subscriber.next())["error"]["id"] == 3
        assert (await subscriber.ask("subscribe", stream="s", topic="t"))["type"] == "subscribed"


async def test_requests_are_short_texts(server: WholeServer) -> None:
    async with connected(server.http_port) as subscriber:
        await subscriber.client.send(b"binary")
        assert await subscriber.end() == (1003, "binary messages are not supported here: requests are text messages")
    async with connected(server.http_port) as subscriber:
        await subscriber.client.send("x" * (64 * 1024 + 1))
        assert (await subscriber.end())[0] == 1009


# --- ends ---


async def test_a_deleted_topic_ends_and_the_client_is_told(server: WholeServer) -> None:
    async with logged_in(server) as subscriber:
        await subscriber.ask("subscribe", stream="s", topic="t")
        await server.ask(c.DeleteTopic("s", "t"))
        found = await subscriber.next()
        assert (found["type"], found["stream"], found["topic"], found["error"]["id"]) == ("ended", "s", "t", 2010)


async def test_a_permission_that_is_taken_away_ends_the_topic(server: WholeServer) -> None:
    await server.ask(c.CreateUser("alice", "secret", True, Permissions(GlobalPermissions(poll_messages=True))))
    token = (await HttpClient(server.http_port).login("alice", "secret")).token
    async with connected(server.http_port) as subscriber:
        await subscriber.ask("login", token=token)
        await subscriber.ask("subscribe", stream="s", topic="t")
        await server.ask(c.UpdatePermissions("alice", None))
        found = await subscriber.next()
        assert (found["type"], found["error"]["id"]) == ("ended", 41)
        await server.send(b"not for alice")
        assert (await subscriber.ask("subscribe", stream="s", topic="t"))["error"]["id"] == 41


async def test_a_logout_ends_the_connection(server: WholeServer) -> None:
    root = await HttpClient(server.http_port).login()
    async with connected(server.http_port) as subscriber:
        await subscriber.ask("login", token=root.token)
        await subscriber.ask("subscribe", stream="s", topic="t")
        assert (await root.ask("DELETE", "/users/logout")).status == 204
        assert "revoked" in (await subscriber.next())["error"]["reason"]
        assert (await subscriber.end())[0] == 1008


async def test_a_deleted_token_ends_the_connection(server: WholeServer) -> None:
    async with logged_in(server) as subscriber:
        (name,) = server.broker.catalog.state.users[0].tokens
        await server.ask(c.DeleteToken(name))
        assert (await subscriber.next())["type"] == "error"
        assert (await subscriber.end())[0] == 1008


async def test_who_leaves_is_forgotten(server: WholeServer) -> None:
    async with logged_in(server) as subscriber:
        await subscriber.ask("subscribe", stream="s", topic="t")
        assert len(server.subscriptions) == 1
    async with asyncio.timeout(PATIENCE):
        while server.connections.count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert (len(server.subscriptions), len(server.broker.sessions)) == (0, 0)


# --- clients that do not read ---


def is_unread(connection: Connection) -> bool:
    return connection.loop is not None and connection.loop.unsent_since is not None


async def test_who_does_not_read_holds_one_delivery_and_is_cut_off_in_time(tmp_path: Path) -> None:
    clock, limits = ManualClock(), ConnectionSettings(send_deadline=60 * SECOND)
    async with whole_server(tmp_path / "data", limits=limits, clock=clock) as server:
        await server.add_topic()
        async with logged_in(server) as stuck, logged_in(server) as other:
            await stuck.ask("subscribe", stream="s", topic="t", encoding="text")
            await other.ask("subscribe", stream="s", topic="t", payload=False)
            # Paused, it takes what the kernel takes, and that is less than all of this.
            stuck.client.transport.pause_reading()
            for number in range(48):
                await server.send(b"x" * MIB)
                assert (await other.next())["next_offset"] == number + 1
            async with asyncio.timeout(PATIENCE):
                while not (unread := [one for one in server.connections if is_unread(one)]):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert len(unread) == 1
            async with asyncio.timeout(PATIENCE):
                while server.broker.polls.recent.is_holding:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert server.broker.buffers.ledger.size < 2 * MIB
            clock.advance(59 * SECOND)
            server.connections.enforce_deadlines()
            assert server.connections.cut_off_count == 0
            # Whatever the kernel still takes earns some time.
            while not server.connections.cut_off_count:
                assert clock.monotonic() < 3600 * SECOND
                clock.advance(2 * SECOND)
                server.connections.enforce_deadlines()
                await asyncio.sleep(0)
            await server.send(b"for those who read")
            assert (await other.next())["next_offset"] == 49
            assert len(server.subscriptions) == 1
            # It would wait for an answer to its close, which it does not read.
            stuck.client.transport.abort()
        assert server.broker.buffers.ledger.size == 0


async def test_who_does_not_answer_a_ping_is_gone(server: WholeServer) -> None:
    async with logged_in(server) as subscriber:
        await subscriber.ask("subscribe", stream="s", topic="t")
        (loop,) = [one.loop for one in server.connections]
        assert isinstance(loop, SubscriptionLoop)
        loop._ping()
        async with asyncio.timeout(PATIENCE):
            while loop._link._is_ping_open:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0)
        loop._ping()
        # There was no time to answer.
        loop._ping()
        assert "did not answer a ping" in (await subscriber.next())["error"]["reason"]
        assert (await subscriber.end())[0] == 1008


async def test_an_expired_token_ends_the_connection(tmp_path: Path) -> None:
    settings = ("http.jwt.access_token_expiry=1 s", "http.jwt.clock_skew=0 s")
    async with whole_server(tmp_path / "data", *settings) as server, connected(server.http_port) as subscriber:
        token = (await HttpClient(server.http_port).login()).token
        await subscriber.tell("login", token=token)
        # If the machine is slow, even the login comes too late.
        while (found := await subscriber.next())["type"] != "error":
            pass
        assert "expired" in found["error"]["reason"]
        assert (await subscriber.end())[0] == 1008
