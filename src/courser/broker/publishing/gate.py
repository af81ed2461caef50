"""Work of many that somebody may interrupt between two pieces of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Any number of tasks are inside, or one has closed it: it waits until all are out, and those that come wait."""

    def __init__(self) -> None:
        self._entrance = asyncio.Lock()
        self._inside_count = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        """Wait until the gate is open. Nobody who is inside may enter again: it may be closing."""
        async with self._entrance:
            self._inside_count += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._inside_count -= 1
            if not self._inside_count:
                self._is_empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Nobody is inside during the block."""
        async with self._entrance:
            await self._is_empty.wait()
            yield
