"""What one process does for the archive: it archives its own partitions, and deletes nothing before that counts.

The archiver of the first process (``archiving``) has all processes carry out the phases of a run, itself among them:
begin, prepare, capture, write, confirm. With one process, that is the same without the others (docs/adr/0021).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, get_ident
from time import pthread_getcpuclockid
from typing import NamedTuple, TypeVar

from courser.archive.capture import CapturedPartition, CapturedSegment, Step
from courser.archive.checking import LocalDamage
from courser.archive.claiming import ArchiveState
from courser.archive.errors import ArchiveFailure, StoreRefused
from courser.archive.manifest_writer import ArchiveCounters, ManifestWriter, Written
from courser.archive.pacing import Pace, WorkClock
from courser.archive.reader import PartitionArchive, open_store
from courser.archive.settings import ArchiveSettings
from courser.archive.store import StoppableStore, Store
from courser.broker.archive.archive_guard import ArchiveGuard
from courser.broker.archive.archived_copies import find_copy
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.partition.waiting import Pause, Steps, let_others_run
from courser.catalog.directories import identity_of
from courser.catalog.state import CatalogState
from courser.errors import CourserError, StartRefused
from courser.model.identifiers import TopicAddress
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment, SegmentState

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_JOIN_PATIENCE = 5_000_000
"""Microseconds: changes of metadata wait for a process that is started again."""


def captured_partition(log: PartitionLog, sealed: Sequence[Segment], *, with_active: bool) -> CapturedPartition:
    """A partition as it is now, with these segments to archive, and the one that is still written if that is wanted."""
    segments = [_captured_segment(log, segment, segment.facts(), is_sealed=True) for segment in sealed]
    written, facts = log.open_segment, log.synced_facts
    is_known = written is not None and facts is not None and facts.base_offset == written.base_offset
    if with_active and is_known and written is not None and facts is not None and facts.size:
        segments.append(_captured_segment(log, written, facts, is_sealed=False))
    ledger = log.ledger.state
    return CapturedPartition(
        identity=log.identity,
        directory=log.directory,
        segments=tuple(segments),
        local_segments=tuple(
            (segment.base_offset, segment.end_offset) for segment in log.segments if segment.message_count
        ),
        start_offset=log.start_offset,
        next_offset=log.next_offset,
        reserved_end=log.reserved_end,
        last_timestamp=max([ledger.numbers.last_timestamp, *(segment.last_timestamp for segment in log.segments)]),
        purge_count=log.epoch,
        gaps=tuple(ledger.gaps),
        damages=tuple(
            dict.fromkeys([*ledger.damages, *(damage for segment in log.segments for damage in segment.damages)])
        ),
        corrections=tuple(ledger.corrections.items()),
        offsets=tuple(log.offsets.items()),
    )


def _captured_segment(log: PartitionLog, segment: Segment, facts: SegmentFacts, *, is_sealed: bool) -> CapturedSegment:
    recorded = tuple(damage for damage in log.ledger.state.damages if damage.base_offset == facts.base_offset)
    places = {damage.position for damage in recorded}
    is_doubtful = any(damage.position not in places for damage in segment.damages)
    return CapturedSegment(facts, is_sealed, recorded, is_doubtful)


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


class Captured(NamedTuple):
    """A process has captured its partitions."""

    time: int
    """All messages that were stored up to this time are captured, and some later ones. By the clock of the process."""
    sealed_size: int
    """Bytes of sealed segments to archive."""


class ArchiveShare:
    """Archives the topics of one process, on its event loop."""

    def __init__(
        self,
        data: DataDirectory,
        state: CatalogState,
        registry: PartitionRegistry,
        settings: ArchiveSettings,
        *,
        draw: Callable[[int], bytes],
        hurry: Callable[[], None],
        store: Store | None = None,
        pause: Pause = let_others_run,
    ) -> None:
        """``hurry`` has the archiver begin the next run now. ``store`` replaces the one of the settings, for tests.

        Raises:
            StartRefused: the store cannot be used.
        """
        self._data = data
        self._state = state
        self._registry = registry
        self._settings = settings
        self._hurry = hurry
        self._is_hurried = False
        self._pause = pause
        self._stop = Event()
        try:
            opened = store or open_store(settings.store, data.file_system, draw(16))
        except StoreRefused as refusal:
            raise StartRefused(data.path, str(refusal), "check data_maintenance.archiver") from refusal
        self.store = StoppableStore(opened, self._stop)
        self.pace = Pace(settings.bandwidth, WorkClock(pthread_getcpuclockid(get_ident())), self._stop)
        """How fast it works, and whether it gives way to clients."""
        self._writer = ManifestWriter(
            self.store,
            data.file_system,
            nonce=draw(16),
            pace=self.pace,
            part_size=settings.part_size,
            commit_size=settings.commit_size,
            may_lose=settings.take_over,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self.failure: str | None = None
        """Why the archive could not be used last, or None."""
        self.is_gone = False
        """Whether the store is not the one that was claimed, as of the last run."""
        self._start: Callable[[], None] | None = None
        """Begins to archive what was captured."""
        self._backlog = Backlog()
        self._reported: set[tuple[PartitionIdentity, int]] = set()
        """Damaged segments that were reported, by their first offset."""
        self.guard = ArchiveGuard(settings, self)
        """Says what may be deleted and condensed."""
        self.on_damage: Callable[[Partition, Segment, Sequence[DamagedRange]], Awaitable[None]] = _leave_alone
        """Reports new damage in a segment, and repairs it if that is possible."""

    # --- facts ---

    @property
    def counters(self) -> ArchiveCounters:
        """What was done since the start."""
        return self._writer.counters

    @property
    def is_known(self) -> bool:
        """Whether the archive was read since the start."""
        return self._writer.is_open

    def archive_of(self, log: PartitionLog) -> PartitionArchive | None:
        """Where the archived messages of a partition are; None if there are none. Its methods block.

        Raises:
            ArchiveFailure: the store has not answered since the start, so nobody knows.
        """
        if not self.is_known:
            reason = self.failure or "the store has not answered since the start"
            raise ArchiveFailure("read", str(log.directory.name), reason)
        found = self._writer.archive_of(log.identity)
        # After a purge, the archive may still name what is gone, until the next run.
        return found if found is not None and found.manifest.purge_count == log.epoch else None

    async def on_thread(self, work: Callable[[], Answer]) -> Answer:
        """Do work on the thread that waits for the store."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

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
        await self.on_thread(work)
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

    # --- a run ---

    async def join(self, claim: ArchiveState | None, newest_step: int, refusal: str | None) -> None:
        """This process was just started: read what the archive has, unless the store does not answer in time.

        ``claim``: of the archiver, if it has one. ``refusal``: why all writes are refused.
        """
        if refusal is not None:
            self.refuse_writes(refusal)
        if claim is not None:
            reading = asyncio.ensure_future(self.begin(claim, newest_step))
            if not await settled_in_time(reading, min(self._settings.contact_timeout, _JOIN_PATIENCE)):
                _log.warning("the archive does not answer; archiving starts when it does")
            elif (failure := reading.exception()) is not None:
                # The next run says so, or all is well then.
                _log.warning("the archive cannot be read; archiving starts when it can reason=%s", failure)

    async def begin(self, claim: ArchiveState, newest_step: int) -> None:
        """Read what the archive has of the partitions of this process, if that is due, and prove that it is there.

        Raises:
            ArchiveTakenOver: another server writes this archive.
            ArchiveGone: this is not the store that was claimed.
            ArchiveFailure: the store did not answer.
        """
        own = frozenset(self._own_identities()) if self._writer.must_read(claim, newest_step) else None
        await self.on_thread(partial(self._writer.begin, claim, newest_step, own))

    def _own_identities(self) -> Iterable[PartitionIdentity]:
        for stream in self._state.streams.values():
            for topic in stream.topics.values():
                address = stream.stream_id, topic.topic_id
                if self._registry.owns(*address) or address in self._registry.topics:
                    for partition in topic.partitions:
                        yield identity_of(topic, partition)

    def read_again(self) -> None:
        """Read what the archive has at the next begin: partitions of a process that has ended are open here now."""
        self._writer.read_again()

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

    async def capture(self, *, with_active: bool) -> Captured:
        """Take all partitions as they are, in steps. No publish begins, and no metadata changes meanwhile."""
        self._is_hurried = False
        time = self._data.clock.now()
        captured = [self._captured(partition, with_active=with_active) async for partition in self._all_in_steps()]
        self.guard.forget_others(partition.identity for partition in captured)
        # Not yet: changes of metadata wait for this, and the thread may be waiting for the store.
        self._start = partial(self._writer.start, captured)
        return Captured(time, sum(partition.sealed_size for partition in captured))

    async def write(self, step: Step, *, is_patient: bool) -> Written:
        """Upload the next part of what was captured. ``is_patient``: nobody waits for it, so clients come first.

        Raises:
            ArchiveTakenOver: another server writes this archive.
            ArchiveGone: this is not the store that was claimed.
            ArchiveFailure: the store did not take it.
        """
        self.pace.is_patient = is_patient and not self._is_hurried
        begin, self._start = self._start, None
        try:
            if begin is not None:
                await self.on_thread(begin)
            return await self.on_thread(partial(self._writer.write, step))
        finally:
            damages, self._writer.damages = self._writer.damages, []
            await self._report(damages)

    async def confirm(self) -> None:
        """A root has what was written, so it may be deleted here from now on, if it is the right archive.

        Raises:
            ArchiveTakenOver: another server may not have seen this root.
            ArchiveGone: this is not the store that was claimed.
            ArchiveFailure: the store did not answer.
        """
        self.guard.confirm(await self.on_thread(self._writer.confirm))

    def retract(self) -> None:
        """The archive is gone: nothing counts as archived until it is confirmed again."""
        self.guard.confirm({})
        self._writer.read_again()

    def hurry(self) -> None:
        """Begin the next run now, and do not give way to clients in this one. Told once for each capture."""
        self.pace.is_patient = False
        if not self._is_hurried:
            self._is_hurried = True
            self._hurry()

    def be_quick(self) -> None:
        """Somebody waits for this run: do not give way to clients."""
        self.pace.is_patient = False

    def stop(self) -> None:
        """End what is asked of the store. What is not archived now is archived after the next start."""
        self._stop.set()

    def close(self) -> None:
        """Stop at once, in the middle of an upload."""
        self.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

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

    async def _report(self, damages: Iterable[LocalDamage]) -> None:
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
        _log.error("refusing all writes: %s", reason)
        for partition in self._partitions():
            partition.refuse_writes(reason)

    # --- what a purge waits for ---

    async def ask_for(self, addresses: Sequence[TopicAddress]) -> list[AwaitedSegment]:
        """Have all messages that topics have now archived by the next run, because they are about to be purged.

        They end at the end of a segment: messages that come later are in later ones. What counts is what a partition
        had when its segment was closed, not what arrives while it is sealed. Of each partition, what comes last ends
        there, if only with no messages. Topics of other processes are left out.
        """
        topics = [self._registry.at(address) for address in addresses if self._registry.owns(*address)]
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
            awaited.append(AwaitedSegment(log.identity, log.next_offset, log.next_offset, 0))
        for partition in partitions:
            if partition.log.failure is None:
                await partition.seal()
        return awaited

    async def missing_count(self, awaited: Sequence[AwaitedSegment]) -> int:
        """How many messages of these segments are not archived. Those of other processes are left out."""
        own = {partition.log.identity for partition in self._partitions()}
        return sum(
            segment.message_count
            for segment in awaited
            if segment.identity in own and not self.guard.has_all_of(segment.identity, *segment[1:])
        )


async def settled_in_time(work: "asyncio.Future[None]", time: int) -> bool:
    """Whether work ends within so many microseconds. It goes on in any case."""
    await asyncio.wait((work,), timeout=time / 1_000_000)
    if not work.done():
        # Whoever comes next says what is wrong.
        work.add_done_callback(_ignore)
    return work.done()


def _ignore(work: "asyncio.Future[None]") -> None:
    if not work.cancelled():
        work.exception()


async def _leave_alone(_partition: Partition, segment: Segment, damages: Sequence[DamagedRange]) -> None:
    for damage in damages:
        segment.note_damage(damage)


async def _try(partition: Partition, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except CourserError as error:
        # It is archived as far as it is synced and sealed.
        _log.debug("not ready to be archived partition=%s reason=%s", partition.log.directory, error)
