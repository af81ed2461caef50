"""The archiver: what is archived when, on a thread of its own, and what may be deleted because of that.

A run takes a capture of the broker on the event loop, and the writer uploads it (``archive/writer``). If the store is
down, nothing happens to clients: local segments stay, and the archiver tries again, with growing pauses. If another
server has taken over the archive, this one refuses all writes: they would be lost.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

from courser.archive.capture import Capture, CapturedPartition
from courser.archive.claiming import ArchiveState, read_state, write_state
from courser.archive.errors import ArchiveFailure, ArchiveInterrupted, ArchiveTakenOver, StoreRefused
from courser.archive.reader import ArchiveReader, PartitionArchive, open_store
from courser.archive.settings import ArchiveMoment, ArchiveSettings
from courser.archive.store import StoppableStore, Store
from courser.archive.uploading import Pace
from courser.archive.writer import ArchiveCounters, ArchiveWriter, Confirmed
from courser.broker.archive_guard import ArchiveGuard
from courser.broker.archived_copies import find_copy
from courser.broker.capturing import captured_partition
from courser.broker.catalog_service import CatalogService
from courser.broker.partition import Partition
from courser.broker.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition_survey import Pause, let_others_run
from courser.catalog.store import CatalogStore
from courser.errors import CommandRejected, CourserError, ErrorCode, StartRefused
from courser.model import metric_table as m
from courser.model.metrics import Registry
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory
from courser.storage.ledger import DamagedRange
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment, SegmentState
from courser.storage.snapshot import encode_snapshot

_log = logging.getLogger(__name__)

_PAUSE_MIN = 1.0
_PAUSE_MAX = 300.0
"""Seconds before a failed run is repeated: at first, and after many failures."""
_PUBLISH_PAUSE = 0.1
_PUBLISH_TRY_COUNT = 20
"""A publish in progress is not archived halfway: the run waits for it, but not for ever."""
_STEP_COUNT = 200
"""Partitions and segments that are looked at without a pause: up to 10 us each."""


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


class Archiver:
    """Archives a broker. ``run`` is the background task; ``run_once`` may be called at any time."""

    def __init__(
        self,
        data: DataDirectory,
        catalog: CatalogService,
        registry: PartitionRegistry,
        settings: ArchiveSettings,
        *,
        draw: Callable[[int], bytes],
        store: Store | None = None,
        pause: Pause = let_others_run,
    ) -> None:
        """``store`` replaces the one of the settings, for tests.

        Raises:
            StartRefused: the store cannot be used, or the directory's record of the archive is damaged.
        """
        self._data = data
        self._catalog = catalog
        self._registry = registry
        self._settings = settings
        self._clock = data.clock
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._pause = pause
        self._failure: str | None = None
        """Why the last run failed, or None."""
        self._backlog = Backlog()
        self._active_due = 0
        """When the segments that are still written are archived next, by the monotonic clock."""
        self._loop = asyncio.get_running_loop()
        self._is_fenced = False
        self.guard = ArchiveGuard(
            settings, is_known=lambda: bool(self._writer.epoch), archive_of=self.archive_of, hurry=self._wake.set
        )
        """Says what may be deleted and condensed."""
        self._reported: set[tuple[PartitionIdentity, int]] = set()
        """Damaged segments that were reported, by their first offset."""
        self.on_damage: Callable[[Partition, Segment, Sequence[DamagedRange]], Awaitable[None]] = _leave_alone
        """Reports new damage in a segment, and repairs it if that is possible."""
        try:
            opened = store or open_store(settings.store, data.file_system, draw(16))
        except StoreRefused as refusal:
            raise StartRefused(data.path, str(refusal), "check data_maintenance.archiver") from refusal
        self._writer = ArchiveWriter(
            StoppableStore(opened, self._stop),
            data.file_system,
            data.path,
            self._state(draw),
            draw=draw,
            pace=Pace(settings.bandwidth, stop=self._stop),
            part_size=settings.part_size,
            commit_size=settings.commit_size,
            take_over=settings.take_over,
            on_confirmed=self._tell_confirmed,
        )

    def _state(self, draw: Callable[[int], bytes]) -> ArchiveState:
        state = read_state(self._data.file_system, self._data.path)
        if state is None:
            state = ArchiveState(draw(16))
            write_state(self._data.file_system, self._data.path, state)
        return state

    # --- facts ---

    @property
    def counters(self) -> ArchiveCounters:
        """What was done since the start."""
        return self._writer.counters

    @property
    def failure(self) -> str | None:
        """Why the last run failed, or None."""
        return self._failure

    @property
    def is_fenced(self) -> bool:
        """Whether another server has taken over the archive."""
        return self._is_fenced

    def reader(self) -> ArchiveReader | None:
        """Reads the archive as a whole; None if the store has not answered yet, or another server has taken it over."""
        return None if self._is_fenced else self._writer.reader()

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
        await self._loop.run_in_executor(self._thread, work)
        return True

    def archive_of(self, log: PartitionLog) -> PartitionArchive | None:
        """Where the archived messages of a partition are; None if there are none. Its methods block.

        Raises:
            ArchiveFailure: the store has not answered since the start, so nobody knows.
        """
        if not self._writer.epoch:
            reason = self.failure or "the store has not answered since the start"
            raise ArchiveFailure("read", str(log.directory.name), reason)
        found = self._writer.archive_of(log.identity)
        # After a purge, the archive may still name what is gone, until the next run.
        return found if found is not None and found.manifest.purge_count == log.epoch else None

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
        oldest = self.backlog.oldest_time
        return max(self._clock.now() - oldest, 0) / 1_000_000 if oldest else 0.0

    # --- what a purge waits for ---

    async def archive_topics(self, topics: Iterable[OpenTopic]) -> None:
        """Archive all messages that topics have now, because they are about to be purged.

        They end at the end of a segment. Messages that come while this runs are in later ones (``purgeable_end``).

        Raises:
            CommandRejected: the store does not take them.
        """
        partitions = [partition for topic in topics for partition in topic.partitions]
        for partition in partitions:
            if partition.log.failure is None:
                await partition.roll()
            self.guard.want(partition.log.identity, partition.log.next_offset)
        segments = [(found.log, segment) for found in partitions for segment in found.log.segments]
        await self.run_once()
        missing = [segment for log, segment in segments if not self.guard.has_messages(log, segment)]
        if missing:
            count = sum(segment.message_count for segment in missing)
            reason = f"{count} messages are not archived: {self.failure or 'they cannot be read'}"
            raise CommandRejected(ErrorCode.NOT_ARCHIVED, reason)

    # --- runs ---

    async def begin(self) -> None:
        """At a start: check the store and claim the archive, unless the store does not answer in time.

        Raises:
            StartRefused: the store cannot be used, or another server has taken over the archive.
        """
        contact = self._loop.run_in_executor(self._thread, self._writer.begin)
        await asyncio.wait((contact,), timeout=self._settings.contact_timeout / 1_000_000)
        if not contact.done():
            _log.warning("the archive does not answer; archiving starts when it does")
            contact.add_done_callback(_ignore)
            return
        try:
            contact.result()
        except ArchiveTakenOver as fence:
            raise StartRefused(self._data.path, fence.reason, fence.remedy) from fence
        except StoreRefused as refusal:
            raise StartRefused(self._data.path, str(refusal), "use another store") from refusal
        except ArchiveFailure as failure:
            _log.warning("the archive cannot be reached; archiving starts when it can reason=%s", failure)
            self._failure = str(failure)

    async def run(self) -> None:
        """Archive until cancelled: at each interval, and when retention waits for it."""
        pause = _PAUSE_MIN
        while True:
            if await self.run_once():
                pause = _PAUSE_MIN
                await self._sleep(self._settings.interval / 1_000_000)
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def run_once(self, *, with_active: bool | None = None, is_final: bool = False) -> bool:
        """Archive what is due. Return whether it succeeded.

        ``with_active``: whether to include segments that are still written; by default, if their time has come.
        """
        async with self._turn:
            if self._is_fenced:
                return False
            self._wake.clear()
            try:
                await self._archive(with_active, is_final=is_final)
            except ArchiveTakenOver as fence:
                self._fence(fence)
            except ArchiveInterrupted:
                return False
            except ArchiveFailure as failure:
                self.counters.failure_count += 1
                if self._failure is None:
                    _log.warning("archiving failed; it will be tried again reason=%s", failure)
                self._failure = str(failure)
            else:
                if self._failure is not None:
                    _log.info("archiving works again")
                self._failure = None
                return True
            return False

    async def _archive(self, with_active: bool | None, *, is_final: bool) -> None:
        await self._loop.run_in_executor(self._thread, self._writer.begin)
        interval, now = self._settings.active_interval, self._clock.monotonic()
        if with_active is None:
            is_used = bool(interval) and self._settings.moment is ArchiveMoment.SEAL
            with_active = is_used and now >= self._active_due
        if with_active:
            self._active_due = now + interval
            await self._sync_all()
        await self._seal_all()
        capture = await self._capture(with_active=with_active, is_final=is_final)
        self.guard.forget_others(partition.identity for partition in capture.partitions)
        try:
            await self._loop.run_in_executor(self._thread, self._writer.run, capture)
        finally:
            await self._report_damages()

    async def _report_damages(self) -> None:
        """Report the segments that were not archived because they are damaged, and have them repaired."""
        partitions = {partition.log.identity: partition for partition in self._partitions()}
        for damage in self._writer.damages:
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

    async def _sync_all(self) -> None:
        """Sync what is written: the archive must not have what a power cut takes from the server."""
        for partition in self._partitions():
            marks = partition.log.marks
            if partition.log.failure is None and marks.synced.offset < marks.written.offset:
                await self._try(partition, partition.sync)

    async def _seal_all(self) -> None:
        for partition in self._partitions():
            if partition.log.failure is None and partition.log.closing_count:
                await self._try(partition, partition.seal)

    async def _try(self, partition: Partition, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except CourserError as error:
            # It is archived as far as it is synced and sealed.
            _log.debug("not ready to be archived partition=%s reason=%s", partition.log.directory, error)

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self._registry for partition in topic.partitions]

    async def _capture(self, *, with_active: bool, is_final: bool) -> Capture:
        look = partial(self._look, with_active=with_active, is_final=is_final)
        for _ in range(_PUBLISH_TRY_COUNT):
            capture = await self._catalog.between_changes(partial(look, accepts_publish=False))
            if capture is not None:
                return capture
            await asyncio.sleep(_PUBLISH_PAUSE)
        capture = await self._catalog.between_changes(partial(look, accepts_publish=True))
        assert capture is not None, "a publish in progress was accepted"
        return capture

    async def _look(
        self, store: CatalogStore, *, with_active: bool, is_final: bool, accepts_publish: bool
    ) -> Capture | None:
        """Everything as it is, in steps: no publish begins meanwhile. None if one is in progress and not accepted."""
        if not accepts_publish and any(sink.open is not None for sink in store.state.sinks.values()):
            return None
        op = -1 if store.last_op is None else store.last_op
        snapshot = store.make_snapshot() if op != self._writer.metadata_op else None
        # All messages that are stored up to this time are captured, and some later ones.
        time = self._clock.now()
        partitions = [self._captured(partition, with_active=with_active) async for partition in self._all_in_steps()]
        return Capture(
            time=time,
            op=op,
            metadata=None if snapshot is None else encode_snapshot(snapshot),
            partitions=tuple(partitions),
            is_final=is_final,
        )

    async def _all_in_steps(self) -> AsyncIterator[Partition]:
        """All partitions, with pauses: there may be many segments, and others must not wait for all of them."""
        step = 0
        for partition in self._partitions():
            count = len(partition.log.segments) + 1
            if step and step + count > _STEP_COUNT:
                step = 0
                await self._pause()
            step += count
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

    # --- what a run finds out ---

    def _tell_confirmed(self, confirmed: Confirmed) -> None:
        """On the archive's thread. It is all that is confirmed, of all partitions that there are."""
        self._loop.call_soon_threadsafe(self.guard.confirm, confirmed)

    def _fence(self, fence: ArchiveTakenOver) -> None:
        self._is_fenced = True
        self._failure = str(fence)
        _log.error("refusing all writes: %s", fence)
        self._catalog.refuse_changes(str(fence))
        for partition in self._partitions():
            partition.refuse_writes(str(fence))

    async def close(self) -> None:
        """Archive what is left, if the store is quick enough, and stop."""
        is_used = self._settings.active_interval and self._settings.moment is ArchiveMoment.SEAL
        if is_used and self._failure is None:
            last = asyncio.create_task(self.run_once(with_active=True, is_final=True))
            await asyncio.wait((last,), timeout=self._settings.last_run_timeout / 1_000_000)
            self._stop.set()
            # What is being uploaded ends with its next part, unless the store hangs.
            await asyncio.wait((last,), timeout=_PAUSE_MIN)
            last.cancel()
        self.abandon()

    def abandon(self) -> None:
        """Stop at once. What is not archived now is archived after the next start."""
        self._stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)


async def _leave_alone(_partition: Partition, segment: Segment, damages: Sequence[DamagedRange]) -> None:
    segment.damages = tuple(damages)


def _ignore(contact: "asyncio.Future[None]") -> None:
    """The first run begins again, and says what is wrong."""
    contact.exception()


def register_archive_metrics(registry: Registry, archiver: Archiver | None) -> None:
    """Name the figures of the archive. Without one, they are zero."""
    counters = archiver.counters if archiver is not None else ArchiveCounters()
    registry.value_of(m.ARCHIVE_UPLOADS, lambda: counters.upload_count)
    registry.value_of(m.ARCHIVE_UPLOADED_BYTES, lambda: counters.upload_size)
    registry.value_of(m.ARCHIVE_FAILURES, lambda: counters.failure_count)
    if archiver is not None:
        registry.surveys.append(archiver.survey)
    registry.value_of(m.ARCHIVE_BACKLOG, lambda: archiver.backlog.size if archiver is not None else 0)
    registry.value_of(m.ARCHIVE_OLDEST_AGE, lambda: archiver.oldest_age() if archiver is not None else 0)
