"""A bound for memory that clients make the server hold.

Whoever needs memory reserves bytes and gives them back; the ledger only counts. If there is no room, memory that was
kept for later is evicted, the longest unused first. Then whoever needs more waits: those with the smallest rank come
first, and a reserved share lets small needs through while large ones wait.

Some hold a part while they wait for the rest. They would wait for each other for ever, so one of them at a time may
overdraw. The bytes handed out are then at most the bound plus this need.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

_RESERVED_PART = 8
"""One eighth is reserved for small needs."""
_RELIEF_PART = 4
"""At most a quarter is asked for at a time from those who hold memory for long."""


class Keeper(Protocol):
    """Keeps memory that it does not need now."""

    def evict(self) -> int:
        """Give that memory up. Returns how many of the bytes that were reserved for it this frees."""


@dataclass(order=True, slots=True)
class Claim:
    """Somebody who waits for memory. The sort order is the order in which memory is handed out."""

    rank: int
    number: int
    """Grows with every wait."""
    missing_size: int = field(compare=False)
    take: Callable[[], bool] = field(compare=False)
    """Reserves what is needed. Returns False if there is no room for it yet."""
    is_over: bool = field(default=False, compare=False)
    """Whether it was met or withdrawn."""


class MemoryLedger:
    """Counts the bytes that are handed out, and queues those who must wait. Used on one event loop."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.large_size_max = size_max - size_max // _RESERVED_PART
        """What needs that are not small leave to those that are."""
        self.size = 0
        """Bytes handed out."""
        self.waiting_count = 0
        self._small: list[Claim] = []
        self._large: list[Claim] = []
        self._number = 0
        self._looked_at_number = 0
        """``_number`` at the last call of ``starving_size``."""
        self._is_serving = False
        self._kept: OrderedDict[Keeper, int] = OrderedDict()
        """Memory that can be evicted, the longest unused first."""
        self._kept_size = 0
        self._overdrawn_by: object = None
        self._overdraft_size = 0
        """Bytes handed out beyond the bound. They do not reduce the reserved share."""

    # --- reserving ---

    def room(self, *, is_small: bool = False) -> int:
        """Bytes that can be reserved now."""
        size_max = self.size_max if is_small else self.large_size_max
        return size_max - self.size + self._kept_size + self._overdraft_size

    def reserve(self, size: int, *, is_small: bool = False) -> bool:
        """Hand out so many bytes. Returns False if there is no room for them."""
        room = self.room(is_small=is_small)
        if size > room:
            return False
        self._evict(size - room + self._kept_size)
        self.size += size
        return True

    def take(self, size: int) -> int:
        """Count bytes that are held already. Returns by how many the bound is exceeded."""
        self.size += size
        return max(self.size - self.size_max, 0)

    def overdraw(self, holder: object, size: int) -> bool:
        """Hand out so many bytes beyond the bound. Returns False if somebody else has overdrawn."""
        if self._overdrawn_by is not None:
            return False
        self._evict(self.size - self.size_max)
        self._overdrawn_by = holder
        self._overdraft_size = size
        self.size += size
        return True

    def give_back(self, size: int, holder: object = None) -> None:
        """Return bytes. This ends the overdraft of the holder."""
        self.size -= size
        self._end_overdraft(holder)
        if self.waiting_count:
            self.serve()

    def _end_overdraft(self, holder: object) -> None:
        if holder is not None and self._overdrawn_by is holder:
            self._overdrawn_by = None
            self._overdraft_size = 0

    # --- memory that can be evicted ---

    def keep(self, keeper: Keeper, size: int) -> None:
        """Note that reserved memory is kept, but not needed now."""
        if keeper not in self._kept:
            self._kept[keeper] = size
            self._kept_size += size
        self._end_overdraft(keeper)
        if self.waiting_count:
            self.serve()

    def use(self, keeper: Keeper) -> None:
        """Note that the memory is needed again, or no longer exists."""
        self._kept_size -= self._kept.pop(keeper, 0)

    def _evict(self, size: int) -> None:
        while size > 0 and self._kept:
            keeper, kept_size = self._kept.popitem(last=False)
            self._kept_size -= kept_size
            freed_size = keeper.evict()
            self.size -= freed_size
            size -= freed_size

    # --- waiting ---

    def must_wait(self, rank: int, *, is_small: bool) -> bool:
        """Whether somebody waits who comes before a need of this rank."""
        first = self._first(self._small if is_small else self._large)
        return first is not None and first.rank <= rank

    def wait(self, take: Callable[[], bool], *, missing_size: int, rank: int = 0, is_small: bool = False) -> Claim:
        """Have ``take`` called when there may be room, until it returns True."""
        self._number += 1
        self.waiting_count += 1
        claim = Claim(rank, self._number, missing_size, take)
        heapq.heappush(self._small if is_small else self._large, claim)
        return claim

    def withdraw(self, claim: Claim) -> None:
        """Stop waiting. Can be repeated."""
        if not claim.is_over:
            self._end(claim)
            self.serve()

    def _end(self, claim: Claim) -> None:
        claim.is_over = True
        self.waiting_count -= 1

    def serve(self) -> None:
        """Hand out memory to those who wait as long as there is room."""
        if self._is_serving:
            # Whoever was served may be done at once and return it. The loop below uses it.
            return
        self._is_serving = True
        try:
            while self._serve_first(self._small) or self._serve_first(self._large):
                pass
        finally:
            self._is_serving = False

    def _serve_first(self, queue: list[Claim]) -> bool:
        claim = self._first(queue)
        if claim is None:
            return False
        heapq.heappop(queue)
        self._end(claim)
        if claim.take():
            return True
        claim.is_over = False
        self.waiting_count += 1
        heapq.heappush(queue, claim)
        return False

    def _first(self, queue: list[Claim]) -> Claim | None:
        while queue and queue[0].is_over:
            heapq.heappop(queue)
        return queue[0] if queue else None

    @property
    def missing_size(self) -> int:
        """Bytes that others must return before all who wait are served."""
        wanted_size = sum(claim.missing_size for claim in self._claims())
        return max(wanted_size - self.room(is_small=True), 0) if wanted_size else 0

    def starving_size(self) -> int:
        """How many bytes others should return for those who were already waiting at the last call.

        Called about once a second.
        """
        starving_size = sum(claim.missing_size for claim in self._claims() if claim.number <= self._looked_at_number)
        self._looked_at_number = self._number
        return min(starving_size, self.size_max // _RELIEF_PART)

    def _claims(self) -> list[Claim]:
        return [claim for claim in (*self._small, *self._large) if not claim.is_over]
