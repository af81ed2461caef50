"""The way in when TLS is on: connections count from the moment they are accepted.

asyncio's own server says nothing of a connection before its handshake is done. Whoever connects and sends nothing would
hold a descriptor that no limit counts, and a few hundred of them would leave none for the files of the log.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from courser.transports.connections import Connections
from courser.transports.tcp_connection import TlsConnection

_log = logging.getLogger(__name__)

_HANDSHAKE_DEADLINE = 10.0
"""Seconds for a TLS handshake."""
_RETRY_DELAY = 1.0
"""Seconds until the next try to accept a connection, when the system refuses: for want of descriptors, say."""


class TlsDoor:
    """Listening sockets, and the handshakes of those who came."""

    def __init__(
        self,
        context: ssl.SSLContext,
        connections: Connections,
        *,
        make_connection: Callable[[], TlsConnection],
        host_of: Callable[[socket.socket], str],
    ) -> None:
        self._context = context
        self._connections = connections
        self._make_connection = make_connection
        self._host_of = host_of
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen on every address of the host; return the first one."""
        loop = asyncio.get_running_loop()
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(places):
                sockets.append(_listen(family, address, backlog))
        except OSError:
            for listening in sockets:
                listening.close()
            raise
        host, port = sockets[0].getsockname()[:2]
        for listening in sockets:
            _ = self._begin(self._accept(listening), partial(_close, listening))
        return host, port

    def close(self) -> None:
        """Let nobody in, and stop the handshakes under way. All of it happens in the next turn of the event loop."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
            except ConnectionError:
                # The client's: it was gone before it was let in.
                continue
            except OSError as error:
                _log.warning("cannot accept connections: %s", error)
                await asyncio.sleep(_RETRY_DELAY)
                continue
            host = self._host_of(accepted)
            if self._connections.make_place(host):
                connection = self._make_connection()
                connection.host = host
                # Before it begins: whoever needs the place may stop it.
                connection.handshake = self._begin(
                    self._shake_hands(connection, accepted), partial(self._handshake_ended, connection, accepted)
                )
                self._connections.add(connection)
            else:
                accepted.close()

    async def _shake_hands(self, connection: TlsConnection, accepted: socket.socket) -> None:
        connection.has_begun = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_DEADLINE
            )
        except OSError as error:
            _log.debug("a TLS handshake failed: %s", error)

    def _handshake_ended(self, connection: TlsConnection, accepted: socket.socket, _: "asyncio.Task[None]") -> None:
        connection.handshake = None
        if connection.loop is None:
            self._connections.remove(connection)
            if not connection.has_begun:
                # It was stopped before anybody took the socket over.
                accepted.close()

    def _begin(self, work: Coroutine[Any, Any, None], on_done: Callable[[Any], None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(on_done)
        return task


def _close(listening: socket.socket, _: "asyncio.Task[None]") -> None:
    listening.close()


def _listen(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Its twin for IPv4 has a socket of its own.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening
