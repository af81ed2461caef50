"""Accept TLS connections. They count from the moment they are accepted.

asyncio's own server reports a connection only after its handshake. A client that connects and sends nothing would hold
a descriptor that no limit counts. A few hundred such clients would leave no descriptors for log files.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from courser.transports.connections import Connection, Connections
from courser.transports.plain_door import open_sockets

_log = logging.getLogger(__name__)

_SECOND = 1_000_000
_RETRY_DELAY = 1.0
"""Seconds until the next attempt to accept connections after an error, such as a lack of descriptors."""


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
    """Listening sockets, and the handshakes in progress."""

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

    async def open(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen on every address of the host. Returns the first one."""
        sockets = await open_sockets(host, port, backlog)
        host, port = sockets[0].getsockname()[:2]
        await self.serve(sockets, backlog)
        return host, port

    async def serve(self, sockets: Sequence[socket.socket], backlog: int) -> None:
        """Accept connections of these sockets, which are the door's from now on."""
        del backlog
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
