"""Memory for large replies, reused when no reference to the previous reply is left.

New memory is slow: the kernel provides it page by page, and fills each page with zeros. A program that polls in a loop
releases one reply while it waits for the next, so two or three blocks of memory are enough.
"""

import sys

import numpy as np
from numpy.typing import NDArray

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
