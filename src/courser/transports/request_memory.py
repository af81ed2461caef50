"""Memory for large requests: one budget for all connections.

A connection has a small buffer of its own. For a larger frame it borrows memory, and waits if the budget is used up.
After the request it may keep the buffer until another connection needs the memory, so that a busy producer does not
allocate for every send.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    """A holder of borrowed memory."""

    def give_up_memory(self) -> int:
        """Release the unused buffer now; return how many borrowed bytes that frees."""


class RequestMemory:
    """How many bytes are lent, to whom, and who waits. Use it on one event loop."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.size = 0
        """Bytes lent."""
        self._idle: OrderedDict[Holder, None] = OrderedDict()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def borrow(self, size: int, ready: Callable[[], None]) -> bool:
        """Borrow ``size`` bytes. If they are not available, ``ready`` is called once they have been borrowed."""
        if not self._waiting and self._make_room(size):
            self.size += size
            return True
        self._waiting.append((size, ready))
        return False

    def withdraw(self, ready: Callable[[], None]) -> None:
        """Stop waiting."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != ready)
        self._serve()

    def give_back(self, size: int) -> None:
        """Return borrowed bytes."""
        self.size -= size
        self._serve()

    def keep(self, holder: Holder) -> None:
        """The holder's buffer is unused and may be reclaimed."""
        self._idle[holder] = None
        if self._waiting:
            self._serve()

    def use(self, holder: Holder) -> None:
        """The holder's buffer is in use again, or released."""
        self._idle.pop(holder, None)

    def _make_room(self, size: int) -> bool:
        # A request larger than the whole budget is allowed when it is the only one.
        while self.size > 0 and self.size + size > self.size_max and self._idle:
            holder, _ = self._idle.popitem(last=False)
            self.size -= holder.give_up_memory()
        return self.size == 0 or self.size + size <= self.size_max

    def _serve(self) -> None:
        while self._waiting and self._make_room(self._waiting[0][0]):
            size, ready = self._waiting.popleft()
            self.size += size
            ready()
