"""Memory for large requests: one budget for all connections.

A connection has a small buffer of its own. A larger request borrows memory for what has arrived and a step more, so a
client that declares much and sends little holds little. While most of the budget is free, one step gives a request all
it declares, and nothing is copied.

When the budget is short, requests with the fewest missing bytes go first, and small requests have a share of their own.
One request at a time may overdraw the budget: without that, requests that each hold a part and wait for the rest would
wait for ever. The lent memory is therefore at most the budget plus one request.

A connection that is done may keep its buffer, so that a busy producer does not allocate for each send, until somebody
else needs the memory.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

_KIB = 1024
_MIB = 1024 * _KIB

SMALL_REQUEST_SIZE_MAX = 1 * _MIB + 128 * _KIB
"""Bytes of a request that may use the reserved share: a batch of a megabyte and what belongs to it."""
_RESERVED_PART = 8
"""One eighth of the budget is reserved for small requests."""
_GENEROUS_PART = 4
"""A request gets all it declares at once if that is at most a quarter of what is free."""
_STEP_SIZE = 256 * _KIB
"""Bytes lent beyond what has arrived, at first; later steps double the buffer, so few bytes are copied twice."""
_RELIEF_PART = 4
"""At most a quarter of the budget is taken from slow senders at a time."""


class MemoryBorrower(Protocol):
    """Somebody who borrows memory."""

    def give_up_memory(self) -> int:
        """Drop the buffer now, which is not in use; return how many borrowed bytes that frees."""

    def memory_came(self, size: int) -> None:
        """The wait is over: ``size`` bytes are lent in all."""


@dataclass(order=True, slots=True)
class _Waiter:
    """A request that waits for memory. The order is that in which memory is given out."""

    missing_size: int
    number: int
    """Grows with every wait."""
    holder: MemoryBorrower = field(compare=False)
    held_size: int = field(compare=False)
    arrived_size: int = field(compare=False)
    wanted_size: int = field(compare=False)


class RequestMemory:
    """How many bytes are lent, to whom, and who waits. Used on one event loop."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._large_size_max = size_max - size_max // _RESERVED_PART
        self.size = 0
        """Bytes lent."""
        self._idle: OrderedDict[MemoryBorrower, int] = OrderedDict()
        """Those who keep a buffer that is not in use, and its size."""
        self._idle_size = 0
        self._waiting: dict[MemoryBorrower, _Waiter] = {}
        self._small: list[_Waiter] = []
        self._large: list[_Waiter] = []
        self._overdrawn_by: MemoryBorrower | None = None
        self._overdraft_size = 0
        """Bytes lent to it beyond the budget: they leave the reserved share alone."""
        self._wait_count = 0
        self._looked_at_count = 0
        """``_wait_count`` at the last look for requests that starve."""
        self._is_serving = False

    @property
    def waiting_count(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def borrow(self, holder: MemoryBorrower, *, held_size: int, arrived_size: int, wanted_size: int) -> int:
        """Lend more to a request of which ``arrived_size`` bytes are here, up to ``wanted_size``.

        Returns how many bytes are lent to it in all, those that it held included. 0: it has to wait, and
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
        """Note that its buffer of ``size`` bytes is not in use and may be asked for."""
        if holder not in self._idle:
            self._idle[holder] = size
            self._idle_size += size
        self._end_overdraft(holder)
        if self._waiting:
            self._serve()

    def use(self, holder: MemoryBorrower) -> None:
        """Note that its buffer is in use (again), or gone."""
        self._idle_size -= self._idle.pop(holder, 0)

    def starving_size(self) -> int:
        """How many bytes slow senders should free for requests that already waited when this was last asked.

        To be asked about once a second.
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
        """Lend to those who wait, as far as it goes."""
        if self._is_serving:
            # A request that was served is answered on the spot, and gives back what it had: the loop below sees it.
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
