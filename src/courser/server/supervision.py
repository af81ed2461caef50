"""Supervise background tasks: a task that crashes is logged and restarted after a growing pause."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from courser.model.clock import Clock

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_PAUSE_MAX = 60.0
"""The longest pause in seconds before a crashed task is restarted. The pause doubles with each crash."""
_HEALTHY_AFTER = 300_000_000
"""Microseconds without a crash after which the pause is reset."""

Work = Callable[[], Coroutine[Any, Any, None]]


class BackgroundTasks:
    """Keeps background tasks alive until it is stopped. Used on one event loop."""

    def __init__(self, clock: Clock, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._clock = clock
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self.crash_count = 0

    def keep(self, name: str, work: Work) -> None:
        """Run ``work``, which never returns; restart it whenever it crashes."""
        task = asyncio.get_running_loop().create_task(self._run(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def every(self, interval: int, name: str, action: Work) -> None:
        """Run ``action`` repeatedly, with a pause of ``interval`` microseconds before each run."""

        async def work() -> None:
            while True:
                await self._pause(interval / 1_000_000)
                await action()

        self.keep(name, work)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, work: Work) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = self._clock.monotonic()
            try:
                await work()
            except Exception:  # noqa: BLE001 - whatever it was: it is logged, and the work goes on
                if self._clock.monotonic() - began > _HEALTHY_AFTER:
                    pause = _FIRST_PAUSE
                self.crash_count += 1
                _log.exception("background task crashed; restarting: task=%s again_in=%gs", name, pause)
            else:
                _log.error("background task ended unexpectedly; restarting: task=%s again_in=%gs", name, pause)
            await self._pause(pause)
            pause = min(pause * 2, _PAUSE_MAX)
