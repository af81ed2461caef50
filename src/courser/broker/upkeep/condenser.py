"""Condenses the partitions of topics that keep the latest message by key: when, how fast, and what must wait.

``storage/condensing`` does the work, in small steps in the pool. One partition is condensed at a time, with pauses that
keep the whole below a rate. What it knows of a partition is in memory only: after a start, each is read once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.settings import BrokerSettings
from courser.errors import CourserError
from courser.model.clock import Clock
from courser.records.stored_header import PartitionIdentity
from courser.storage.condensing import (
    CondensedCopy,
    KeySlice,
    KeySurvey,
    Removals,
    TooManyKeys,
    advance,
    condensable_segments,
    plan_condensed,
)
from courser.storage.ledger import SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment

_log = logging.getLogger(__name__)

_STEP_SIZE = 1024 * 1024
"""Bytes that are read in one step: a thread of the pool is busy for some ten milliseconds."""
_EVERYTHING = 2**63
"""An offset and a time after all others."""


@dataclass(frozen=True, slots=True)
class Condensed:
    """What was done to a partition."""

    segment_count: int
    """Segments that were rewritten."""
    removed_count: int
    """Messages that were removed."""
    freed_size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What the last time has shown of a partition."""

    end_offset: int = 0
    """Where it ended."""
    next_tombstone_at: int | None = None
    """When the oldest tombstone was stored that had to stay."""
    slice_count: int = 1


class CondensingGuard(Protocol):
    """Says what may be condensed: the archive, which is to have the same as the server."""

    def condensable_end(self, log: PartitionLog) -> int:
        """The offset up to which segments may be condensed."""

    def may_have_older(self, log: PartitionLog) -> bool:
        """Whether there may be messages of a log elsewhere that are not condensed."""

    def hurry(self) -> None:
        """Look again soon, because segments were condensed."""


class OpenPublishes(Protocol):
    """Publishes that are not finished: whoever finishes them looks for their messages."""

    async def settle_below(self, identity: PartitionIdentity, before_offset: int) -> None:
        """Finish what has messages in a partition below an offset."""

    def first_open_offset(self, identity: PartitionIdentity) -> int | None:
        """The offset from which on a partition may have messages of them; None if it has none."""


class Condenser:
    """``run`` is the background task; ``condense`` may be called at any time by tests, but not at the same time."""

    def __init__(
        self,
        registry: PartitionRegistry,
        settings: BrokerSettings,
        clock: Clock,
        *,
        publishes: OpenPublishes,
        archive: CondensingGuard | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._publishes = publishes
        self._archive = archive
        self._pause = pause
        self._known: dict[PartitionIdentity, _Known] = {}

    async def run(self) -> None:
        """Look at all partitions at each interval of the cleaner, until cancelled."""
        while True:
            await self._pause(self._settings.cleaner_interval / 1_000_000)
            await self.condense_due()

    async def condense_due(self) -> None:
        """Condense the partitions that are due. A failure of the disk is logged, and retried the next time."""
        partitions = [
            partition
            for topic in self._registry
            if topic.effective.keep_latest_by_key
            for partition in topic.partitions
        ]
        present = {partition.log.identity for partition in partitions}
        self._known = {identity: known for identity, known in self._known.items() if identity in present}
        for partition in partitions:
            if _is_unusable(partition) or not self._is_due(partition):
                continue
            try:
                _report(partition, await self.condense(partition))
            except CourserError as error:
                self._known.pop(partition.log.identity, None)
                if not partition.is_deleted:
                    _log.warning("condensing stopped directory=%s reason=%s", partition.log.directory, error)

    def _is_due(self, partition: Partition) -> bool:
        known = self._known.get(partition.log.identity, _Known())
        segments = self._segments(partition)
        size = sum(segment.size for segment in segments)
        new_size = sum(segment.size for segment in segments if segment.end_offset > known.end_offset)
        if new_size and 100 * new_size >= self._settings.condensing_percent * size:
            return True
        tombstone = known.next_tombstone_at
        return bool(segments) and tombstone is not None and tombstone < self._tombstones_before(partition.log)

    def _tombstones_before(self, log: PartitionLog) -> int:
        """Tombstones that were stored before this time may go; 0: none may."""
        if self._archive is not None and self._archive.may_have_older(log):
            # Without its tombstone, a message that only the archive has would count again.
            return 0
        return self._clock.now() - self._settings.tombstone_delay

    def _segments(self, partition: Partition) -> tuple[Segment, ...]:
        """The segments that may be condensed now.

        A publish that is not finished looks for its messages after a crash, so they stay. So do messages whose ids are
        remembered: without them, a start would forget the ids, and a message that is sent again would be stored again.
        """
        log, deduplication = partition.log, self._settings.deduplication
        first_open = self._publishes.first_open_offset(log.identity)
        archived_end = _EVERYTHING if self._archive is None else self._archive.condensable_end(log)
        return condensable_segments(
            log,
            end_offset=min(_EVERYTHING if first_open is None else first_open, archived_end),
            stored_before=_EVERYTHING if deduplication is None else self._clock.now() - deduplication.age_max,
        )

    async def condense(self, partition: Partition) -> Condensed:
        """Remove the superseded messages of a partition.

        Raises:
            CourserError: the disk refuses. Nothing is lost; the next time starts over.
        """
        log = partition.log
        await self._publishes.settle_below(log.identity, log.next_offset)
        removals = await self._survey(partition)
        segment_count = removed_count = freed_size = 0
        # Oldest first: a tombstone may only go after the older messages of its key.
        for segment in filter(removals.concern, removals.segments):
            facts = await self._rewrite(partition, CondensedCopy(log, segment, removals))
            if facts is not None:
                segment_count += 1
                removed_count += segment.message_count - facts.message_count
                freed_size += segment.size - facts.size
        if removed_count and removals.has_waiting_tombstones:
            # The older messages of their keys are gone now.
            self._known[log.identity] = replace(self._known[log.identity], next_tombstone_at=0)
        if segment_count and self._archive is not None:
            self._archive.hurry()
        return Condensed(segment_count, removed_count, freed_size)

    async def _survey(self, partition: Partition) -> Removals:
        """Find out what can be removed, with as many slices of keys as it takes."""
        log = partition.log
        segments, horizon = self._segments(partition), self._tombstones_before(log)
        slice_count = self._known.get(log.identity, _Known()).slice_count
        while True:
            removals = Removals(log, segments)
            try:
                for number in range(slice_count):
                    survey = KeySurvey(
                        log,
                        removals,
                        KeySlice(number, slice_count),
                        tombstones_before=horizon,
                        # The archive still has those messages until it has the condensed segments.
                        tombstones_wait=self._archive is not None,
                    )
                    await self._take(partition, survey.steps())
            except TooManyKeys:
                slice_count *= 2
                continue
            end_offset = segments[-1].end_offset if segments else 0
            self._known[log.identity] = _Known(end_offset, removals.next_tombstone_at, slice_count)
            return removals

    async def _rewrite(self, partition: Partition, copy: CondensedCopy) -> SegmentFacts | None:
        """Replace a segment. None if that is not worth it, or if the segment was deleted meanwhile."""
        try:
            await self._take(partition, copy.steps())
            await partition.do_upkeep(partial(plan_condensed, partition.log, copy))
        except CourserError:
            # Not if this task is cancelled: the replacement may be under way. Then the next start removes the copy.
            await partition.work(copy.discard)
            raise
        old, segments = copy.segment, partition.log.segments
        if any(segment.base_offset == old.base_offset and segment is not old for segment in segments):
            return copy.facts
        await partition.work(copy.discard)
        return None

    async def _take(self, partition: Partition, steps: Iterator[int]) -> None:
        """Take all steps, not faster than the rate."""
        while size := await partition.work(partial(advance, steps, _STEP_SIZE)):
            await self._pause(size / self._settings.condensing_rate)


def _is_unusable(partition: Partition) -> bool:
    return partition.is_deleted or partition.is_unavailable or partition.log.failure is not None


def _report(partition: Partition, condensed: Condensed) -> None:
    if condensed.segment_count:
        _log.info(
            "segments condensed directory=%s segments=%d messages=%d size=%d",
            partition.log.directory,
            condensed.segment_count,
            condensed.removed_count,
            condensed.freed_size,
        )
