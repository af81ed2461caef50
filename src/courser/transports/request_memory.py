"""Memory for large requests: one budget for all connections.

Each connection has its own small buffer. A larger request borrows memory for what has arrived plus one step, so a
client that announces a large request but sends little holds little memory. While most of the budget is free, a request
gets its full size in one step, and nothing is copied.

When memory is short, requests with the fewest missing bytes go first, and small requests have a reserved share. One
request at a time may overdraw the budget: otherwise, requests that each hold a part and wait for the rest would wait
forever. The lent memory is therefore at most the budget plus one request.

After a request, a connection may keep its buffer until another one needs the memory, so that a busy producer does not
allocate for each send.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

_KIB = 1024
_MIB = 1024 * _KIB

SMALL_REQUEST_SIZE_MAX = 1 * _MIB + 128 * _KIB
"""Maximum size in bytes of a request that may use the reserved share: a batch of a megabyte and its overhead."""
_RESERVED_PART = 8
"""One eighth of the budget is reserved for small requests."""
_GENEROUS_PART = 4
"""A request gets its full size at once if that is at most a quarter of the free memory."""
_STEP_SIZE = 256 * _KIB
"""Bytes lent beyond what has arrived, at first. Later steps double the buffer, so few bytes are copied twice."""
_RELIEF_PART = 4
"""At most a quarter of the budget is reclaimed from slow senders at a time."""


def private_memory(size: int) -> memoryview:
    """Memory of this process that may contain anything."""
    # Not a bytearray, which would be zeroed first.
    return np.empty(size, np.uint8).data


class MemoryBorrower(Protocol):
    """A buffer that borrows memory."""

    def give_up_memory(self) -> int:
        """Release the unused buffer. Returns how many borrowed bytes that frees."""

    def memory_came(self, size: int) -> None:
        """Called at the end of a wait. ``size`` is the total number of bytes lent."""


@dataclass(order=True, slots=True)
class _Waiter:
    """A request that waits for memory. The sort order is the order in which memory is granted."""

    missing_size: int
    number: int
    """Grows with every wait."""
    holder: MemoryBorrower = field(compare=False)
    held_size: int = field(compare=False)
    arrived_size: int = field(compare=False)
    wanted_size: int = field(compare=False)


class RequestMemory:
    """Lends memory to requests, and queues those that must wait. Used on one event loop."""

    def __init__(self, size_max: int, allocate: Callable[[int], memoryview] = private_memory) -> None:
        """``allocate`` gives the memory that is lent."""
        self.size_max = size_max
        self.allocate = allocate
        self._large_size_max = size_max - size_max // _RESERVED_PART
        self.size = 0
        """Bytes lent."""
        self._idle: OrderedDict[MemoryBorrower, int] = OrderedDict()
        """Unused buffers that can be reclaimed, and their sizes."""
        self._idle_size = 0
        self._waiting: dict[MemoryBorrower, _Waiter] = {}
        self._small: list[_Waiter] = []
        self._large: list[_Waiter] = []
        self._overdrawn_by: MemoryBorrower | None = None
        self._overdraft_size = 0
        """Bytes lent to it beyond the budget. They do not reduce the reserved share."""
        self._wait_count = 0
        self._looked_at_count = 0
        """``_wait_count`` at the last call of ``starving_size``."""
        self._is_serving = False

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for memory."""
        return len(self._waiting)

    def borrow(self, holder: MemoryBorrower, *, held_size: int, arrived_size: int, wanted_size: int) -> int:
        """Lend more memory, up to ``wanted_size``, to a request of which ``arrived_size`` bytes have arrived.

        Returns the total number of bytes lent to it, including ``held_size``. If that is 0, it must wait, and
        ``memory_came`` is called later.
        """
        waiter = _Waiter(wanted_size - arrived_size, self._wait_count, holder, held_size, arrived_size, wanted_size)
        queue = self._small if wanted_size <= SMALL_REQUEST_SIZE_MAX else self._large
        self._drop_withdrawn(queue)
        granted = 0 if queue and queue[0] < waiter else self._grant(waiter)
        if not granted:
            self._wait_count += 1
            self._waiting[holder] = waiter
            heapq.heappush(queue, waiter)
        return granted

    def withdraw(self, holder: MemoryBorrower) -> None:
        """Stop waiting."""
        if self._waiting.pop(holder, None) is not None:
            self._serve()

    def give_back(self, holder: MemoryBorrower, size: int) -> None:
        """Return borrowed bytes."""
        self.size -= size
        self._end_overdraft(holder)
        if self._waiting:
            self._serve()

    def keep(self, holder: MemoryBorrower, size: int) -> None:
        """Note that its buffer of ``size`` bytes is unused and can be reclaimed."""
        if holder not in self._idle:
            self._idle[holder] = size
            self._idle_size += size
        self._end_overdraft(holder)
        if self._waiting:
            self._serve()

    def use(self, holder: MemoryBorrower) -> None:
        """Note that its buffer is in use again, or no longer exists."""
        self._idle_size -= self._idle.pop(holder, 0)

    def starving_size(self) -> int:
        """How many bytes slow senders should free for requests that were already waiting at the last call.

        Called about once a second.
        """
        starving = [waiter for waiter in self._waiting.values() if waiter.number < self._looked_at_count]
        self._looked_at_count = self._wait_count
        return min(sum(waiter.missing_size for waiter in starving), self.size_max // _RELIEF_PART)

    # --- lending ---

    def _grant(self, waiter: _Waiter) -> int:
        held, wanted = waiter.held_size, waiter.wanted_size
        limit = self.size_max if wanted <= SMALL_REQUEST_SIZE_MAX else self._large_size_max
        free = limit - self.size + self._idle_size + self._overdraft_size
        granted = wanted
        if wanted - held > free // _GENEROUS_PART:
            granted = min(wanted, max(2 * held, waiter.arrived_size + _STEP_SIZE))
            if granted - held > free:
                if self._overdrawn_by is not None:
                    return 0
                self._overdrawn_by = waiter.holder
                self._overdraft_size = wanted - held
                granted = wanted
        self._take_from_idle(self.size + granted - held - self._overdraft_size - limit)
        self.size += granted - held
        return granted

    def _take_from_idle(self, size: int) -> None:
        while size > 0 and self._idle:
            holder, idle_size = self._idle.popitem(last=False)
            self._idle_size -= idle_size
            freed = holder.give_up_memory()
            self.size -= freed
            size -= freed

    def _end_overdraft(self, holder: MemoryBorrower) -> None:
        if self._overdrawn_by is holder:
            self._overdrawn_by = None
            self._overdraft_size = 0

    def _serve(self) -> None:
        """Lend to waiting requests as long as there is memory."""
        if self._is_serving:
            # A request that was granted memory may be answered at once and return it. The loop below uses it.
            return
        self._is_serving = True
        try:
            while self._serve_first(self._small) or self._serve_first(self._large):
                pass
        finally:
            self._is_serving = False

    def _serve_first(self, queue: list[_Waiter]) -> bool:
        self._drop_withdrawn(queue)
        granted = self._grant(queue[0]) if queue else 0
        if not granted:
            return False
        waiter = heapq.heappop(queue)
        del self._waiting[waiter.holder]
        waiter.holder.memory_came(granted)
        return True

    def _drop_withdrawn(self, queue: list[_Waiter]) -> None:
        while queue and self._waiting.get(queue[0].holder) is not queue[0]:
            heapq.heappop(queue)
