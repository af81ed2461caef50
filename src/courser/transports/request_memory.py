"""Memory for large requests: one budget for all connections.

A connection has a small buffer of its own. For a larger frame it borrows, and waits if the budget is spent. A
connection that is done may keep its buffer, so that a busy producer does not allocate for each send, until somebody
else needs the memory.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    """Somebody who keeps borrowed memory."""

    def give_up_memory(self) -> int:
        """Drop the buffer now, which is not in use; return how many borrowed bytes that frees."""


class RequestMemory:
    """How many bytes are lent, to whom, and who waits. Used on one event loop."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.size = 0
        """Bytes lent."""
        self._idle: OrderedDict[Holder, None] = OrderedDict()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def borrow(self, size: int, ready: Callable[[], None]) -> bool:
        """Take ``size`` bytes. If they are not to be had, ``ready`` is called once they have been taken."""
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
        """Note that its buffer is not in use and may be asked for."""
        self._idle[holder] = None
        if self._waiting:
            self._serve()

    def use(self, holder: Holder) -> None:
        """Note that its buffer is in use (again), or gone."""
        self._idle.pop(holder, None)

    def _make_room(self, size: int) -> bool:
        # A request larger than the whole budget gets its turn when it is alone.
        while self.size > 0 and self.size + size > self.size_max and self._idle:
            holder, _ = self._idle.popitem(last=False)
            self.size -= holder.give_up_memory()
        return self.size == 0 or self.size + size <= self.size_max

    def _serve(self) -> None:
        while self._waiting and self._make_room(self._waiting[0][0]):
            size, ready = self._waiting.popleft()
            self.size += size
            ready()
