"""Log disk problems: otherwise only the clients whose sends are refused would notice.

If a minimum of free space is configured, this also keeps it: below the minimum, what may be deleted is deleted, and if
that is not enough, sends are refused until there is space again.

A check is cheap and repeated every few seconds; each change is logged once. A write that the disk refuses is logged at
once: until the next check, thousands of sends may fail.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from enum import IntEnum
from pathlib import Path

from courser.broker.partition.partition_registry import PartitionRegistry
from courser.model.quantities import format_byte_size
from courser.records.layout import BATCH_SIZE_MAX

_log = logging.getLogger(__name__)

SCARCE_SHARE = 0.05
"""Fraction of the disk: with less free space, an operator should add space before the disk is full."""
FULL_SIZE = BATCH_SIZE_MAX
"""Bytes: with less free space, the largest requests do not fit any more."""
FULL_SHARE = 0.02
"""Fraction of the disk: a small disk does not count as full before less than this is free."""
_RELIEF = 2
"""The problem is over when twice the threshold is free: space allocated ahead varies."""
_HEALTH_PATIENCE = 0.5
"""Seconds that a health check waits for the disk. It answers within a second."""
_SILENCE = 10.0
"""Seconds after which a disk that says nothing is a problem. Before, it may only be busy."""
_MIB = 1024 * 1024
FREE_SPACE_SETTING = "data_maintenance.disk.min_free_space"
"""What operators call the minimum, for messages."""


class Space(IntEnum):
    """The severity of low disk space."""

    ENOUGH = 0
    SCARCE = 1
    FULL = 2


def read_only_partitions(partitions: PartitionRegistry) -> list[str]:
    """Which partitions take no writes, and why."""
    logs = [partition.log for topic in partitions for partition in topic.partitions]
    found = [f"partition {log.directory} is read-only: {log.failure}" for log in logs if log.failure is not None]
    return found + [
        f"partition {log.directory} takes no messages until there is room: {log.lack_of_room}"
        for log in logs
        if log.lack_of_room is not None
    ]


def problems(partitions: PartitionRegistry, free: int, total: int) -> list[str]:
    """Why the server cannot take every write; empty if it can. ``free`` and ``total`` are bytes of the disk."""
    found = read_only_partitions(partitions)
    if total and free < min(FULL_SIZE, total * FULL_SHARE):
        found.append(f"the disk is full: {free} of {total} bytes are free")
    return found


async def _nothing() -> list[str]:
    return []


class DiskWatch:
    """Remembers what was already logged. Use it on one event loop."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        pool: Executor,
        disk_space: Callable[[], tuple[int, int]],
        *,
        free_space_min: int = 0,
        relieve: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """``disk_space`` returns the free bytes and all bytes of the disk.

        ``free_space_min`` is the minimum of free bytes; 0: there is none. ``relieve`` frees so many bytes if it can.
        """
        self._free_space_min = free_space_min
        self.remote_problems: Callable[[], Awaitable[list[str]]] | None = None
        """Set if there are other processes: gives what their partitions do not take."""
        self._relieve = relieve
        self.refusal: str | None = None
        """Why sends are refused: there is less free space than the minimum. None if they are accepted."""
        self._partitions = partitions
        self._pool = pool
        self._disk_space = disk_space
        self._measuring: asyncio.Future[tuple[int, int]] | None = None
        self._asked_at = 0.0
        self._known = (0, 0)
        """As of the last answer of the disk: free bytes and all bytes; of no disk before the first."""
        self._space = Space.ENOUGH
        self._has_refused = False
        """Whether the disk has refused a write since the last check. A quota does so while there is space left."""
        self._read_only: frozenset[Path] = frozenset()
        self._without_room: frozenset[Path] = frozenset()
        """Partitions whose recovery waits for room."""
        self.skip_known()

    def skip_known(self) -> None:
        """The partitions that are read-only now are logged already, by the report of the start."""
        self._read_only = frozenset(self._failures())
        self._without_room = self._lacking_room()

    @property
    def is_full(self) -> bool:
        """Whether the disk is full, as of the last check or the last refused write."""
        return self._space is Space.FULL

    def note_refusal(self, path: Path) -> None:
        """The disk has refused a write to a file, because it is full."""
        self._has_refused = True
        if not self.is_full:
            self._space = Space.FULL
            _log.error("disk full: refusing sends that do not fit until space is free again file=%s", path)

    async def look(self) -> None:
        """Log what has changed since the last check."""
        self._tell_read_only()
        free, total = await self._measure()
        if free < self._free_space_min and self._relieve is not None:
            await self._relieve(self._free_space_min - free)
            free, total = await self._measure()
        self._keep_minimum(free)
        self._tell_space(free, total)

    def _keep_minimum(self, free: int) -> None:
        """Refuse sends below the minimum of free space, and accept them above it."""
        was_refusing, self.refusal = self.refusal is not None, None
        found, minimum = format_byte_size(free // _MIB * _MIB), format_byte_size(self._free_space_min)
        if free < self._free_space_min:
            self.refusal = (
                f"the disk has {found} of free space, less than the minimum of {minimum} ({FREE_SPACE_SETTING})"
            )
        if (self.refusal is not None) is was_refusing:
            return
        sizes = found.replace(" ", ""), minimum.replace(" ", "")
        if was_refusing:
            _log.info("accepting sends again: free disk space is above the minimum free=%s minimum=%s", *sizes)
        else:
            _log.error("refusing all sends: free disk space is below the minimum free=%s minimum=%s", *sizes)

    async def problems(self) -> list[str]:
        """Why the server cannot take every write; empty if it can."""
        measuring = self._measure(_HEALTH_PATIENCE)
        space, remote = await asyncio.gather(
            measuring, _nothing() if self.remote_problems is None else self.remote_problems()
        )
        found = problems(self._partitions, *space) + remote
        if (silence := self._silence()) >= _SILENCE:
            found.append(f"the disk has not answered for {silence:.0f} s")
        if self.refusal is not None:
            found.append(f"sends are refused: {self.refusal}")
        if not found and self._has_refused:
            found.append("the disk is full: it has just refused a write")
        return found

    async def _measure(self, patience: float | None = None) -> tuple[int, int]:
        """Free bytes and all bytes; those of the last time if the disk does not answer in time."""
        loop = asyncio.get_running_loop()
        if self._measuring is None:
            self._asked_at = loop.time()
            self._measuring = loop.run_in_executor(self._pool, self._disk_space)
        measuring = self._measuring
        await asyncio.wait((measuring,), timeout=patience)
        if measuring.done():
            self._measuring = None
            self._known = measuring.result()
        return self._known

    def _silence(self) -> float:
        return 0.0 if self._measuring is None else asyncio.get_running_loop().time() - self._asked_at

    def _failures(self) -> dict[Path, str]:
        logs = [partition.log for topic in self._partitions for partition in topic.partitions]
        return {log.directory: log.failure for log in logs if log.failure is not None}

    def _lacking_room(self) -> frozenset[Path]:
        logs = [partition.log for topic in self._partitions for partition in topic.partitions]
        return frozenset(log.directory for log in logs if log.lack_of_room is not None)

    def _tell_read_only(self) -> None:
        before, self._without_room = self._without_room, self._lacking_room()
        for path in sorted(before - self._without_room):
            _log.info("partition takes messages again: there is room path=%s", path)
        failures = self._failures()
        for path, reason in failures.items():
            if path not in self._read_only:
                _log.error("partition is read-only until a restart path=%s reason=%s", path, reason)
        self._read_only = frozenset(failures)

    def _tell_space(self, free: int, total: int) -> None:
        space = max(level for level in Space if level is Space.ENOUGH or free < self._bound(level, total))
        if self._has_refused:
            self._has_refused, space = False, Space.FULL
        if space is self._space:
            return
        sizes = [format_byte_size(size // _MIB * _MIB).replace(" ", "") for size in (free, total)]
        if space is Space.FULL:
            _log.error("disk full: refusing sends that do not fit until space is free again free=%s total=%s", *sizes)
        elif space is Space.SCARCE and self._space is Space.ENOUGH:
            _log.warning("disk space is low free=%s total=%s", *sizes)
        else:
            _log.info("disk space is available again free=%s total=%s", *sizes)
        self._space = space

    def _bound(self, level: Space, total: int) -> float:
        """Free bytes below which a severity applies."""
        bound = min(FULL_SIZE, total * FULL_SHARE) if level is Space.FULL else total * SCARCE_SHARE
        return bound * _RELIEF if level <= self._space else bound
