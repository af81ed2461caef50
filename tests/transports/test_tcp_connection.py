"""A TCP connection between its event loop and the session loop, with the event loop's side played by the test."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

from courser.broker.access.sessions import Session
from courser.model.messaging import Transport
from courser.transports.tcp_connection import TcpConnection
from tests.transports.echo import frame, settle
from tests.transports.tcp_servers import Server, serving


class Kernel:
    """What an event loop gives to a connection. It takes everything, until it is told to take nothing more."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.unsent = bytearray()
        self.is_stuck = False
        self.options: list[tuple[int, int, int]] = []
        """Those of the socket that were set."""
        self.connection: TcpConnection | None = None
        self._is_closing = False

    def write(self, data: bytes) -> None:
        if self.is_stuck:
            self.unsent += data
            assert self.connection is not None
            self.connection.pause_writing()
        else:
            self.sent += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def set_protocol(self, protocol: object) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *option: self.options.append(option)) if name == "socket" else None

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close


class Admitting:
    """Lets a connection in with a session of its own."""

    def __init__(self, server: Server, session: Session) -> None:
        self._session = session
        self.forget = server.connections.remove

    def let_in(self, _connection: TcpConnection, _transport: asyncio.Transport) -> Session:
        return self._session


def connected(server: Server, number: int = 1) -> tuple[TcpConnection, Kernel]:
    """A connection of a client that is logged in."""
    kernel = Kernel()
    session = Session(number, Transport.TCP, "127.0.0.1:1", now=0)
    session.user_id = 0
    connection = TcpConnection(server.services, server.connections, Admitting(server, session))
    kernel.connection = connection
    server.connections.add(connection)
    connection.connection_made(cast("asyncio.Transport", kernel))
    return connection, kernel


def arrives(connection: TcpConnection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


async def test_the_reply_to_the_last_request_is_sent_if_the_clients_data_end_in_the_same_turn() -> None:
    async with serving() as server:
        connection, kernel = connected(server)
        arrives(connection, frame(b"?"))
        assert not connection.eof_received()
        kernel.close()
        await settle()
        assert bytes(kernel.sent) == b"what?"


async def test_a_reply_to_a_client_that_has_gone_waits_for_nobody() -> None:
    """Neither the connection nor the memory of its reply is kept: nothing would ever set them free."""
    async with serving() as server:
        connection, kernel = connected(server)
        kernel.is_stuck = True
        arrives(connection, frame(b"?"))
        # It is held until the end of the turn, and not taken then.
        await settle()
        assert bytes(kernel.unsent) == b"what?"
        arrives(connection, frame(b"wait"))
        kernel.close()
        connection.connection_lost(None)
        server.gate.set()
        await settle(20)
        assert server.memory.ledger.size == 0
        assert connection.loop is not None
        assert connection.loop.unsent_since is None


async def test_a_request_whose_reply_comes_later_is_acknowledged_at_once() -> None:
    async with serving() as server:
        connection, kernel = connected(server)
        connection.acknowledge()
        assert kernel.options == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)]
        kernel.close()
        connection.acknowledge()
        assert len(kernel.options) == 1, "nobody is left"
