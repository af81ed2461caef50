"""The partitions of one process, as the archive sees them: what of them is to be archived, and what follows from it.

The process that writes the archive has one of these for its own partitions. With several processes each has one, and
the first asks the others for their captures (docs/adr/0021).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from courser.archive.capture import CapturedPartition
from courser.archive.errors import ArchiveFailure
from courser.archive.reader import PartitionArchive
from courser.archive.settings import ArchiveSettings
from courser.archive.writer import ArchiveCounters, Confirmed
from courser.broker.archive.archive_guard import ArchiveGuard
from courser.broker.archive.archived_copies import find_copy
from courser.broker.archive.capturing import captured_partition
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.partition_survey import Pause, let_others_run
from courser.broker.partition.steps import Steps
from courser.errors import CourserError
from courser.model.identifiers import TopicAddress
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment, SegmentState

_log = logging.getLogger(__name__)


class KnownArchive(Protocol):
    """What a process knows of the archive."""

    @property
    def counters(self) -> ArchiveCounters:
        """What was done since the start."""

    @property
    def is_known(self) -> bool:
        """Whether it was read since the start."""

    @property
    def is_gone(self) -> bool:
        """Whether the store is not the one that was claimed, if that is known."""

    @property
    def failure(self) -> str | None:
        """Why it cannot be used now, if that is known."""

    def find(self, identity: PartitionIdentity) -> PartitionArchive | None:
        """What it has of a partition; None if nothing."""

    def hurry(self) -> None:
        """Begin the next run now."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Sealed segments that are not archived."""

    size: int = 0
    oldest_time: int = 0
    """When the oldest message in them was stored; 0 if there are none."""

    def with_waiting(self, segments: Sequence[Segment]) -> "Backlog":
        """The sum with more of them."""
        times = [segment.first_stored_at for segment in segments]
        if self.oldest_time:
            times.append(self.oldest_time)
        return Backlog(self.size + sum(segment.size for segment in segments), min(times, default=0))


class AwaitedSegment(NamedTuple):
    """A segment that has to be archived before it is purged."""

    identity: PartitionIdentity
    base_offset: int
    end_offset: int
    message_count: int


class FoundDamage(NamedTuple):
    """Damage that an archive run has found in a local segment."""

    identity: PartitionIdentity
    facts: SegmentFacts
    """The segment, as it was captured."""
    damages: tuple[DamagedRange, ...]


class OtherArchiveShares(Protocol):
    """Those of the other processes, for the one that writes the archive.

    Methods that wait raise ``ArchiveFailure`` while a process is being restarted: then the run is repeated.
    """

    def tell_known(self) -> None:
        """The archive was read: all may read from it."""

    async def prepare(self, *, with_active: bool) -> None:
        """See ``ArchiveShare``."""

    async def capture(self, *, with_active: bool) -> tuple[list[int], tuple[CapturedPartition, ...]]:
        """All partitions of the others, and the times at which they were looked at, by the clock of each process."""

    def confirm(self, confirmed: Confirmed) -> None:
        """What is archived of all partitions. From now on their owners may delete it."""

    def retract(self) -> None:
        """The archive is gone: nothing counts as archived until it is confirmed again."""

    def refuse_writes(self, reason: str) -> None:
        """See ``ArchiveShare``. A process that is started later refuses them, too."""

    async def report_damages(self, damages: Sequence[FoundDamage]) -> None:
        """See ``ArchiveShare``."""

    async def ask_for(self, addresses: Iterable[TopicAddress]) -> list[AwaitedSegment]:
        """See ``ArchiveShare``. Raises ``CommandRejected`` (20010) while a process is being restarted."""

    async def take_over(self) -> bool:
        """At a stop: open here what processes owned that have ended. Returns whether there were any."""


class ArchiveShare:
    """Of one process. Belongs to its event loop."""

    def __init__(
        self,
        data: DataDirectory,
        registry: PartitionRegistry,
        settings: ArchiveSettings,
        archive: KnownArchive,
        *,
        thread: ThreadPoolExecutor,
        pause: Pause = let_others_run,
    ) -> None:
        """``thread`` fetches copies for repairs."""
        self._data = data
        self._registry = registry
        self._settings = settings
        self._archive = archive
        self._thread = thread
        self._pause = pause
        self._backlog = Backlog()
        self._reported: set[tuple[PartitionIdentity, int]] = set()
        """Damaged segments that were reported, by their first offset."""
        self.guard = ArchiveGuard(
            settings, is_known=lambda: archive.is_known, archive_of=self.archive_of, hurry=archive.hurry
        )
        """Says what may be deleted and condensed."""
        self.on_damage: Callable[[Partition, Segment, Sequence[DamagedRange]], Awaitable[None]] = _leave_alone
        """Reports new damage in a segment, and repairs it if that is possible."""

    # --- facts ---

    @property
    def counters(self) -> ArchiveCounters:
        """What was done since the start."""
        return self._archive.counters

    @property
    def is_gone(self) -> bool:
        """Whether the store is not the one that was claimed, if that is known here."""
        return self._archive.is_gone

    def archive_of(self, log: PartitionLog) -> PartitionArchive | None:
        """Where the archived messages of a partition are; None if there are none. Its methods block.

        Raises:
            ArchiveFailure: the store has not answered since the start, so nobody knows.
        """
        if not self._archive.is_known:
            reason = self._archive.failure or "the store has not answered since the start"
            raise ArchiveFailure("read", str(log.directory.name), reason)
        found = self._archive.find(log.identity)
        # After a purge, the archive may still name what is gone, until the next run.
        return found if found is not None and found.manifest.purge_count == log.epoch else None

    async def fetch(self, log: PartitionLog, segment: Segment, target: Path) -> bool:
        """Write the archived copy of a segment to a new file. Returns False if there is none.

        Raises:
            ArchiveFailure: the store does not answer.
            StorageFailure: a file cannot be read or written.
        """
        archive = self.archive_of(log)
        copy = None if archive is None else find_copy(archive, log, segment)
        if copy is None:
            return False
        work = partial(copy.write, self._data.file_system, target, self._settings.part_size)
        await asyncio.get_running_loop().run_in_executor(self._thread, work)
        return True

    @property
    def backlog(self) -> Backlog:
        """What was not archived at the last survey."""
        return self._backlog

    async def survey(self) -> None:
        """Add up what is not archived, for the metrics."""
        found = Backlog()
        async for partition in self._all_in_steps():
            log = partition.log
            sealed = (segment for segment in log.segments if segment.state is SegmentState.SEALED)
            found = found.with_waiting([segment for segment in sealed if not self.guard.is_archived(log, segment)])
        self._backlog = found

    def oldest_age(self) -> float:
        """Age in seconds of the oldest message that was not archived at the last survey; 0 if there was none."""
        oldest = self._backlog.oldest_time
        return max(self._data.clock.now() - oldest, 0) / 1_000_000 if oldest else 0.0

    # --- captures ---

    async def prepare(self, *, with_active: bool) -> None:
        """Before a capture: seal what can be sealed; with the segments that are still written, sync what is written.

        The archive must not have what a power cut takes from the server.
        """
        if with_active:
            async for partition in self._all_in_steps():
                marks = partition.log.marks
                if partition.log.failure is None and marks.synced.offset < marks.written.offset:
                    await _try(partition, partition.sync)
        async for partition in self._all_in_steps():
            if partition.log.failure is None and partition.log.closing_count:
                await _try(partition, partition.seal)

    async def capture(self, *, with_active: bool) -> tuple[CapturedPartition, ...]:
        """All partitions as they are, in steps. No publish begins meanwhile."""
        captured = [self._captured(partition, with_active=with_active) async for partition in self._all_in_steps()]
        self.guard.forget_others(partition.identity for partition in captured)
        return tuple(captured)

    async def _all_in_steps(self) -> AsyncIterator[Partition]:
        """All partitions, with pauses: there may be many segments, and others must not wait for all of them."""
        steps = Steps(self._pause)
        for partition in self._partitions():
            await steps.take(len(partition.log.segments) + 1)
            yield partition

    def _captured(self, partition: Partition, *, with_active: bool) -> CapturedPartition:
        log = partition.log
        if not self._registry.has_files(partition):
            return CapturedPartition(identity=log.identity, directory=log.directory, is_lost=True, segments=())
        end = self.guard.wanted_end(log)
        sealed = [
            segment
            for segment in log.segments
            if segment.state is SegmentState.SEALED and segment.message_count and segment.end_offset <= end
            if not self.guard.is_archived(log, segment)
        ]
        return captured_partition(log, sealed, with_active=with_active)

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self._registry for partition in topic.partitions]

    # --- what a run finds out ---

    async def report_damages(self, damages: Iterable[FoundDamage]) -> None:
        """Report the segments that were not archived because they are damaged, and have them repaired."""
        partitions = {partition.log.identity: partition for partition in self._partitions()}
        for damage in damages:
            partition = partitions.get(damage.identity)
            segments = partition.log.segments if partition is not None else ()
            # Not if its file was replaced meanwhile: then other bytes were expected.
            segment = next((found for found in segments if found.facts() == damage.facts), None)
            if partition is None or segment is None:
                continue
            place = damage.identity, segment.base_offset
            if place not in self._reported:
                self._reported.add(place)
                self.counters.failure_count += 1
                _log.error("not archiving a damaged segment directory=%s segment=%d", partition.log.directory, place[1])
                await self.on_damage(partition, segment, damage.damages)
                if not segment.damages:
                    self._reported.discard(place)

    def refuse_writes(self, reason: str) -> None:
        """Another server has taken over the archive: what would be written now would be lost."""
        for partition in self._partitions():
            partition.refuse_writes(reason)

    # --- what a purge waits for ---

    async def ask_for(self, topics: Iterable[OpenTopic]) -> list[AwaitedSegment]:
        """Have all messages that topics have now archived by the next run, because they are about to be purged.

        They end at the end of a segment. Messages that come later are in later ones (``ArchiveGuard.purgeable_end``):
        what counts is what a partition had when its segment was closed, not what arrives while it is sealed.
        """
        partitions = [partition for topic in topics for partition in topic.partitions]
        awaited: list[AwaitedSegment] = []
        steps = Steps(self._pause)
        for partition in partitions:
            await steps.take(len(partition.log.segments) + 1)
            await partition.wait_for_large_append()
            # Nothing is awaited from here on: what arrives later is in a later segment.
            log = partition.log
            if log.failure is None:
                log.roll()
            self.guard.want(log.identity, log.next_offset)
            awaited += [
                AwaitedSegment(log.identity, segment.base_offset, segment.end_offset, segment.message_count)
                for segment in log.segments
            ]
        for partition in partitions:
            if partition.log.failure is None:
                await partition.seal()
        return awaited


async def _leave_alone(_partition: Partition, segment: Segment, damages: Sequence[DamagedRange]) -> None:
    for damage in damages:
        segment.note_damage(damage)


async def _try(partition: Partition, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except CourserError as error:
        # It is archived as far as it is synced and sealed.
        _log.debug("not ready to be archived partition=%s reason=%s", partition.log.directory, error)
