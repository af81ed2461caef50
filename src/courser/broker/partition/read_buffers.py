"""Memory for replies: leased for one poll, given back when its reply is sent, and counted in one ledger.

A reply refers to the memory that the disk was read into; nothing is copied. A buffer thus belongs to a connection from
its poll until the kernel has the reply, and to nobody in between. Several connections may send the same reply, and
``RecentReads`` may hold it for others that will ask for it: the memory is used again when nobody refers to it.

Other replies (older forms of messages, lists, archives) count as soon as the kernel does not take all of them: whoever
reads at once costs nothing.

A poll gives one message at least, however large. Memory for a large one is leased before it is read. When replies fill
their memory, polls first get less, and then wait in their order until replies before them are read, or until clients
that do not read are cut off.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from courser.broker.access.sessions import Session
from courser.model.memory_ledger import MemoryLedger
from courser.storage.read_result import LeasedBuffer, ReadBuffer
from courser.storage.settings import DEFAULT_LIMITS

_MIB = 1024 * 1024
_KEPT_SIZE_MAX = 32 * _MIB
"""Bytes of buffers that wait for the next poll."""
_SIZE_MIN = 256 * 1024
"""Bytes that a poll gets at least, as long as there is room."""
_PIECE_SIZE_MIN = DEFAULT_LIMITS.inline_size
"""Bytes that a read may take at once, whatever it leased: they are settled when it returns, and few reads run at once.
For more it needs a lease first, or many reads of large messages would together take far more than all leases."""
_TINY_SIZE = 16 * 1024
"""Bytes that a poll gets from the reserved share when there is no room: the kernel takes so few at once, nearly always,
so those who read go on while others do not."""
_LEASE_PART = 8
"""A poll gets at most one eighth of what is left, so that the first ones do not take everything."""
_SHORTAGE_INTERVAL = 0.1
"""Seconds between two attempts to find memory for polls that wait."""


class ReadBuffers:
    """The buffers of all connections. The one that was given back last is used first: it is still in the caches."""

    def __init__(self, ledger: MemoryLedger, *, kept_size_max: int = _KEPT_SIZE_MAX) -> None:
        self.ledger = ledger
        """Counts what polls under way may fill, and all replies that are not read."""
        self._kept_size_max = kept_size_max
        self._free: list[LeasedBuffer] = []
        self.kept_size = 0
        """Bytes of the buffers that wait. They are not in the ledger."""
        self._is_due = False
        self.on_shortage: Callable[[int, Session | None], None] | None = None
        """Set by whoever can free memory by cutting off clients that do not read. Called with the bytes that are
        missing; and with the session whose reply takes them already, or None if somebody waits for them."""

    def lease(self, session: Session, size_max: int) -> tuple[ReadBuffer | None, int]:
        """Memory for the reply to this session, and the bytes that it may have. None: ask ``lease_later`` for those."""
        if session.lease is not None:
            self.give_back(session)
        ledger = self.ledger
        room = ledger.large_size_max - ledger.size
        if room >= _SIZE_MIN:
            size = min(size_max, max(room // _LEASE_PART, _SIZE_MIN))
            ledger.size += size
            return self._lend(session, size), size
        self._have_room_made(_SIZE_MIN - room)
        return None, min(size_max, _TINY_SIZE)

    async def lease_later(self, session: Session, size: int) -> ReadBuffer:
        """Memory for a reply for which there was no room, once there is."""
        self.give_back(session)
        ledger, is_small = self.ledger, size <= _TINY_SIZE
        if not ledger.must_wait(0, is_small=is_small) and self._reserve(size):
            return self._lend(session, size)
        lent: asyncio.Future[LeasedBuffer] = asyncio.get_running_loop().create_future()
        claim = ledger.wait(partial(self._take, session, size, lent), missing_size=size, is_small=is_small)
        self._have_room_made(ledger.missing_size)
        try:
            return await lent
        finally:
            ledger.withdraw(claim)

    def unread(self, session: Session, size: int, *, is_copied: bool) -> None:
        """The kernel has not taken all of a reply of ``size`` bytes. ``is_copied``: it is not in the leased memory."""
        buffer = session.lease
        if buffer is None or is_copied or not buffer.capacity:
            self.give_back(session)
            buffer = session.lease = LeasedBuffer(0)
        else:
            # All of it is held for as long as the client does not read, however little of it is used.
            size = max(buffer.capacity, buffer.leased_size)
        excess = self.ledger.take(size - buffer.leased_size)
        buffer.leased_size = size
        if excess and self.on_shortage is not None:
            self.on_shortage(excess, session)

    def size_of(self, session: Session) -> int:
        """Bytes that the reply to this session takes; its share, if others get the same."""
        buffer = session.lease
        return 0 if buffer is None else buffer.leased_size // buffer.user_count

    def settle(self, session: Session, size: int) -> bool:
        """The reply has, or will have, so many bytes: more than leased if one message is large. False: no room now."""
        buffer, ledger = session.lease, self.ledger
        assert buffer is not None, "it was leased for this reply"
        leased_size = buffer.leased_size
        ledger.size -= leased_size
        if size <= leased_size:
            ledger.size += size
        elif self._reserve(size):
            buffer.piece_size_max = max(size, _PIECE_SIZE_MIN)
        else:
            ledger.size += leased_size
            return False
        buffer.leased_size = size
        if ledger.waiting_count:
            ledger.serve()
        return True

    def give_back(self, session: Session) -> None:
        """The reply is sent, or nobody is left to read it. Harmless for a session that has no lease."""
        buffer = session.lease
        if buffer is not None:
            session.lease = None
            self.release(buffer)

    def drop(self, session: Session) -> None:
        """Use this memory no more: somebody may still write into it, or read it. Harmless if there is none."""
        if session.lease is not None:
            session.lease.is_dropped = True
            self.give_back(session)

    # --- replies that several connections get ---

    def hold(self, session: Session) -> LeasedBuffer | None:
        """Keep what is in this session's buffer, until ``release``. None if it has none."""
        buffer = session.lease
        if buffer is not None:
            buffer.user_count += 1
        return buffer

    def share(self, session: Session, buffer: LeasedBuffer) -> None:
        """This session's reply is in a buffer that is held."""
        self.give_back(session)
        buffer.user_count += 1
        session.lease = buffer

    def release(self, buffer: LeasedBuffer) -> None:
        """One user less. After the last one, the memory is used for other replies."""
        buffer.user_count -= 1
        if buffer.user_count:
            return
        ledger, capacity = self.ledger, buffer.capacity
        ledger.size -= buffer.leased_size
        if not buffer.is_dropped and capacity and self.kept_size + capacity <= self._kept_size_max:
            self._free.append(buffer)
            self.kept_size += capacity
        if ledger.waiting_count:
            ledger.serve()

    def _lend(self, session: Session, size: int) -> LeasedBuffer:
        if self._free:
            buffer = self._free.pop()
            self.kept_size -= buffer.capacity
            buffer.used = 0  # What it held is overwritten from now on.
            buffer.user_count = 1
        else:
            buffer = LeasedBuffer()
        buffer.leased_size = size
        buffer.piece_size_max = max(size, _PIECE_SIZE_MIN)
        session.lease = buffer
        return buffer

    def _reserve(self, size: int) -> bool:
        if self.ledger.reserve(size, is_small=size <= _TINY_SIZE):
            return True
        if self.ledger.size:
            return False
        # One that is larger than all memory for replies gets its turn when it is alone.
        self.ledger.take(size)
        return True

    def _take(self, session: Session, size: int, lent: "asyncio.Future[LeasedBuffer]") -> bool:
        if not lent.done():
            if not self._reserve(size):
                return False
            lent.set_result(self._lend(session, size))
        return True

    def _have_room_made(self, size: int) -> None:
        """Have memory freed, unless that was just done, and look again soon."""
        if self._is_due:
            return
        self._is_due = True
        asyncio.get_running_loop().call_later(_SHORTAGE_INTERVAL, self._look_again)
        if self.on_shortage is not None:
            self.on_shortage(size, None)

    def _look_again(self) -> None:
        self._is_due = False
        if self.ledger.waiting_count:
            self._have_room_made(self.ledger.missing_size)
