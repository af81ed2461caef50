"""Memory for large requests that several processes see: a request for another process is not copied to it.

Each process has a region of its own, writes to it alone, and lends it to its connections as their receive buffers. The
others have it mapped. A message between processes then says where in the region the messages of a send are, and their
owner hashes and writes them from there.

The sender keeps such memory as it is until the request is answered. If it is killed before that, the owner still has
the region: what the owner is writing does not change.
"""

import mmap
import os
import weakref
from bisect import bisect_left, insort
from collections import deque

import numpy as np

_PAGE_SIZE = mmap.PAGESIZE


class RequestRegion:
    """The region of this process."""

    def __init__(self, size: int) -> None:
        """``size`` bytes can be lent. They take no memory until they are used."""
        size = _whole_pages(size)
        self.descriptor = os.memfd_create("courser-requests", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)
        self._map = mmap.mmap(self.descriptor, size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._address = _address_of(self._bytes)
        self._free: list[tuple[int, int]] = [(0, size)]
        """Start and end of what is not lent, in order, with something lent between any two of them."""
        self._returned: deque[tuple[int, int]] = deque()
        """What is not lent any more, since the last call of ``allocate``. Any thread may have been the last user."""

    def allocate(self, size: int) -> memoryview:
        """Memory of this size. It is free again when nobody refers to it. From elsewhere if the region is full."""
        room = _whole_pages(size)
        while self._returned:
            self._merge(*self._returned.popleft())
        for index, (start, end) in enumerate(self._free):
            if end - start >= room:
                if end - start == room:
                    del self._free[index]
                else:
                    self._free[index] = start + room, end
                block = self._bytes[start : start + size]
                weakref.finalize(block, self._release, start, start + room).atexit = False
                return block.data
        return np.empty(size, np.uint8).data

    def position_of(self, memory: memoryview) -> int | None:
        """Where memory is in the region; None if it is elsewhere."""
        position = _address_of(np.frombuffer(memory, np.uint8)) - self._address
        return position if 0 <= position < len(self._bytes) else None

    @property
    def lent_size(self) -> int:
        """Bytes that are lent, in whole pages."""
        return len(self._bytes) - sum(end - start for start, end in (*self._free, *self._returned))

    def _release(self, start: int, end: int) -> None:
        # The pages go back to the system: others may need the memory more.
        self._map.madvise(mmap.MADV_REMOVE, start, end - start)
        self._returned.append((start, end))

    def _merge(self, start: int, end: int) -> None:
        index = bisect_left(self._free, (start, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == start:
            start = self._free.pop(index - 1)[0]
        insort(self._free, (start, end))


class ForeignRegion:
    """The region of another process, to read."""

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        try:
            mapped = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._bytes = memoryview(mapped)

    def at(self, position: int, size: int) -> memoryview:
        """Bytes that its process has sent the position of."""
        memory = self._bytes[position : position + size]
        assert len(memory) == size, "the other process knows its region"
        return memory


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE_SIZE) * _PAGE_SIZE


def _address_of(array: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> int:
    address: int = array.__array_interface__["data"][0]
    return address
