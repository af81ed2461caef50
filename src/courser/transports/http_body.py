"""The memory of a request body over HTTP."""

import asyncio

from courser.model.clock import Clock
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import RATE_TIME_MIN


class BodyMemory:
    """The memory that one request body borrows from the budget of all transports.

    A small body borrows nothing: every connection may hold that much, as over TCP.
    """

    def __init__(self, memory: RequestMemory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self._since = clock.monotonic()
        """When the body began to arrive, later by the time that it waited for memory."""
        self._arrived_size = 0
        self._lent_size = 0
        self._coming: asyncio.Future[None] | None = None
        """While the body waits for memory."""

    def has_room(self, arrived_size: int) -> bool:
        """Whether the memory that it has is enough for what has arrived."""
        self._arrived_size = arrived_size
        return self.covers(arrived_size)

    def covers(self, size: int) -> bool:
        """Whether the memory that it has is enough for a body of this size."""
        return size <= max(BASE_SIZE, self._lent_size)

    async def make_room(self, arrived_size: int, wanted_size: int) -> None:
        """Borrow memory for what has arrived of a body of ``wanted_size`` bytes. May wait for it."""
        lent_size = self._memory.borrow(
            self, held_size=self._lent_size, arrived_size=arrived_size, wanted_size=wanted_size
        )
        if lent_size:
            self._lent_size = lent_size
        else:
            await self._wait()

    async def _wait(self) -> None:
        began = self._clock.monotonic()
        self._coming = asyncio.get_running_loop().create_future()
        try:
            await self._coming
        finally:
            self._coming = None
            self._since += self._clock.monotonic() - began

    def lent_to_sender(self, now: int) -> tuple[int, int] | None:
        """As of a connection. A body that waits for memory itself cannot arrive any faster."""
        time = now - self._since
        if not self._lent_size or self._coming is not None or time < RATE_TIME_MIN:
            return None
        return self._arrived_size * 1_000_000 // time, self._lent_size

    def give_up_memory(self) -> int:
        """Nobody asks: the memory is never left unused."""
        return 0

    def memory_came(self, size: int) -> None:
        """The wait is over. If nobody waits any more, ``close`` returns the memory."""
        self._lent_size = size
        if self._coming is not None and not self._coming.done():
            self._coming.set_result(None)

    def close(self) -> None:
        """Return all of it. May be repeated."""
        self._memory.withdraw(self)
        lent_size, self._lent_size = self._lent_size, 0
        if lent_size:
            self._memory.give_back(self, lent_size)
