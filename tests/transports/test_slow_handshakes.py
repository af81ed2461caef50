"""Handshakes that come byte by byte, on every listener with TLS and for WebSocket: others are served meanwhile."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from courser.model.messaging import Transport
from courser.transports.settings import ConnectionSettings
from tests.transports.echo import frame
from tests.transports.tcp_servers import GRACE, SECOND
from tests.transports.test_websocket import (
    CONTINUATION,
    HANDSHAKE,
    PING,
    masked,
    raw_client,
    say_raw,
    websocket_serving,
)
from tests.transports.whole_servers import whole_server

TLS = {Transport.TCP: "tcp.tls", Transport.HTTP: "http.tls", Transport.WEBSOCKET: "websocket.tls"}


def client_hello() -> bytes:
    """The first flight of a client."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def trickle(writer: asyncio.StreamWriter, data: bytes, others: Callable[[], Awaitable[object]]) -> None:
    """A byte at a time, with somebody else in between."""
    for number in range(len(data)):
        if writer.transport.is_closing():
            return
        writer.write(data[number : number + 1])
        if number % 50 == 0:
            await others()
        await asyncio.sleep(0)


@pytest.mark.parametrize("transport", TLS)
async def test_a_tls_handshake_byte_by_byte_has_a_deadline(tmp_path: Path, transport: Transport) -> None:
    limits = ConnectionSettings(handshake_deadline=SECOND)
    key = f"{TLS[transport]}.enabled=true"
    async with whole_server(tmp_path / "data", key, "websocket.enabled=true", limits=limits) as server:
        trusting = ssl.create_default_context(cadata=server.listeners.certificates[transport].pem.decode())
        trusting.check_hostname = False
        port = server.addresses[transport].port

        async def shake_hands() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            await leave(writer)

        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        hello = client_hello()
        for _, writer in slow:
            await trickle(writer, hello[:-1], shake_hands)
        for reader, writer in slow:
            # The last byte never comes.
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), GRACE) == b""
            await leave(writer)
        await shake_hands()
        async with asyncio.timeout(GRACE):
            while server.connections.count:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)


async def test_a_websocket_handshake_byte_by_byte_has_the_deadline_of_strangers() -> None:
    async with websocket_serving(ConnectionSettings(login_deadline=SECOND)) as server:
        client, other = await server.connect(), await raw_client(server)
        assert await say_raw(other, b"login") == b"<login>"

        async def others() -> None:
            server.clock.advance(SECOND // 10)
            server.connections.enforce_deadlines()
            assert await say_raw(other, b"hello") == b"<hello>"

        head = (HANDSHAKE % b"/")[:-4]
        await trickle(client.writer, head + b"\r\nx: " + b"y" * 1000, others)
        assert await client.end() == b""
        assert await say_raw(other, b"hello") == b"<hello>"


ENDLESS = {
    "fragments without contents": masked(b"", CONTINUATION, first=0),
    "fragments of a request that never ends": masked(b"x", CONTINUATION, first=0),
    "pings": masked(b"?", PING),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_strangers_who_send_frames_without_end_go_in_time(name: str) -> None:
    async with websocket_serving(ConnectionSettings(login_deadline=SECOND, frame_deadline=SECOND)) as server:
        client, other = await raw_client(server), await raw_client(server)
        assert await say_raw(other, b"login") == b"<login>"
        client.writer.write(masked(frame(b"x" * 10_000)[:10], first=2))
        ended = asyncio.create_task(client.end())
        while not ended.done():
            if not client.writer.transport.is_closing():
                client.writer.write(ENDLESS[name])
            server.clock.advance(SECOND // 10)
            server.connections.enforce_deadlines()
            assert await say_raw(other, b"hello") == b"<hello>"
        assert await say_raw(other, b"hello") == b"<hello>"
