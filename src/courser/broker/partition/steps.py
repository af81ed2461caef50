"""Walks on the event loop over much that is in memory: they pause, so that no client waits for the whole of one."""

from courser.broker.partition.partition_survey import Pause, let_others_run

_COUNT_MAX = 200
"""Partitions and segments that are looked at without a pause: up to 10 us each."""


class Steps:
    """Counts what one walk looks at, and pauses every so often."""

    def __init__(self, pause: Pause = let_others_run, count_max: int = _COUNT_MAX) -> None:
        self._pause = pause
        self._count_max = count_max
        self._count = 0

    async def take(self, count: int = 1) -> None:
        """Before the next ``count`` are looked at: pause if they would be too many without one."""
        if self._count and self._count + count > self._count_max:
            self._count = 0
            await self._pause()
        self._count += count

    @property
    def count_max(self) -> int:
        """How many are looked at without a pause."""
        return self._count_max
