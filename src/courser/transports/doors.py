"""Where connections come in: listening sockets, and doors that accept connections of them, without TLS or with it."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from courser.transports.connections import Connection, Connections

_log = logging.getLogger(__name__)
_SECOND = 1_000_000
_BACKLOG = 1024
"""How many connections may wait to be accepted. After a restart, all clients reconnect at once."""
_RETRY_DELAY = 1.0
"""Seconds until the next attempt to accept connections after an error, such as a lack of descriptors."""
_ATTEMPT_COUNT = 16
"""How many free ports are tried until one is free on every address."""


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of a host, all with the same port. Port 0 is any free one.

    Raises:
        OSError: an address cannot be used.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _ in range(_ATTEMPT_COUNT - 1):
        try:
            return _listen_on_all(places)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                raise
    return _listen_on_all(places)


def _listen_on_all(places: Sequence[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, (host, port, *rest) in places:
            if sockets:
                # A client that resolves the name may choose any of its addresses, and knows only one port.
                port = sockets[0].getsockname()[1]
            sockets.append(_listen(family, (host, port, *rest)))
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _listen(family: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 has its own socket.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class PlainDoor:
    """Accepts connections without TLS."""

    def __init__(self, make_connection: Callable[[], asyncio.BaseProtocol]) -> None:
        self._make_connection = make_connection
        self._servers: list[asyncio.Server] = []

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections of these sockets, which are the door's from now on."""
        loop = asyncio.get_running_loop()
        for listening in sockets:
            self._servers.append(await loop.create_server(self._make_connection, sock=listening, backlog=_BACKLOG))

    def close(self) -> None:
        for server in self._servers:
            server.close()


class Guest(Connection, Protocol):
    """A connection that comes in through the door."""

    host: str
    handshake: asyncio.Task[None] | None
    """The handshake, until it has ended."""
    has_begun: bool
    """Whether the handshake has started."""

    @property
    def is_admitted(self) -> bool:
        """Whether the handshake succeeded and the connection was let in."""

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        """What gets the decrypted bytes."""


class TlsDoor:
    """Accepts TLS connections. They count from the moment they are accepted.

    asyncio's own server reports a connection only after its handshake. A client that connects and sends nothing would
    hold a descriptor that no limit counts. A few hundred such clients would leave no descriptors for log files.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        connections: Connections,
        *,
        make_connection: Callable[[], Guest],
        handshake_deadline: int,
    ) -> None:
        """A handshake may take ``handshake_deadline`` microseconds."""
        self._context = context
        self._connections = connections
        self._make_connection = make_connection
        self._deadline = handshake_deadline / _SECOND
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections of these sockets, which are the door's from now on."""
        for listening in sockets:
            _ = self._begin(self._accept(listening), partial(_close, listening))

    def close(self) -> None:
        """Stop listening, and cancel the handshakes in progress. Takes effect in the next turn of the event loop."""
        for task in tuple(self._tasks):
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when ``close`` has taken effect: the address is free."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
            except ConnectionError:
                # The client closed the connection before it was accepted.
                continue
            except OSError as error:
                _log.warning("cannot accept connections: %s", error)
                await asyncio.sleep(_RETRY_DELAY)
                continue
            host = _host_of(accepted)
            if self._connections.admit(host):
                connection = self._make_connection()
                connection.host = host
                # Set before the handshake starts: the connection may be closed at any time if its slot is needed.
                connection.handshake = self._begin(
                    self._shake_hands(connection, accepted), partial(self._handshake_ended, connection, accepted)
                )
                self._connections.add(connection)
            else:
                accepted.close()

    async def _shake_hands(self, connection: Guest, accepted: socket.socket) -> None:
        connection.has_begun = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection.protocol, accepted, ssl=self._context, ssl_handshake_timeout=self._deadline
            )
        except OSError as error:
            _log.debug("a TLS handshake failed: %s", error)

    def _handshake_ended(self, connection: Guest, accepted: socket.socket, _: "asyncio.Task[None]") -> None:
        connection.handshake = None
        if not connection.is_admitted:
            self._connections.remove(connection)
            if not connection.has_begun:
                # It was cancelled before the handshake took over the socket.
                accepted.close()

    def _begin(self, work: Coroutine[Any, Any, None], on_done: Callable[[Any], None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(on_done)
        return task


def _host_of(accepted: socket.socket) -> str:
    try:
        host: str = accepted.getpeername()[0]
    except OSError:
        # The connection is lost already. The handshake will fail.
        return "unknown"
    return host


def _close(listening: socket.socket, _: "asyncio.Task[None]") -> None:
    listening.close()
