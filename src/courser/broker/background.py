"""Work that continues even if the client that requested it disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background:
    """The running tasks of one owner, which waits for them before it closes. Used on one event loop."""

    def __init__(self) -> None:
        # The loop itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Run a coroutine in a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def shielded(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and wait for its result. Cancelling the wait does not cancel the work."""
        return await asyncio.shield(self.start(work))

    async def idle(self) -> None:
        """Wait until no task is running, including those that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)
