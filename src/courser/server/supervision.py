"""Background work that is never lost in silence: what crashes is logged and begun again, after a pause that grows."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from courser.model.clock import Clock

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_PAUSE_MAX = 60.0
"""Seconds before a crashed task is begun again: twice as long each time, up to this."""
_HEALTHY_AFTER = 300_000_000
"""Microseconds after which an earlier crash is forgotten."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """Keeps background tasks alive until it is stopped. Used on one event loop."""

    def __init__(self, clock: Clock, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._clock = clock
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self.crash_count = 0

    def keep(self, name: str, work: Work) -> None:
        """Run ``work``, which does not end by itself; begin it again whenever it crashes."""
        task = asyncio.get_running_loop().create_task(self._run(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def every(self, interval: int, name: str, action: Work) -> None:
        """Run ``action`` again and again, with a pause of so many microseconds before each time."""

        async def work() -> None:
            while True:
                await self._pause(interval / 1_000_000)
                await action()

        self.keep(name, work)

    async def stop(self) -> None:
        """Cancel everything and wait for its end."""
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
                _log.exception("background task crashed: task=%s again_in=%gs", name, pause)
            else:
                _log.error("background task ended by itself: task=%s again_in=%gs", name, pause)
            await self._pause(pause)
            pause = min(pause * 2, _PAUSE_MAX)
