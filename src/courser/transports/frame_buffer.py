"""The receive buffer of a connection, in which its frames are read in place.

One buffer is reused for every request. A frame stays unchanged until the next one is requested: commands refer to its
memory.
"""

from collections.abc import Callable

import numpy as np

from courser.transports.request_memory import RequestMemory

BASE_SIZE = 64 * 1024
"""Bytes of every connection's own buffer. Untouched pages use no memory, so an idle connection is cheap."""
_KEEP_SIZE_MAX = 4 * 1024 * 1024
"""Bytes of a borrowed buffer that a connection may keep for its next request."""


class FrameBuffer:
    """The incoming bytes of one connection."""

    __slots__ = ("_buffer", "_end", "_memory", "_on_memory", "_start", "_wanted", "borrowed", "is_waiting", "size")

    def __init__(self, memory: RequestMemory, on_memory: Callable[[], None]) -> None:
        self._memory = memory
        self._on_memory = on_memory
        """Called when memory that the connection waits for is available."""
        self._buffer = _allocate(BASE_SIZE)
        self._start = self._end = 0
        self.size = 0
        """Bytes that were received but not consumed."""
        self._wanted = 0
        self.borrowed = 0
        """Bytes borrowed from the budget."""
        self.is_waiting = False
        """Whether a frame waits for memory: do not receive anything until then."""

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full until frames are consumed."""
        return self._end == len(self._buffer)

    def room(self) -> memoryview:
        """Where the next bytes go. Never empty unless ``is_full``."""
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """``size`` bytes were received into the free space."""
        if self.borrowed and self._end == 0:
            # The buffer was kept from an earlier request and could have been reclaimed until now.
            self._memory.use(self)
        self._end += count
        self.size += count

    def head(self) -> memoryview:
        """All bytes that were received but not consumed."""
        return self._buffer[self._start : self._end]

    def take(self, size: int) -> memoryview:
        """Consume a frame; it stays untouched until the next ``fit``."""
        frame = self._buffer[self._start : self._start + size]
        self._start += size
        self.size -= size
        return frame

    def take_all(self) -> None:
        """Consume the bytes that ``head`` returned."""
        self._start = self._end
        self.size = 0

    def fit(self, size: int) -> bool:
        """Make room for a frame of ``size`` bytes; the last frame is no longer used. False: wait for memory."""
        if size <= len(self._buffer) - self._start:
            if self._start == self._end:
                self._start = self._end = 0
            return True
        if size <= len(self._buffer):
            self._move(self._buffer)
            return True
        return self._grow(size)

    def rest(self) -> None:
        """No request is running: start at the front, and allow others to reclaim a large buffer."""
        if self._start == self._end:
            self._start = self._end = 0
            if self.borrowed:
                if self.borrowed > _KEEP_SIZE_MAX:
                    self._memory.give_back(self.give_up_memory())
                else:
                    self._memory.keep(self)

    def _grow(self, size: int) -> bool:
        # Room for the start of the next frame, so that a pipelining producer is not slowed down.
        wanted = size + BASE_SIZE
        self._memory.use(self)
        if self.borrowed:
            # Give back first: two connections that wait for each other's memory would wait forever.
            self._move(_allocate(max(BASE_SIZE, self.size)))
            self._memory.give_back(self.borrowed)
            self.borrowed = 0
        self._wanted = wanted
        if not self._memory.borrow(wanted, self._memory_is_there):
            self.is_waiting = True
            return False
        self._use_borrowed()
        return True

    def _memory_is_there(self) -> None:
        self.is_waiting = False
        self._use_borrowed()
        self._on_memory()

    def _use_borrowed(self) -> None:
        self.borrowed = self._wanted
        self._move(_allocate(self._wanted))

    def _move(self, target: memoryview) -> None:
        size = self.size
        target[:size] = self._buffer[self._start : self._end]
        self._buffer = target
        self._start, self._end = 0, size

    def give_up_memory(self) -> int:
        """Return to the base buffer; return how many borrowed bytes that frees."""
        size, self.borrowed = self.borrowed, 0
        self._move(_allocate(BASE_SIZE))
        return size

    def close(self) -> None:
        """The connection was closed."""
        self._memory.use(self)
        if self.is_waiting:
            self.is_waiting = False
            self._memory.withdraw(self._memory_is_there)
        if self.borrowed:
            self._memory.give_back(self.borrowed)
            self.borrowed = 0


def _allocate(size: int) -> memoryview:
    # Not bytearray, which would fill the memory with zeros first.
    return np.empty(size, np.uint8).data
