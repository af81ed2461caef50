"""How much of a large reply must have come before the event loop is told.

By default it is told of every few packets, and each time costs more than what it receives: half of the time of a bulk
poll. The kernel can be asked to wait for more.
"""

import asyncio
import socket
import sys

_WAIT_SIZE_MAX = 512 * 1024
"""Bytes that are waited for: the kernel has room for them, and the server need not wait for us."""


class ReadPatience:
    """What one connection waits for. Does nothing where bytes come encrypted: nobody knows then how many there are."""

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._socket: socket.socket | None = None
        self._size = 1
        if transport is not None and sys.platform == "linux" and transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")

    def expect(self, size: int) -> None:
        """So many bytes of the reply are still to come; 0 if it is whole."""
        wait_size = max(min(size, _WAIT_SIZE_MAX), 1)
        if wait_size != self._size and self._socket is not None:
            self._size = wait_size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wait_size)
