"""Receive large replies fast: reuse their memory, and let the kernel collect more bytes before it wakes the event loop.

New memory is slow: the kernel provides it page by page, and fills each page with zeros. A program that polls in a loop
releases one reply while it waits for the next, so two or three blocks of memory are enough.

By default the event loop wakes up for every few packets, and that costs half of the time of a bulk poll. The kernel can
be told to wait for more bytes.
"""

import asyncio
import socket
import sys

import numpy as np
from numpy.typing import NDArray

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


_SPARE_COUNT = 3
_SPARE_SIZE_MAX = 16 * 1024 * 1024
"""The largest block that is kept for reuse."""
_ROUNDING = 256 * 1024
"""Sizes are rounded up to a multiple of this, so that a block also fits the next reply."""


def _references(spares: list[NDArray[np.uint8]], number: int) -> int:
    """The number of references to a block. Every view, and every part of a view, holds one."""
    return sys.getrefcount(spares[number])


_UNUSED = _references([np.empty(1, np.uint8)], 0)
"""The number of references to a block that only the list holds. Measured, because interpreters differ."""


class ReceiveMemory:
    """The receive memory of one connection."""

    def __init__(self) -> None:
        self._spares: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes with arbitrary contents."""
        spares = self._spares
        for number in range(len(spares)):
            if len(spares[number]) >= size and _references(spares, number) == _UNUSED:
                # Move it to the end, so that blocks that are never large enough are dropped first.
                spares.append(spares.pop(number))
                return spares[-1].data[:size]
        # Not a bytearray: that would fill the memory with zeros first.
        memory = np.empty(-(-size // _ROUNDING) * _ROUNDING, np.uint8)
        if size <= _SPARE_SIZE_MAX:
            spares.append(memory)
            if len(spares) > _SPARE_COUNT:
                del spares[0]
        return memory.data[:size]
