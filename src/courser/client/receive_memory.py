"""Memory for large replies, used again when nobody looks at the last one any more.

New memory is slow: the kernel hands it out page by page, and fills each with zeros first. A program that polls in a
loop lets go of one reply while it waits for the next, so two or three pieces of memory go round.
"""

import sys

import numpy as np
from numpy.typing import NDArray

_SPARE_COUNT = 3
_SPARE_SIZE_MAX = 16 * 1024 * 1024
"""Bytes of a reply whose memory is kept."""
_ROUNDING = 256 * 1024
"""Sizes are rounded up to this, so that memory fits the next reply as well."""


def _references(spares: list[NDArray[np.uint8]], number: int) -> int:
    """How many references there are to a piece of memory; every view of it, and every part of a view, keeps one."""
    return sys.getrefcount(spares[number])


_UNUSED = _references([np.empty(1, np.uint8)], 0)
"""Of memory that only such a list knows: counted, because interpreters differ."""


class ReceiveMemory:
    """What one connection receives into."""

    def __init__(self) -> None:
        self._spares: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> memoryview:
        """So many bytes, filled with anything."""
        spares = self._spares
        for number in range(len(spares)):
            if len(spares[number]) >= size and _references(spares, number) == _UNUSED:
                # The latest last: what is never large enough goes first.
                spares.append(spares.pop(number))
                return spares[-1].data[:size]
        # Not bytearray: it would fill the memory with zeros first.
        memory = np.empty(-(-size // _ROUNDING) * _ROUNDING, np.uint8)
        if size <= _SPARE_SIZE_MAX:
            spares.append(memory)
            if len(spares) > _SPARE_COUNT:
                del spares[0]
        return memory.data[:size]
