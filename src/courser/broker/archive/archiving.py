"""The archiver: what is archived when, on a thread of its own, and what may be deleted because of that.

A run takes a capture of the broker on the event loop, and the writer uploads it (``archive/writer``). If the store is
down, nothing happens to clients: local segments stay, and the archiver tries again, with growing pauses. If another
server has taken over the archive, this one refuses all writes: they would be lost. If the archive is gone, because its
disk is not mounted or its bucket was emptied, nothing counts as archived until it is back and was looked at.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, get_ident
from time import clock_gettime, pthread_getcpuclockid

from courser.archive.capture import Capture
from courser.archive.claiming import ArchiveState, read_state, write_state
from courser.archive.errors import ArchiveFailure, ArchiveGone, ArchiveInterrupted, ArchiveTakenOver, StoreRefused
from courser.archive.pacing import Pace
from courser.archive.reader import ArchiveReader, PartitionArchive, make_place, open_store
from courser.archive.settings import ArchiveMoment, ArchiveSettings
from courser.archive.store import StoppableStore, Store
from courser.archive.writer import ArchiveCounters, ArchiveWriter, Confirmed
from courser.broker.archive.archive_share import ArchiveShare, FoundDamage, OtherArchiveShares
from courser.broker.catalog.catalog_service import CatalogService
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.partition_survey import Pause, let_others_run
from courser.catalog.store import CatalogStore
from courser.errors import CommandRejected, CourserError, ErrorCode, StartRefused, StorageFailure
from courser.model.identifiers import TopicAddress
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory
from courser.storage.snapshot import encode_snapshot

_log = logging.getLogger(__name__)

_PAUSE_MIN = 1.0
_PAUSE_MAX = 300.0
"""Seconds before a failed run is repeated: at first, and after many failures."""
_PUBLISH_PAUSE = 0.1
_PUBLISH_TRY_COUNT = 20
"""A publish in progress is not archived halfway: the run waits for it, but not for ever."""
_PATIENT_SIZE_MAX = 4 * 1024**3
"""Bytes of segments in a run that gives way to clients, at most: it must not fall behind for ever."""


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
        others: OtherArchiveShares | None = None,
    ) -> None:
        """``store`` replaces the one of the settings, for tests. ``others`` are the other processes, if there are any.

        Raises:
            StartRefused: the store cannot be used, or the directory's record of the archive is damaged.
        """
        self._data = data
        self._catalog = catalog
        self._settings = settings
        self._clock = data.clock
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._others = others
        self._failure: str | None = None
        """Why the last run failed, or None."""
        self._active_due = 0
        """When the segments that are still written are archived next, by the monotonic clock."""
        self._loop = asyncio.get_running_loop()
        self._is_fenced = False
        self._is_gone = False
        self.share = ArchiveShare(data, registry, settings, self, thread=self._thread, pause=pause)
        """The partitions of this process."""
        self.guard = self.share.guard
        state = self._state(draw)
        try:
            if store is None and (settings.take_over or not state.epoch):
                make_place(settings.store)
            opened = store or open_store(settings.store, data.file_system, draw(16))
        except StoreRefused as refusal:
            raise StartRefused(data.path, str(refusal), "check data_maintenance.archiver") from refusal
        client_time = partial(clock_gettime, pthread_getcpuclockid(get_ident()))
        self._place = opened.name
        self.pace = Pace(settings.bandwidth, stop=self._stop, client_time=client_time)
        """How fast it works, and whether it gives way to clients."""
        self._writer = ArchiveWriter(
            StoppableStore(opened, self._stop),
            data.file_system,
            data.path,
            state,
            draw=draw,
            pace=self.pace,
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

    @property
    def is_gone(self) -> bool:
        """Whether the store is not the one that was claimed, as of the last run."""
        return self._is_gone

    def reader(self) -> ArchiveReader | None:
        """Reads the archive as a whole; None if it is gone or not known yet, or another server has taken it over."""
        return None if self._is_fenced or self._is_gone else self._writer.reader()

    @property
    def is_known(self) -> bool:
        """Whether the archive was read since the start."""
        return bool(self._writer.epoch)

    @property
    def cluster(self) -> bytes:
        """The id of the archive."""
        return self._writer.cluster

    def find(self, identity: PartitionIdentity) -> PartitionArchive | None:
        """What the archive has of a partition, of any process; None if nothing."""
        return self._writer.archive_of(identity)

    def hurry(self) -> None:
        """Begin the next run now: somebody waits for the archive, such as retention, or a full disk."""
        self.pace.is_patient = False
        self._wake.set()

    # --- what a purge waits for ---

    async def archive_topics(self, topics: Iterable[OpenTopic], elsewhere: Iterable[TopicAddress] = ()) -> None:
        """Archive all messages that topics have now, because they are about to be purged.

        ``elsewhere``: topics of other processes.

        Raises:
            CommandRejected: the store does not take them.
        """
        segments = await self.share.ask_for(topics)
        if self._others is not None:
            segments += await self._others.ask_for(elsewhere)
        await self.run_once()
        missing = [segment for segment in segments if not self.guard.has_all_of(segment.identity, *segment[1:])]
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
        except ArchiveGone as failure:
            self._note_gone(failure)
        except (ArchiveFailure, StorageFailure) as failure:
            _log.warning("the archive cannot be claimed; archiving starts when it can reason=%s", failure)
            self._failure = str(failure)

    async def run(self) -> None:
        """Archive until cancelled: at each interval, and when retention waits for it."""
        pause = _PAUSE_MIN
        while True:
            if await self.run_once(gives_way=True):
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

    async def run_once(
        self, *, with_active: bool | None = None, is_final: bool = False, gives_way: bool = False
    ) -> bool:
        """Archive what is due. Return whether it succeeded.

        ``with_active``: whether to include segments that are still written; by default, if their time has come.
        ``gives_way``: nobody waits for this run, so it is slower while clients are busy.
        """
        if not gives_way:
            # Another run may have to end first.
            self.pace.is_patient = False
        async with self._turn:
            if self._is_fenced:
                return False
            self._wake.clear()
            self.pace.is_patient = gives_way
            try:
                await self._archive(with_active, is_final=is_final)
            except ArchiveTakenOver as fence:
                self._fence(fence)
            except ArchiveInterrupted:
                return False
            except CourserError as failure:
                # Not of the store alone: a claim also writes to the disk of the server, which may be full.
                self._note_failure(failure)
            else:
                self._note_success()
                return True
            return False

    def _note_failure(self, failure: CourserError) -> None:
        self.counters.failure_count += 1
        if isinstance(failure, ArchiveGone):
            self._note_gone(failure)
            return
        if self._failure is None:
            _log.warning("archiving failed; it will be tried again reason=%s", failure)
        self._failure = str(failure)

    def _note_gone(self, failure: ArchiveGone) -> None:
        """Nothing counts as archived any more. What comes back may be an older copy: all of it is looked at first."""
        if not self._is_gone:
            _log.error("%s; nothing is archived, and no local segment counts as archived, until it is back", failure)
        self._failure, self._is_gone = str(failure), True
        self.guard.confirm({})
        if self._others is not None:
            self._others.retract()

    def _note_success(self) -> None:
        if self._is_gone:
            _log.warning("the archive is back; archiving works again store=%s", self._place)
        elif self._failure is not None:
            _log.info("archiving works again")
        self._failure, self._is_gone = None, False

    async def _archive(self, with_active: bool | None, *, is_final: bool) -> None:
        await self._loop.run_in_executor(self._thread, self._writer.begin)
        interval, now = self._settings.active_interval, self._clock.monotonic()
        if with_active is None:
            is_used = bool(interval) and self._settings.moment is ArchiveMoment.SEAL
            with_active = is_used and now >= self._active_due
        if with_active:
            self._active_due = now + interval
        if self._others is None:
            await self.share.prepare(with_active=with_active)
        else:
            self._others.tell_known()
            await asyncio.gather(
                self.share.prepare(with_active=with_active), self._others.prepare(with_active=with_active)
            )
        capture = await self._capture(with_active=with_active, is_final=is_final)
        if capture.sealed_size > _PATIENT_SIZE_MAX:
            self.pace.is_patient = False
        try:
            await self._loop.run_in_executor(self._thread, self._writer.run, capture)
        finally:
            damages = [FoundDamage(found.identity, found.facts, found.damages) for found in self._writer.damages]
            await self.share.report_damages(damages)
            if self._others is not None and damages:
                await self._others.report_damages(damages)

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
        partitions = await self.share.capture(with_active=with_active)
        if self._others is not None:
            # They have applied every change up to ``op``, and none is made before they have answered.
            times, elsewhere = await self._others.capture(with_active=with_active)
            time, partitions = min(time, *times), partitions + elsewhere
        return Capture(
            time=time,
            op=op,
            metadata=None if snapshot is None else encode_snapshot(snapshot),
            partitions=partitions,
            is_final=is_final,
        )

    # --- what a run finds out ---

    def _tell_confirmed(self, confirmed: Confirmed) -> None:
        """On the archive's thread. It is all that is confirmed, of all partitions that there are."""
        self._loop.call_soon_threadsafe(self._confirm, confirmed)

    def _confirm(self, confirmed: Confirmed) -> None:
        self.guard.confirm(confirmed)
        if self._others is not None:
            self._others.confirm(confirmed)

    def _fence(self, fence: ArchiveTakenOver) -> None:
        self._is_fenced = True
        self._failure = str(fence)
        _log.error("refusing all writes: %s", fence)
        self._catalog.refuse_changes(str(fence))
        self.share.refuse_writes(str(fence))
        if self._others is not None:
            self._others.refuse_writes(str(fence))

    async def close(self) -> None:
        """Archive what is left, if the store takes it in time, and stop. Also if the store has failed before."""
        is_used = self._settings.active_interval and self._settings.moment is ArchiveMoment.SEAL
        if is_used and not self._is_fenced:
            last = asyncio.create_task(self._run_last())
            await asyncio.wait((last,), timeout=self._settings.last_run_timeout / 1_000_000)
            is_complete = last.done()
            self._stop.set()
            # What is being uploaded ends with its next part, unless the store hangs.
            await asyncio.wait((last,), timeout=_PAUSE_MIN)
            last.cancel()
            if not is_complete:
                _tell_incomplete("the store did not take it in time")
            elif not last.result():
                _tell_incomplete(self._failure or "the server stops")
        self.abandon()

    async def _run_last(self) -> bool:
        while not await self.run_once(with_active=True, is_final=True):
            # A process may have ended since the capture began.
            if self._others is None or not await self._others.take_over():
                return False
        return True

    def abandon(self) -> None:
        """Stop at once. What is not archived now is archived after the next start."""
        self._stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _tell_incomplete(reason: str) -> None:
    _log.error("the last run was not completed: this directory has what the archive does not have reason=%s", reason)


def _ignore(contact: "asyncio.Future[None]") -> None:
    """The first run begins again, and says what is wrong."""
    contact.exception()
