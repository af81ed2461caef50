"""Memory for the replies of polls: leased for one reply, given back when it is sent, and bounded in all.

A reply refers to the memory that the disk was read into; nothing is copied. A buffer thus belongs to a connection from
its poll until the kernel has the reply, and to nobody in between.

A poll gives one message at least, however large. When replies fill their memory, small ones still go out, and large
ones wait until those before them are read.
"""

import asyncio
from collections import deque

from courser.broker.sessions import Session
from courser.storage.read_result import ReadBuffer

_MIB = 1024 * 1024
_KEPT_SIZE_MAX = 32 * _MIB
"""Bytes of buffers that wait for the next poll."""
_LEASED_SIZE_MAX = 512 * _MIB
"""Bytes of replies on their way to clients, before polls get smaller replies."""
_SIZE_MIN = 256 * 1024
"""Bytes that a poll may always read: it has to get on, however busy the server is."""


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
    """The buffers of all connections. The one that was given back last is used first: it is still in the caches."""

    def __init__(self, *, leased_size_max: int = _LEASED_SIZE_MAX, kept_size_max: int = _KEPT_SIZE_MAX) -> None:
        self._leased_size_max = leased_size_max
        self._kept_size_max = kept_size_max
        self._free: list[_Buffer] = []
        self._leases: dict[Session, _Buffer] = {}
        self._waiting: deque[tuple[Session, int, asyncio.Future[_Buffer]]] = deque()
        """Large replies, and how many bytes they have."""
        self.kept_size = 0
        """Bytes of the buffers that wait."""
        self.leased_size = 0
        """Bytes that polls under way may fill."""

    def lease(self, session: Session, size_max: int) -> tuple[ReadBuffer, int]:
        """Memory for the reply to this session, and how many bytes it may have at most."""
        self.give_back(session)
        size = max(min(size_max, self._leased_size_max - self.leased_size), min(size_max, _SIZE_MIN))
        return self._lend(session, size), size

    async def lease_later(self, session: Session, size: int) -> ReadBuffer:
        """Memory for a reply for which there was no room, once there is."""
        self.give_back(session)
        lent: asyncio.Future[_Buffer] = asyncio.get_running_loop().create_future()
        self._waiting.append((session, size, lent))
        self._serve()
        return await lent

    def settle(self, session: Session, size: int) -> bool:
        """The reply has so many bytes, more than were leased if it is one large message. False: no room for it now."""
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
        """The reply is sent, or nobody is left to read it. Harmless for a session that has no lease."""
        if self._leases:
            buffer = self._leases.pop(session, None)
            if buffer is not None:
                self._keep(buffer)

    def drop(self, session: Session) -> None:
        """Use this memory no more: somebody may still write into it."""
        self.leased_size -= self._leases.pop(session).leased_size
        self._serve()

    def _has_room(self, size: int, others_size: int) -> bool:
        # One that is larger than all memory for replies gets its turn when it is alone.
        return not others_size or others_size + size <= self._leased_size_max

    def _serve(self) -> None:
        """Lend memory to those who wait, in their order."""
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
