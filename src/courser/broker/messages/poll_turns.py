"""How much polls may read in one turn of the event loop.

Thousands of clients that ask for megabytes at the same moment are all served in one turn if nobody stops them, and
everybody else waits for the end of it. So polls that are likely to be large share a budget for each turn; those beyond
it wait, first come, first served. A client whose last poll was small does not wait: what it asks for costs little.
"""

import asyncio
from collections import deque

LIGHT_SIZE = 64 * 1024
"""Bytes: polls up to this size are neither counted nor made to wait."""
TURN_SIZE_MAX = 16 * 1024 * 1024
"""Bytes that large polls read in one turn: some 15 ms of reading and converting. Eight busy consumers stay below it."""
_WOKEN_COUNT = 4
"""Polls that are woken in a turn: how much they read is not known before."""


class PollTurns:
    """The budget of the turn that is under way, and who waits for another one. Used on one event loop."""

    def __init__(self) -> None:
        self._size = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    @property
    def is_spent(self) -> bool:
        """Whether a large poll has to wait."""
        return self._size >= TURN_SIZE_MAX or bool(self._waiting)

    async def wait(self) -> None:
        """Wait for a turn. It has to be ``is_spent``."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def note(self, size: int) -> None:
        """A large poll has read so many bytes."""
        self._size += size
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """A new turn has begun."""
        self._is_scheduled = False
        self._size = 0
        for _ in range(min(_WOKEN_COUNT, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            self._schedule()
