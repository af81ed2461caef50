"""When to search for garbage that refers to itself, so that nobody notices; and how long it takes.

Python searches all objects for it now and then, and does nothing else meanwhile: a third of a second with 10,000
partitions in memory. Here it searches only those that are new. What it keeps counts as permanent from then on, and all
objects are searched again when nobody needs the server, or else once an hour.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from courser.model import metric_table as m
from courser.model.clock import Clock
from courser.model.metrics import Registry

_ALLOCATIONS_BETWEEN_COLLECTIONS = 10_000
"""Net container allocations between two collections of the youngest objects, which takes 2 ms. Requests leave nothing
behind, so few are needed. The default of 700 slows sends by a few percent."""
_COLLECTIONS_OF_SURVIVORS = 1
"""After so many more of them, their survivors are searched once again, which takes 5 ms."""
_SECOND = 1_000_000
_NEVER = 1_000_000_000
_LOOK_INTERVAL = 1.0
"""Seconds."""
_KEPT_COUNT_MAX = 2
"""Collections of survivors after which what they kept is made permanent, if the server is busy."""
_IDLE_INTERVAL = 600_000_000
"""Microseconds between two searches of all objects, if the server is idle ..."""
_BUSY_INTERVAL = 3_600_000_000
"""... and if it is not. What frequent clients and deleted partitions leave behind is found this late."""


def calm_collections() -> None:
    """Make everything that exists permanent, and leave full collections to ``Garbage``. Called after the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, _COLLECTIONS_OF_SURVIVORS, _NEVER)


class Garbage:
    """Full collections at good moments. Used on the event loop."""

    def __init__(self, clock: Clock, is_idle: Callable[[], bool]) -> None:
        """``is_idle`` tells whether the event loop has had nothing to do for a while."""
        self._clock = clock
        self._is_idle = is_idle
        self._searched_at = clock.monotonic()
        self._kept_count = 0
        """Collections of survivors whose survivors are permanent, since the last full collection."""

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look forever whether a collection is due."""
        while True:
            await sleep(_LOOK_INTERVAL)
            self.look()

    def look(self) -> None:
        """Collect if it is due."""
        is_idle, now = self._is_idle(), self._clock.monotonic()
        if now - self._searched_at >= (_IDLE_INTERVAL if is_idle else _BUSY_INTERVAL):
            self._searched_at = now
            gc.unfreeze()
            self._collect()
            return
        new_count = gc.get_count()[2] - self._kept_count
        if new_count and is_idle:
            self._collect()
        elif new_count >= _KEPT_COUNT_MAX:
            # They were searched twice. This takes no time, and the next search of all objects finds what was missed.
            self._kept_count += new_count
            gc.freeze()

    def _collect(self) -> None:
        gc.collect()
        gc.freeze()
        self._kept_count = 0


class CollectionWatch:
    """Measures how long collections stop the server, on whichever thread, while it is entered. They are rare."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._pauses = registry.histogram(m.COLLECTION_PAUSE)
        self._clock = clock
        self._began = 0
        self.total = 0
        """Microseconds that collections have taken."""

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, facts: dict[str, Any]) -> None:
        """Called by the collector, which runs one collection at a time."""
        del facts
        if phase == "start":
            self._began = self._clock.monotonic()
        elif self._began:
            pause = self._clock.monotonic() - self._began
            self._began = 0
            self.total += pause
            self._pauses.observe(pause / _SECOND)
