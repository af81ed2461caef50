"""The memory of one request that is larger than the buffer of its connection.

It is reserved for what has arrived plus one step, so a client that announces a large request but sends little holds
little memory. While there is much room, a request gets its full size in one step, and nothing is copied.

When memory is short, requests with the fewest missing bytes go first, and small requests have a reserved share.
"""

from collections.abc import Callable

import numpy as np

from courser.model.memory_ledger import Claim, MemoryLedger

_KIB = 1024
_MIB = 1024 * _KIB

SMALL_REQUEST_SIZE_MAX = 1 * _MIB + 128 * _KIB
"""Maximum size in bytes of a request that may use the reserved share: a batch of a megabyte and its overhead."""
_GENEROUS_PART = 4
"""A request gets its full size at once if that is at most a quarter of the room."""
_STEP_SIZE = 256 * _KIB
"""Bytes reserved beyond what has arrived, at first. Later steps double the memory, so few bytes are copied twice."""


def private_memory(size: int) -> memoryview:
    """Memory of this process that may contain anything."""
    # Not a bytearray, which would be zeroed first.
    return np.empty(size, np.uint8).data


class RequestMemory:
    """What one request has reserved."""

    __slots__ = ("_claim", "_ledger", "_on_eviction", "_on_growth", "size")

    def __init__(
        self, ledger: MemoryLedger, on_growth: Callable[[], None], on_eviction: Callable[[], None] = lambda: None
    ) -> None:
        """``on_growth`` is called when memory that was waited for is there, ``on_eviction`` when kept memory is not."""
        self._ledger = ledger
        self._on_growth = on_growth
        self._on_eviction = on_eviction
        self._claim: Claim | None = None
        self.size = 0
        """Bytes reserved."""

    @property
    def is_waiting(self) -> bool:
        return self._claim is not None

    def grow(self, arrived_size: int, wanted_size: int) -> bool:
        """Reserve more for a request of which ``arrived_size`` of ``wanted_size`` bytes have arrived.

        Returns False if it must wait.
        """
        ledger, missing_size = self._ledger, wanted_size - arrived_size
        is_small = wanted_size <= SMALL_REQUEST_SIZE_MAX
        if not ledger.must_wait(missing_size, is_small=is_small) and self._reserve(arrived_size, wanted_size):
            return True

        def take() -> bool:
            if not self._reserve(arrived_size, wanted_size):
                return False
            self._claim = None
            self._on_growth()
            return True

        self._claim = ledger.wait(take, missing_size=missing_size, rank=missing_size, is_small=is_small)
        return False

    def _reserve(self, arrived_size: int, wanted_size: int) -> bool:
        ledger, size, is_small = self._ledger, wanted_size, wanted_size <= SMALL_REQUEST_SIZE_MAX
        if wanted_size - self.size > ledger.room(is_small=is_small) // _GENEROUS_PART:
            size = min(wanted_size, max(2 * self.size, arrived_size + _STEP_SIZE))
        if not ledger.reserve(size - self.size, is_small=is_small):
            size = wanted_size
            if not ledger.overdraw(self, size - self.size):
                return False
        self.size = size
        return True

    def keep(self) -> None:
        """Keep it for the next request, until somebody else needs it."""
        self._ledger.keep(self, self.size)

    def use(self) -> None:
        """Note that it is needed again."""
        self._ledger.use(self)

    def evict(self) -> int:
        """Called by the ledger: what was kept is needed by others."""
        size, self.size = self.size, 0
        self._on_eviction()
        return size

    def shrink(self, size: int) -> None:
        self.size -= size
        self._ledger.give_back(size, self)

    def withdraw(self) -> None:
        """Wait for no more. Can be repeated."""
        if self._claim is not None:
            claim, self._claim = self._claim, None
            self._ledger.withdraw(claim)

    def close(self) -> None:
        """Return all of it, and wait for no more. Can be repeated."""
        self._ledger.use(self)
        self.withdraw()
        if self.size:
            self.shrink(self.size)
