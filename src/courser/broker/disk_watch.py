"""Trouble with the disk, for the log: without it only the clients whose sends are refused would know.

A look costs next to nothing and is repeated every few seconds; each change is told once.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from enum import IntEnum
from pathlib import Path

from courser.broker.partition_registry import PartitionRegistry
from courser.model.quantities import format_byte_size
from courser.records.layout import BATCH_SIZE_MAX

_log = logging.getLogger(__name__)

SCARCE_SHARE = 0.05
"""Of the disk: with less than that free, somebody should add space before it is full."""
FULL_SIZE = BATCH_SIZE_MAX
"""Bytes: with less than that free, the largest requests do not fit any more ..."""
FULL_SHARE = 0.02
"""... but a disk that is small in all is not full before so little of it is left."""
_RELIEF = 2
"""Trouble is over when there is twice as much space as it began with: what is allocated ahead comes and goes."""
_MIB = 1024 * 1024


class Space(IntEnum):
    """How much is left."""

    ENOUGH = 0
    SCARCE = 1
    FULL = 2


class DiskWatch:
    """Knows what was told already. Used on one event loop."""

    def __init__(
        self, partitions: PartitionRegistry, pool: Executor, disk_space: Callable[[], tuple[int, int]]
    ) -> None:
        """``disk_space`` gives the free bytes and all bytes of the disk, and may wait for it."""
        self._partitions = partitions
        self._pool = pool
        self._disk_space = disk_space
        self._space = Space.ENOUGH
        # What a start finds is told by the start.
        self._read_only = frozenset(self._failures())

    async def look(self) -> None:
        """Tell what has changed since the last look."""
        self._tell_read_only()
        free, total = await asyncio.get_running_loop().run_in_executor(self._pool, self._disk_space)
        if total:
            self._tell_space(free, total)

    def _failures(self) -> dict[Path, str]:
        logs = [partition.log for topic in self._partitions for partition in topic.partitions]
        return {log.directory: log.failure for log in logs if log.failure is not None}

    def _tell_read_only(self) -> None:
        failures = self._failures()
        for path, reason in failures.items():
            if path not in self._read_only:
                _log.error("partition is read-only until a restart path=%s reason=%s", path, reason)
        self._read_only = frozenset(failures)

    def _tell_space(self, free: int, total: int) -> None:
        space = max(level for level in Space if level is Space.ENOUGH or free < self._bound(level, total))
        if space is self._space:
            return
        sizes = [format_byte_size(size // _MIB * _MIB).replace(" ", "") for size in (free, total)]
        if space is Space.FULL:
            _log.error("disk full: sends that do not fit are refused, until there is room free=%s total=%s", *sizes)
        elif space is Space.SCARCE and self._space is Space.ENOUGH:
            _log.warning("disk space is scarce free=%s total=%s", *sizes)
        else:
            _log.info("disk space is there again free=%s total=%s", *sizes)
        self._space = space

    def _bound(self, level: Space, total: int) -> float:
        """Free bytes below which it is that bad."""
        bound = min(FULL_SIZE, total * FULL_SHARE) if level is Space.FULL else total * SCARCE_SHARE
        return bound * _RELIEF if level <= self._space else bound
