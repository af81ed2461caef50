"""The receive buffer of a connection. Frames are decoded in place.

The buffer is reused for each request. A frame stays unchanged until the next one is requested, because commands refer
to its memory.
"""

from collections.abc import Callable

from courser.model.memory_ledger import MemoryLedger
from courser.transports.request_memory import RequestMemory, private_memory

BASE_SIZE = 64 * 1024
"""Bytes of the buffer that every connection has. Pages that were never touched use no memory."""
_KEEP_SIZE_MAX = 4 * 1024 * 1024
"""Maximum size in bytes of a larger buffer that a connection keeps for its next request."""
_LARGE_SIZE = 2 * 1024 * 1024
"""Bytes of a buffer that the kernel may fill at once: some 2 ms, and more if it has to find memory for them."""
_PIECE_SIZE = 64 * 1024
"""Bytes that are received at a time into a larger one. The kernel may hold 32 MiB for a connection, and the library
(libuv) reads 32 times in a turn of the event loop at most: with this, 2 MiB, and then others are served."""


class FrameBuffer:
    """The incoming bytes of one connection."""

    __slots__ = ("_buffer", "_end", "_memory", "_on_memory", "_start", "size")

    def __init__(self, ledger: MemoryLedger, on_memory: Callable[[], None]) -> None:
        self._memory = RequestMemory(ledger, self._memory_came, self._shrink)
        self._on_memory = on_memory
        """Called when memory that a frame waited for is granted."""
        self._buffer = private_memory(BASE_SIZE)
        self._start = self._end = 0
        self.size = 0
        """Bytes received but not consumed."""

    @property
    def is_waiting(self) -> bool:
        """Whether a frame waits for memory. Nothing may be received meanwhile."""
        return self._memory.is_waiting

    @property
    def reserved_size(self) -> int:
        """Bytes reserved for a buffer that is larger than usual."""
        return self._memory.size

    @property
    def is_full(self) -> bool:
        """Whether frames must be consumed before more can be received."""
        return self._end == len(self._buffer)

    def room(self, size_hint: int = -1) -> memoryview:
        """Where to put the next bytes, as many as there may be. Empty only if ``is_full``."""
        del size_hint
        if self._memory.size > _LARGE_SIZE:
            return self._buffer[self._end : self._end + _PIECE_SIZE]
        return self._buffer[self._end :] if self._end else self._buffer

    def received(self, count: int) -> None:
        """Note that ``count`` bytes were put there."""
        if self._end == 0 and self._memory.size:
            # The buffer was kept from an earlier request. From now on it cannot be evicted.
            self._memory.use()
        self._end += count
        self.size += count

    def head(self) -> memoryview:
        """All bytes received but not consumed."""
        return self._buffer[self._start : self._end]

    def take(self, size: int) -> memoryview:
        """Consume a frame. It stays unchanged until the next ``fit``."""
        frame = self._buffer[self._start : self._start + size]
        self._start += size
        self.size -= size
        return frame

    def take_all(self) -> None:
        """Consume what ``head`` returned."""
        self._start = self._end
        self.size = 0

    def fit(self, size: int) -> bool:
        """Make room for a frame of ``size`` bytes. The previous frame is overwritten.

        Returns False if the frame must wait for memory. A frame that is larger than the buffer gets a larger buffer
        only when the buffer is full: memory is reserved for what has arrived plus one step.
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
        """Reset the buffer when no request is in progress. A larger one can then be evicted."""
        if self._start == self._end:
            self._start = self._end = 0
            if self._memory.size > _KEEP_SIZE_MAX:
                self._memory.close()
                self._shrink()
            elif self._memory.size:
                self._memory.keep()

    def _grow(self, size: int) -> bool:
        self._memory.use()
        # Includes room for the start of the next frame, so that pipelined requests are not slowed down.
        if not self._memory.grow(self.size, size + BASE_SIZE):
            return False
        self._move(private_memory(self._memory.size))
        return True

    def _memory_came(self) -> None:
        self._move(private_memory(self._memory.size))
        self._on_memory()

    def _shrink(self) -> None:
        self._move(private_memory(BASE_SIZE))

    def _move(self, target: memoryview) -> None:
        size = self.size
        target[:size] = self._buffer[self._start : self._end]
        self._buffer = target
        self._start, self._end = 0, size

    def close(self) -> None:
        """Return all reserved memory, because the connection is lost."""
        self._memory.close()
