"""Let the kernel collect more bytes of a large reply before it wakes the event loop.

By default the loop wakes up for every few packets, and that costs half of the time of a bulk poll. The kernel can be
told to wait for more bytes.
"""

import asyncio
import socket
import sys

_WAIT_SIZE_MAX = 512 * 1024
"""Bytes to wait for, at most: they fit into the kernel's buffer, so the server does not have to wait."""


class ReadPatience:
    """Sets how many bytes one connection waits for. Does nothing with TLS: the number of encrypted bytes is unknown."""

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._socket: socket.socket | None = None
        self._size = 1
        if transport is not None and sys.platform == "linux" and transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")

    def expect(self, size: int) -> None:
        """Expect ``size`` more bytes of the reply; 0 if it is complete."""
        wait_size = max(min(size, _WAIT_SIZE_MAX), 1)
        if wait_size != self._size and self._socket is not None:
            self._size = wait_size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wait_size)
