"""Listening sockets, and connections without TLS."""

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any

_ATTEMPT_COUNT = 16
"""How many free ports are tried until one is free on every address."""


async def open_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Listen on every address of a host, all with the same port. Port 0 is any free one.

    Raises:
        OSError: an address cannot be used.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _ in range(_ATTEMPT_COUNT - 1):
        try:
            return _listen_on_all(places, backlog)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                raise
    return _listen_on_all(places, backlog)


def _listen_on_all(places: Sequence[tuple[int, tuple[Any, ...]]], backlog: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, (host, port, *rest) in places:
            if sockets:
                # A client that resolves the name may choose any of its addresses, and knows only one port.
                port = sockets[0].getsockname()[1]
            sockets.append(_listen(family, (host, port, *rest), backlog))
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


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


class PlainDoor:
    """Accepts connections without TLS."""

    def __init__(self, make_connection: Callable[[], asyncio.BaseProtocol]) -> None:
        self._make_connection = make_connection
        self._servers: list[asyncio.Server] = []

    async def open(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen on every address of the host. Returns the first one."""
        sockets = await open_sockets(host, port, backlog)
        host, port = sockets[0].getsockname()[:2]
        await self.serve(sockets, backlog)
        return host, port

    async def serve(self, sockets: Sequence[socket.socket], backlog: int) -> None:
        """Accept connections of these sockets, which are the door's from now on."""
        loop = asyncio.get_running_loop()
        for listening in sockets:
            self._servers.append(await loop.create_server(self._make_connection, sock=listening, backlog=backlog))

    def close(self) -> None:
        for server in self._servers:
            server.close()
