"""Accept TLS connections and count them from the moment they are accepted.

asyncio's own server does not report a connection before its handshake is complete. A client that connects and sends
nothing would use a file descriptor that no limit counts, and a few hundred of them would leave none for log files.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from courser.transports.tcp_connection import TcpConnection

_log = logging.getLogger(__name__)

_HANDSHAKE_DEADLINE = 10.0
"""Seconds for a TLS handshake."""
_RETRY_DELAY = 1.0
"""Seconds before the next attempt to accept, when the system refuses, for example without free file descriptors."""


class TlsDoor:
    """Listening sockets and the running handshakes."""

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        make_connection: Callable[[], TcpConnection],
        has_room: Callable[[], bool],
    ) -> None:
        """``has_room`` is called before a handshake; if it returns False, the connection is refused."""
        self._context = context
        self._make_connection = make_connection
        self._has_room = has_room
        self._handshakes: set[TcpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def handshake_count(self) -> int:
        """Connections whose handshake is not complete."""
        return len(self._handshakes)

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
            self._begin(self._accept(listening), partial(_close, listening))
        return host, port

    def close(self) -> None:
        """Accept no more and stop running handshakes, in the next iteration of the event loop."""
        for task in tuple(self._tasks):
            task.cancel()

    def handshake_done(self, connection: TcpConnection) -> None:
        """The handshake is complete: from now on the listener counts the connection."""
        self._handshakes.discard(connection)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
            except ConnectionError:
                # The client disconnected before it was accepted.
                continue
            except OSError as error:
                _log.warning("cannot accept connections: %s", error)
                await asyncio.sleep(_RETRY_DELAY)
                continue
            if self._has_room():
                self._begin(self._shake_hands(accepted))
            else:
                accepted.close()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        connection = self._make_connection()
        self._handshakes.add(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_DEADLINE
            )
        except OSError as error:
            _log.debug("TLS handshake failed: %s", error)
        finally:
            self._handshakes.discard(connection)

    def _begin(self, work: Coroutine[Any, Any, None], on_done: Callable[[Any], None] | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if on_done is not None:
            task.add_done_callback(on_done)


def _close(listening: socket.socket, _: "asyncio.Task[None]") -> None:
    listening.close()


def _listen(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 has its own socket.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening
