"""Scrapes: all metrics as text, without delaying other work.

However many monitoring systems ask, one scrape runs at a time, and those who ask meanwhile get the same text. A survey
that hangs with the disk does not hold up a scrape: its figures are then those of the last time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from courser.broker.partition.waiting import Pause, let_others_run
from courser.model.metrics import Family, Registry
from courser.wire.prometheus import encode_families

_log = logging.getLogger(__name__)

_PATIENCE = 2.0
"""Seconds that a scrape waits for all surveys. Prometheus gives up after 10 seconds."""

Survey = Callable[[], Awaitable[None]]


class Scrapes:
    """Writes the metrics of a registry as text. Used on one event loop."""

    def __init__(self, registry: Registry, *, pause: Pause = let_others_run, patience: float = _PATIENCE) -> None:
        self._registry = registry
        self._pause = pause
        self._patience = patience
        self.collect: Callable[[], Awaitable[Iterable[Family]]] | None = None
        """Set if there are other processes: gives the metrics of all."""
        self._scrape: asyncio.Task[str] | None = None
        self._surveys: dict[Survey, asyncio.Task[None]] = {}
        """Those that are running."""

    async def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        if self._scrape is None:
            self._scrape = asyncio.get_running_loop().create_task(self._collect())
        # Whoever asks may go away, but others wait for the same text.
        return await asyncio.shield(self._scrape)

    async def _collect(self) -> str:
        try:
            parts: list[str] = []
            for part in encode_families(await self.families()):
                parts.append(part)
                await self._pause()
            return "".join(parts)
        finally:
            self._scrape = None

    async def families(self) -> Iterable[Family]:
        """All metrics, up to date; those of all processes if there are others."""
        await self.survey()
        return self._registry.collect() if self.collect is None else await self.collect()

    async def survey(self) -> None:
        """Bring the figures up to date that nobody keeps. Call it before reading the registry."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        for survey in self._registry.surveys:
            await self._run(survey, max(deadline - loop.time(), 0.0))

    async def _run(self, survey: Survey, patience: float) -> None:
        task = self._surveys.get(survey)
        if task is None:
            task = self._surveys[survey] = asyncio.ensure_future(_awaited(survey))
        await asyncio.wait((task,), timeout=patience)
        if not task.done() or self._surveys.get(survey) is not task:
            return
        del self._surveys[survey]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("metrics are not current, because a survey failed", exc_info=error)

    async def close(self) -> None:
        """Stop what is running."""
        tasks = [task for task in (self._scrape, *self._surveys.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _awaited(survey: Survey) -> None:
    await survey()
