"""Memory for replies: leased for one poll, given back when its reply is sent, and bounded in all.

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
from collections import deque
from collections.abc import Callable

from courser.broker.access.sessions import Session
from courser.storage.engine_limits import DEFAULT_LIMITS
from courser.storage.read_result import ReadBuffer

_MIB = 1024 * 1024
_KEPT_SIZE_MAX = 32 * _MIB
"""Bytes of buffers that wait for the next poll."""
_LEASED_SIZE_MAX = 512 * _MIB
"""Bytes of replies on their way to clients."""
_SIZE_MIN = 256 * 1024
"""Bytes that a poll gets at least, as long as there is room."""
_PIECE_SIZE_MIN = DEFAULT_LIMITS.inline_size
"""Bytes that a read may take at once, whatever it leased: they are settled when it returns, and few reads run at once.
For more it needs a lease first, or many reads of large messages would together take far more than all leases."""
_TINY_SIZE = 16 * 1024
"""Bytes that a poll gets from the reserved share when there is no room: the kernel takes so few at once, nearly always,
so those who read go on while others do not."""
_TINY_COUNT_MAX = 16
"""Tiny replies in one turn of the event loop: reading them takes as long as reading large ones, and all others wait
for the end of the turn."""
_RESERVED_PART = 8
"""One eighth of the memory is reserved for tiny replies."""
_LEASE_PART = 8
"""A poll gets at most one eighth of what is left, so that the first ones do not take everything."""
_SHORTAGE_INTERVAL = 0.1
"""Seconds between two attempts to find memory for polls that wait."""


class LeasedBuffer(ReadBuffer):
    """A buffer that knows how large it is, and who needs it."""

    __slots__ = ("is_dropped", "is_held", "lease_count", "leased_size")

    def __init__(self) -> None:
        super().__init__()
        self.leased_size = 0
        self.lease_count = 0
        """Connections whose reply is in it."""
        self.is_held = False
        """Whether its contents must stay, even if no connection needs them now."""
        self.is_dropped = False
        """Whether somebody who is not counted any more may still use it: then nobody else ever does."""

    def lease(self, size: int) -> None:
        """It may be filled with so many bytes."""
        self.leased_size = size
        self.piece_size_max = max(size, _PIECE_SIZE_MIN)

    @property
    def capacity(self) -> int:
        """Bytes of memory."""
        return len(self._block)


_Waiter = tuple[Session, int, asyncio.Future[LeasedBuffer]]
"""Who waits, for how many bytes, and what it is told."""


class ReadBuffers:
    """The buffers of all connections. The one that was given back last is used first: it is still in the caches."""

    def __init__(self, *, leased_size_max: int = _LEASED_SIZE_MAX, kept_size_max: int = _KEPT_SIZE_MAX) -> None:
        self._leased_size_max = leased_size_max
        self._kept_size_max = kept_size_max
        self._free: list[LeasedBuffer] = []
        self._leases: dict[Session, LeasedBuffer] = {}
        self._small: deque[_Waiter] = deque()
        """Polls that wait for the least that they may get: there is no room for more, and others come first."""
        self._tiny_left = _TINY_COUNT_MAX
        """How many of those may still be served in this turn of the event loop."""
        self._large: deque[_Waiter] = deque()
        """Polls of one large message that wait for memory. Others pass them, or they would hold everybody up."""
        self.kept_size = 0
        """Bytes of the buffers that wait."""
        self.leased_size = 0
        """Bytes that polls under way may fill, and those of all other replies that are not read."""
        self._copies: dict[Session, int] = {}
        """Bytes of replies that are in no leased memory, of those who do not read them."""
        self._is_due = False
        self.on_shortage: Callable[[int, Session | None], None] | None = None
        """Set by whoever can free memory by cutting off clients that do not read. Called with the bytes that are
        missing; and with the session whose reply takes them already, or None if somebody waits for them."""

    def lease(self, session: Session, size_max: int) -> tuple[ReadBuffer | None, int]:
        """Memory for the reply to this session, and how many bytes it may have at most.

        None if there is no room: then ``lease_later`` is to be asked for so many bytes.
        """
        self.give_back(session)
        room = self._leased_size_max - self._leased_size_max // _RESERVED_PART - self.leased_size
        if room >= _SIZE_MIN:
            size = min(size_max, max(room // _LEASE_PART, _SIZE_MIN))
            return self._lend(session, size), size
        size = min(size_max, _TINY_SIZE)
        if not self.leased_size:
            return self._lend(session, size), size
        self._have_room_made(_SIZE_MIN - room)
        return None, size

    async def lease_later(self, session: Session, size: int) -> ReadBuffer:
        """Memory for a reply for which there was no room, once there is."""
        self.give_back(session)
        lent: asyncio.Future[LeasedBuffer] = asyncio.get_running_loop().create_future()
        (self._small if size <= _TINY_SIZE else self._large).append((session, size, lent))
        self._find_room()
        return await lent

    def unread(self, session: Session, size: int, *, is_copied: bool) -> None:
        """The kernel has not taken all of a reply of ``size`` bytes. ``is_copied``: it is not in the leased memory."""
        buffer = self._leases.get(session)
        if buffer is None or is_copied:
            self.give_back(session)
            self._copies[session] = size
            self.leased_size += size
        elif buffer.capacity > buffer.leased_size:
            # All of it is held for as long as the client does not read, however little of it is used.
            self.leased_size += buffer.capacity - buffer.leased_size
            buffer.leased_size = buffer.capacity
        excess = self.leased_size - self._leased_size_max
        if excess > 0 and self.on_shortage is not None:
            self.on_shortage(excess, session)

    def size_of(self, session: Session) -> int:
        """Bytes that the reply to this session takes; its share, if others get the same."""
        buffer = self._leases.get(session)
        return self._copies.get(session, 0) + (0 if buffer is None else buffer.leased_size // buffer.lease_count)

    def settle(self, session: Session, size: int) -> bool:
        """The reply has, or will have, so many bytes: more than were leased if it is one large message.

        False: there is no room for it now.
        """
        buffer = self._leases[session]
        others_size = self.leased_size - buffer.leased_size
        if size > buffer.leased_size and not self._has_room(size, others_size):
            return False
        self.leased_size = others_size + size
        buffer.lease(size)
        if self._small or self._large:
            self._serve()
        return True

    def give_back(self, session: Session) -> None:
        """The reply is sent, or nobody is left to read it. Harmless for a session that has no lease."""
        if self._copies:
            self._forget_copy(session)
        if self._leases:
            buffer = self._leases.pop(session, None)
            if buffer is not None:
                self._end_lease(buffer)

    def drop(self, session: Session) -> None:
        """Use this memory no more: somebody may still write into it, or read it. Harmless if there is none."""
        self._forget_copy(session)
        buffer = self._leases.pop(session, None)
        if buffer is not None:
            buffer.is_dropped = True
            self._end_lease(buffer)
        self._serve()

    # --- replies that several connections get ---

    def hold(self, session: Session) -> LeasedBuffer | None:
        """Keep what is in this session's buffer, until ``release``. None if it has none, or it is held already."""
        buffer = self._leases.get(session)
        if buffer is None or buffer.is_held:
            return None
        buffer.is_held = True
        return buffer

    def share(self, session: Session, buffer: LeasedBuffer) -> bool:
        """This session's reply is in a buffer that is held. False: there is no room for it now."""
        self.give_back(session)
        if not buffer.lease_count:
            if not self._has_room(buffer.leased_size, self.leased_size):
                return False
            self.leased_size += buffer.leased_size
        buffer.lease_count += 1
        self._leases[session] = buffer
        return True

    def release(self, buffer: LeasedBuffer) -> None:
        """What is in the buffer is needed for the replies that are on their way, and no longer."""
        buffer.is_held = False
        if not buffer.lease_count:
            self._keep(buffer)

    def _forget_copy(self, session: Session) -> None:
        size = self._copies.pop(session, 0)
        if size:
            self.leased_size -= size
            if self._small or self._large:
                self._serve()

    def _find_room(self) -> None:
        """Lend memory to those who wait. If there is none, have it freed, and look again soon."""
        self._serve()
        waiting = sum(size for queue in (self._small, self._large) for _, size, lent in queue if not lent.done())
        if waiting:
            self._have_room_made(waiting + min(self.leased_size - self._leased_size_max, 0))

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
        self._find_room()

    def _has_room(self, size: int, others_size: int) -> bool:
        # One that is larger than all memory for replies gets its turn when it is alone.
        return not others_size or others_size + size <= self._leased_size_max

    def _serve(self) -> None:
        """Lend memory to those who wait, in their order."""
        while self._tiny_left and self._serve_first(self._small):
            if self._tiny_left == _TINY_COUNT_MAX:
                asyncio.get_running_loop().call_soon(self._begin_turn)
            self._tiny_left -= 1
        while self._serve_first(self._large):
            pass

    def _serve_first(self, queue: deque[_Waiter]) -> bool:
        while queue:
            session, size, lent = queue[0]
            if lent.done():
                # It was given up.
                queue.popleft()
            elif self._has_room(size, self.leased_size):
                queue.popleft()
                lent.set_result(self._lend(session, size))
                return True
            else:
                return False
        return False

    def _begin_turn(self) -> None:
        self._tiny_left = _TINY_COUNT_MAX
        if self._small:
            self._serve()

    def _lend(self, session: Session, size: int) -> LeasedBuffer:
        if self._free:
            buffer = self._free.pop()
            self.kept_size -= buffer.capacity
        else:
            buffer = LeasedBuffer()
        buffer.lease(size)
        buffer.lease_count = 1
        self.leased_size += size
        self._leases[session] = buffer
        return buffer

    def _end_lease(self, buffer: LeasedBuffer) -> None:
        buffer.lease_count -= 1
        if buffer.lease_count:
            return
        self.leased_size -= buffer.leased_size
        if not buffer.is_held:
            self._keep(buffer)
        if self._small or self._large:
            self._serve()

    def _keep(self, buffer: LeasedBuffer) -> None:
        capacity = buffer.capacity
        if not buffer.is_dropped and self.kept_size + capacity <= self._kept_size_max:
            buffer.reset()
            self._free.append(buffer)
            self.kept_size += capacity
