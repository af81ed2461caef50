"""How long garbage collections stop the server, whichever thread they run on."""

import gc
from types import TracebackType
from typing import Any, Self

from courser.model import metric_table as m
from courser.model.clock import Clock
from courser.model.metrics import Registry

_SECOND = 1_000_000


class CollectionWatch:
    """Counts collections while it is entered. They are rare, so that watching them costs nothing."""

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
