import asyncio
import socket
import struct

import pytest

from courser.model.messaging import Transport
from courser.transports.settings import SocketSettings
from courser.transports.tcp_connection import TcpConnection
from tests.transports.echo import frame
from tests.transports.tcp_servers import GRACE, serving


async def test_requests_are_answered_and_the_session_knows_the_address() -> None:
    async with serving() as server:
        client = await server.connect()
        assert await client.say(b"hello") == b"hello"
        host, port = client.writer.get_extra_info("sockname")
        assert server.sessions[0].address == f"{host}:{port}"
        assert server.sessions[0].transport is Transport.TCP


async def test_a_connection_that_goes_ends_its_session() -> None:
    async with serving() as server:
        client = await server.connect()
        await client.say(b"hello")
        client.writer.close()
        await server.until(lambda: len(server.closed) == 1)
        assert server.connections.count == 0


async def test_more_connections_than_allowed_are_turned_away_and_the_others_are_served() -> None:
    async with serving(connection_count_max=2) as server:
        first, second = await server.connect(), await server.connect()
        assert await first.say(b"login") == b"login"
        assert await second.say(b"login") == b"login"
        third = await server.connect()
        assert await third.end() == b""
        assert server.connections.turned_away_count == 1
        assert await first.say(b"still here") == b"still here"


async def socket_options(options: SocketSettings | None) -> dict[str, object]:
    """What the kernel says of the server's end of a connection."""
    async with serving(options=options) as server:
        client = await server.connect()
        await client.say(b"hello")
        (connection,) = server.connections
        assert isinstance(connection, TcpConnection)
        assert connection._transport is not None
        theirs = connection._transport.get_extra_info("socket")
        linger = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        return {
            "nodelay": theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            "keepalive": theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            # The kernel doubles what it is asked for, to have room for its own records.
            "receive": theirs.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2,
            "send": theirs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2,
            "linger": struct.unpack("ii", linger),
        }


async def test_the_kernel_is_told_what_the_operator_set_about_sockets() -> None:
    usual = await socket_options(None)
    assert (usual["nodelay"], usual["keepalive"], usual["linger"]) == (1, 0, (0, 0))
    options = SocketSettings(
        nodelay=False, keepalive=True, receive_buffer_size=50_000, send_buffer_size=60_000, linger=2_500_000
    )
    assert await socket_options(options) == {
        "nodelay": 0,
        "keepalive": 1,
        "receive": 50_000,
        "send": 60_000,
        "linger": (1, 3),
    }
    # A linger of zero is left to the kernel: it would drop replies in flight.
    assert (await socket_options(SocketSettings()))["linger"] == (0, 0)


async def test_a_stop_says_goodbye_to_the_idle_and_answers_the_busy() -> None:
    async with serving() as server:
        idle, busy = await server.connect(), await server.connect()
        await idle.say(b"hello")
        busy.writer.write(frame(b"wait"))
        await idle.say(b"a round trip")
        stopping = asyncio.ensure_future(server.stop(GRACE))
        assert await idle.end() == b"bye"
        server.gate.set()
        assert await busy.end() == b"<wait>"
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await server.connect()


async def test_a_stop_does_not_wait_for_ever() -> None:
    async with serving() as server:
        client = await server.connect()
        client.writer.write(frame(b"wait"))
        await (await server.connect()).say(b"a round trip")
        await server.stop(0.01)
        assert await client.end() == b""
