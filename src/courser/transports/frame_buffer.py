"""Where the bytes of a connection land, and where its frames are read in place.

One buffer, used again for each request. A frame stays where it is, untouched, until the next one is asked for: commands
refer to its memory.
"""

from collections.abc import Callable

import numpy as np

from courser.transports.request_memory import RequestMemory

BASE_SIZE = 64 * 1024
"""Bytes that every connection has. Untouched pages cost nothing, so an idle one is cheap."""
_KEEP_SIZE_MAX = 4 * 1024 * 1024
"""Bytes of a borrowed buffer that a connection may keep for its next request."""


class FrameBuffer:
    """The incoming bytes of one connection."""

    __slots__ = ("_buffer", "_end", "_memory", "_on_memory", "_start", "borrowed", "is_waiting", "size")

    def __init__(self, memory: RequestMemory, on_memory: Callable[[], None]) -> None:
        self._memory = memory
        self._on_memory = on_memory
        """Called when memory that was waited for is there."""
        self._buffer = _allocate(BASE_SIZE)
        self._start = self._end = 0
        self.size = 0
        """Bytes that were received and not consumed."""
        self.borrowed = 0
        """Bytes taken from the budget."""
        self.is_waiting = False
        """Whether a frame waits for memory: nothing must be received meanwhile."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits in before frames are consumed."""
        return self._end == len(self._buffer)

    def room(self) -> memoryview:
        """Where the next bytes go. Never empty unless ``is_full``."""
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""
        if self.borrowed and self._end == 0:
            # The buffer was kept from an earlier request, and anybody could have asked for it until now.
            self._memory.use(self)
        self._end += count
        self.size += count

    def head(self) -> memoryview:
        """All that was received and not consumed."""
        return self._buffer[self._start : self._end]

    def take(self, size: int) -> memoryview:
        """Consume a frame; it stays untouched until the next ``fit``."""
        frame = self._buffer[self._start : self._start + size]
        self._start += size
        self.size -= size
        return frame

    def take_all(self) -> None:
        """Consume what ``head`` gave."""
        self._start = self._end
        self.size = 0

    def fit(self, size: int) -> bool:
        """Make room for more of a frame of ``size`` bytes, the last one being done with.

        Returns False if memory must be waited for. A frame that is larger than the buffer gets a larger one when the
        buffer is full, and not before: memory is lent for what has arrived and a step more.
        """
        capacity = len(self._buffer)
        if size <= capacity - self._start:
            if self._start == self._end:
                self._start = self._end = 0
            return True
        if self._start:
            self._move(self._buffer)
        return self._end < capacity or self._grow(size)

    def rest(self) -> None:
        """No request is under way: begin at the front, and let others have a large buffer if they need it."""
        if self._start == self._end:
            self._start = self._end = 0
            if self.borrowed:
                if self.borrowed > _KEEP_SIZE_MAX:
                    self._memory.give_back(self, self.give_up_memory())
                else:
                    self._memory.keep(self, self.borrowed)

    def _grow(self, size: int) -> bool:
        self._memory.use(self)
        # Room for the beginning of the next frame, so that a producer that sends ahead is not slowed down.
        wanted_size = size + BASE_SIZE
        lent_size = self._memory.borrow(self, held_size=self.borrowed, arrived_size=self.size, wanted_size=wanted_size)
        if not lent_size:
            self.is_waiting = True
            return False
        self._enlarge(lent_size)
        return True

    def memory_came(self, size: int) -> None:
        """The memory that was waited for is there."""
        self.is_waiting = False
        self._enlarge(size)
        self._on_memory()

    def _enlarge(self, size: int) -> None:
        self.borrowed = size
        self._move(_allocate(size))

    def _move(self, target: memoryview) -> None:
        size = self.size
        target[:size] = self._buffer[self._start : self._end]
        self._buffer = target
        self._start, self._end = 0, size

    def give_up_memory(self) -> int:
        """Back to the base buffer; return how many borrowed bytes that frees."""
        size, self.borrowed = self.borrowed, 0
        self._move(_allocate(BASE_SIZE))
        return size

    def close(self) -> None:
        """The connection is gone."""
        self._memory.use(self)
        if self.is_waiting:
            self.is_waiting = False
            self._memory.withdraw(self)
        if self.borrowed:
            borrowed, self.borrowed = self.borrowed, 0
            self._memory.give_back(self, borrowed)


def _allocate(size: int) -> memoryview:
    # Not bytearray: it would fill the memory with zeros first.
    return np.empty(size, np.uint8).data
