"""A connection on the port of HTTP that becomes a WebSocket connection."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from courser.api import commands as c
from courser.api import replies as r
from courser.model.messaging import PollingKind, Transport
from courser.wire.vsr_client import VsrClientCodec
from tests.handlers.messaging import ME
from tests.http.serving import HttpClient, read_reply
from tests.transports.tcp_servers import MIB
from tests.transports.whole_servers import PATIENCE, WholeServer, whole_server
from tests.wire import classic_client

HANDSHAKE = (
    b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%b\r\n"
)

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WholeServer]:
    async with whole_server(tmp_path / "data") as server:
        yield server


@asynccontextmanager
async def connected(server: WholeServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[ClientConnection]:
    url = f"{'ws' if tls is None else 'wss'}://127.0.0.1:{server.http_port}/"
    async with connect(url, ssl=tls, max_size=None, compression=None, proxy=None, open_timeout=PATIENCE) as client:
        yield client


@asynccontextmanager
async def raw_connection(server: WholeServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await HttpClient(server.http_port).open()
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def received(client: ClientConnection) -> bytes:
    message = await asyncio.wait_for(client.recv(), PATIENCE)
    assert isinstance(message, bytes)
    return message


async def ask(client: ClientConnection, codec: VsrClientCodec, command: c.Command) -> r.Reply | None:
    await client.send(b"".join(codec.encode(command)))
    return codec.decode(command, memoryview(await received(client)))


async def test_both_generations_of_the_binary_protocol(server: WholeServer) -> None:
    token = await server.make_token()
    await server.add_topic()
    await server.send(b"x" * MIB)
    async with connected(server) as client:
        codec = VsrClientCodec(os.urandom(16))
        await ask(client, codec, c.LoginWithToken(token))
        me = await ask(client, codec, c.GetMe())
        assert isinstance(me, r.ClientDetails)
        assert me.client.transport is Transport.WEBSOCKET
        poll = c.PollMessages(ME, "s", "t", 0, PollingKind.FIRST, 0, 10, auto_commit=False)
        polled = await ask(client, codec, poll)
        assert isinstance(polled, r.Polled)
        assert polled.message_count == 1
    async with connected(server) as client:
        await client.send(classic_client.request(c.LoginWithToken(token)))
        assert (await received(client))[:4] == bytes(4)


async def test_with_tls(tmp_path: Path) -> None:
    async with whole_server(tmp_path / "data", "http.tls.enabled=true") as server:
        trusting = ssl.create_default_context(cadata=server.listeners.certificates[Transport.HTTP].pem.decode())
        trusting.check_hostname = False
        token = await server.make_token()
        await server.add_topic()
        await server.send(b"x" * MIB)
        async with connected(server, trusting) as client:
            codec = VsrClientCodec(os.urandom(16))
            await ask(client, codec, c.LoginWithToken(token))
            poll = c.PollMessages(ME, "s", "t", 0, PollingKind.FIRST, 0, 10, auto_commit=False)
            polled = await ask(client, codec, poll)
            assert isinstance(polled, r.Polled)
            assert polled.size > MIB


async def test_a_connection_has_one_place_and_gives_it_back(server: WholeServer) -> None:
    async with connected(server) as client:
        await client.send(classic_client.request(c.Ping()))
        await received(client)
        (connection,) = server.connections
        assert connection.loop is not None
        assert len(server.broker.sessions) == 1
    async with asyncio.timeout(PATIENCE):
        while server.connections.count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert len(server.broker.sessions) == 0


async def test_requests_before_the_upgrade_are_answered(server: WholeServer) -> None:
    async with raw_connection(server) as (reader, writer):
        writer.write(PING)
        assert (await asyncio.wait_for(read_reply(reader), PATIENCE)).status == 200
        writer.write(HANDSHAKE % (b"/subscribe", b""))
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).startswith(b"HTTP/1.1 101")


async def test_who_does_not_wait_for_the_reply_before_is_cut_off(server: WholeServer) -> None:
    async with raw_connection(server) as (reader, writer):
        writer.write(PING + HANDSHAKE % (b"/", b""))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 101"), PATIENCE)


@pytest.mark.parametrize(
    ("handshake", "status"),
    [
        (HANDSHAKE % (b"/streams", b""), b" 404 "),
        ((HANDSHAKE % (b"/", b"")).replace(b"Version: 13", b"Version: 7"), b" 400 "),
        ((HANDSHAKE % (b"/", b"")).replace(b"Sec-WebSocket-Key", b"X-Key"), b" 400 "),
        ((HANDSHAKE % (b"/", b"")).replace(b"GET", b"POST"), b""),
        (HANDSHAKE % (b"/", b"X-Long: " + b"x" * 70_000 + b"\r\n"), b""),
    ],
)
async def test_a_handshake_that_is_not_one_is_refused(server: WholeServer, handshake: bytes, status: bytes) -> None:
    async with raw_connection(server) as (reader, writer):
        writer.write(handshake)
        try:
            data = await asyncio.wait_for(reader.read(), PATIENCE)
        except ConnectionError:
            data = b""
        assert b" 101 " not in data
        assert status in data


async def test_without_websocket_there_is_no_upgrade(tmp_path: Path) -> None:
    async with whole_server(tmp_path / "data", "websocket.enabled=false") as server:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"ws://127.0.0.1:{server.http_port}/", proxy=None, open_timeout=PATIENCE)
        assert refusal.value.response.status_code == 200
