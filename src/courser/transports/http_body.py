"""The memory of a request body over HTTP."""

import asyncio

from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import RATE_TIME_MIN


class BodyMemory:
    """The memory that one request body reserves, as requests of all transports do.

    A small body reserves nothing: every connection may hold that much, as over TCP.
    """

    def __init__(self, ledger: MemoryLedger, clock: Clock) -> None:
        self._memory = RequestMemory(ledger, self._memory_came)
        self._clock = clock
        self._since = clock.monotonic()
        """When the body began to arrive, later by the time that it waited for memory."""
        self._arrived_size = 0
        self._coming: asyncio.Future[None] | None = None
        """While the body waits for memory."""

    def has_room(self, arrived_size: int) -> bool:
        """Whether the memory that it has is enough for what has arrived."""
        self._arrived_size = arrived_size
        return self.covers(arrived_size)

    def covers(self, size: int) -> bool:
        """Whether the memory that it has is enough for a body of this size."""
        return size <= max(BASE_SIZE, self._memory.size)

    async def make_room(self, arrived_size: int, wanted_size: int) -> None:
        """Reserve memory for what has arrived of a body of ``wanted_size`` bytes. May wait for it."""
        if self._memory.grow(arrived_size, wanted_size):
            return
        began = self._clock.monotonic()
        self._coming = asyncio.get_running_loop().create_future()
        try:
            await self._coming
        finally:
            self._coming = None
            self._since += self._clock.monotonic() - began

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """As of a connection. A body that waits for memory itself cannot arrive any faster."""
        time = now - self._since
        if not self._memory.size or self._coming is not None or time < RATE_TIME_MIN:
            return None
        return self._arrived_size * 1_000_000 // time, self._memory.size

    def _memory_came(self) -> None:
        # If nobody waits any more, ``close`` returns the memory.
        if self._coming is not None and not self._coming.done():
            self._coming.set_result(None)

    def close(self) -> None:
        """Return all of it. May be repeated."""
        self._memory.close()
