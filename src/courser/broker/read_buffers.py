"""Memory for the replies of polls: leased for one reply, returned when it is sent, and limited in total.

A reply refers to the memory that the disk was read into; nothing is copied. So a buffer belongs to a connection from
its poll until the kernel has the reply.

A poll returns at least one message, however large. When the memory for replies is full, small replies are still sent,
and large ones wait until earlier ones are read.
"""

import asyncio
from collections import deque

from courser.broker.sessions import Session
from courser.storage.read_result import ReadBuffer

_MIB = 1024 * 1024
_KEPT_SIZE_MAX = 32 * _MIB
"""Bytes of unused buffers that are kept for the next polls."""
_LEASED_SIZE_MAX = 512 * _MIB
"""Bytes of unsent replies, above which polls get smaller replies."""
_SIZE_MIN = 256 * 1024
"""Bytes that a poll may always read, so that it makes progress however busy the server is."""


class _Buffer(ReadBuffer):
    """A buffer that knows how large it is."""

    __slots__ = ("leased_size",)

    def __init__(self) -> None:
        super().__init__()
        self.leased_size = 0

    @property
    def capacity(self) -> int:
        """Bytes of memory."""
        return len(self._block)


class ReadBuffers:
    """The buffers of all connections. The buffer returned last is used first: it is still in the CPU cache."""

    def __init__(self, *, leased_size_max: int = _LEASED_SIZE_MAX, kept_size_max: int = _KEPT_SIZE_MAX) -> None:
        self._leased_size_max = leased_size_max
        self._kept_size_max = kept_size_max
        self._free: list[_Buffer] = []
        self._leases: dict[Session, _Buffer] = {}
        self._waiting: deque[tuple[Session, int, asyncio.Future[_Buffer]]] = deque()
        """The sizes of large replies, in bytes."""
        self.kept_size = 0
        """Bytes of the unused buffers."""
        self.leased_size = 0
        """Bytes that running polls may fill."""

    def lease(self, session: Session, size_max: int) -> tuple[ReadBuffer, int]:
        """Lease memory for a reply to this session. Return it with the maximum size of the reply in bytes."""
        self.give_back(session)
        size = max(min(size_max, self._leased_size_max - self.leased_size), min(size_max, _SIZE_MIN))
        return self._lend(session, size), size

    async def lease_later(self, session: Session, size: int) -> ReadBuffer:
        """Wait for memory for a reply for which there was no room."""
        self.give_back(session)
        lent: asyncio.Future[_Buffer] = asyncio.get_running_loop().create_future()
        self._waiting.append((session, size, lent))
        self._serve()
        return await lent

    def settle(self, session: Session, size: int) -> bool:
        """Report the size of the reply. One large message may exceed the lease; False if it has no room now."""
        buffer = self._leases[session]
        others_size = self.leased_size - buffer.leased_size
        if size > buffer.leased_size and not self._has_room(size, others_size):
            return False
        self.leased_size = others_size + size
        buffer.leased_size = size
        if self._waiting:
            self._serve()
        return True

    def give_back(self, session: Session) -> None:
        """Return the memory: the reply was sent, or the connection closed. Does nothing without a lease."""
        if self._leases:
            buffer = self._leases.pop(session, None)
            if buffer is not None:
                self._keep(buffer)

    def drop(self, session: Session) -> None:
        """Do not reuse this memory: a thread may still write into it."""
        self.leased_size -= self._leases.pop(session).leased_size
        self._serve()

    def _has_room(self, size: int, others_size: int) -> bool:
        # A reply larger than all memory for replies is allowed when it is the only one.
        return not others_size or others_size + size <= self._leased_size_max

    def _serve(self) -> None:
        """Lease memory to waiting polls, in order."""
        while self._waiting:
            session, size, lent = self._waiting[0]
            if not lent.done():
                if not self._has_room(size, self.leased_size):
                    return
                lent.set_result(self._lend(session, size))
            self._waiting.popleft()

    def _lend(self, session: Session, size: int) -> _Buffer:
        if self._free:
            buffer = self._free.pop()
            self.kept_size -= buffer.capacity
        else:
            buffer = _Buffer()
        buffer.leased_size = size
        self.leased_size += size
        self._leases[session] = buffer
        return buffer

    def _keep(self, buffer: _Buffer) -> None:
        self.leased_size -= buffer.leased_size
        capacity = buffer.capacity
        if self.kept_size + capacity <= self._kept_size_max:
            buffer.reset()
            self._free.append(buffer)
            self.kept_size += capacity
        if self._waiting:
            self._serve()
