"""The archiver: what is archived when, and what counts as archived because of that.

A run has phases that each process of the server carries out for its own topics (``archive_share``): the archiver claims
the archive, has all look at it (*begin*), seal and sync (*prepare*), take their partitions as they are between two
changes of the metadata (*capture*), and upload them (*write*). Then it writes the root that names what all have
written, and only now each of them may delete it (*confirm*). If a process ends meanwhile, the run fails and is
repeated.

If the store is down, nothing happens to clients: local segments stay, and the archiver tries again, with growing
pauses. If another server has taken over the archive, this one refuses all writes: they would be lost. If the archive is
gone, because its disk is not mounted or its bucket was emptied, nothing counts as archived until it is back and was
looked at.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from courser.archive.claiming import ArchiveState, read_state, write_state
from courser.archive.errors import ArchiveFailure, ArchiveGone, ArchiveInterrupted, ArchiveTakenOver, StoreRefused
from courser.archive.manifest_writer import ArchiveCounters
from courser.archive.reader import ArchiveReader, make_store_directory
from courser.archive.root_writer import RootWriter
from courser.archive.settings import ArchiveMoment, ArchiveSettings
from courser.archive.store import Store
from courser.broker.archive.archive_share import ArchiveShare, AwaitedSegment, settled_in_time
from courser.broker.catalog.catalog_service import CatalogService
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.partition.peers import Peers
from courser.broker.partition.waiting import Pause, let_others_run
from courser.catalog.store import CatalogStore
from courser.errors import CommandRejected, CourserError, ErrorCode, StartRefused, StorageFailure
from courser.model.identifiers import TopicAddress
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


Answer = TypeVar("Answer")
Phase: TypeAlias = Callable[[ArchiveShare], Awaitable[Answer]]
"""What a process does in a run. It is sent to others, so it is a method of ``ArchiveShare`` with some arguments."""


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
        peers: Peers | None = None,
    ) -> None:
        """``store`` replaces the one of the settings, for tests. ``peers`` are the other processes, if there are any.

        Raises:
            StartRefused: the store cannot be used, or the directory's record of the archive is damaged.
        """
        self._data = data
        self._catalog = catalog
        self._settings = settings
        self._clock = data.clock
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._peers = peers
        self._is_patient = False
        """Whether nobody waits for this run."""
        self._active_due = 0
        """When the segments that are still written are archived next, by the monotonic clock."""
        self._fenced: str | None = None
        """Why all writes are refused, if another server has taken over."""
        state = self._state(draw)
        try:
            if store is None and (settings.take_over or not state.epoch):
                make_store_directory(settings.store)
        except StoreRefused as refusal:
            raise StartRefused(data.path, str(refusal), "check data_maintenance.archiver") from refusal
        self.share = ArchiveShare(
            data, catalog.state, registry, settings, draw=draw, hurry=self.hurry, store=store, pause=pause
        )
        """The partitions of this process."""
        self.guard = self.share.guard
        self._root_writer = RootWriter(
            self.share.store, data.file_system, data.path, state, nonce=draw(16), take_over=settings.take_over
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
        return self.share.counters

    @property
    def failure(self) -> str | None:
        """Why the last run failed, or None."""
        return self.share.failure

    @property
    def is_fenced(self) -> bool:
        """Whether another server has taken over the archive."""
        return self._fenced is not None

    @property
    def is_gone(self) -> bool:
        """Whether the store is not the one that was claimed, as of the last run."""
        return self.share.is_gone

    def reader(self) -> ArchiveReader | None:
        """Reads the archive as a whole; None if it is gone or not known yet, or another server has taken it over."""
        if self.is_fenced or self.is_gone or not self.share.is_known:
            return None
        return ArchiveReader(self.share.store, self._root_writer.state.cluster)

    def joining(self) -> Phase[None]:
        """What a process does for the archive before it gets requests."""
        claim = self._root_writer.state if self.share.is_known and not self.is_gone else None
        return partial(ArchiveShare.join, claim=claim, newest_step=self._root_writer.newest_step, refusal=self._fenced)

    def hurry(self) -> None:
        """Begin the next run now: somebody waits for the archive, such as retention, or a full disk."""
        self._do_not_give_way()
        self._wake.set()

    def _do_not_give_way(self) -> None:
        self._is_patient = False
        self._tell(ArchiveShare.be_quick)

    # --- all processes ---

    async def _each(self, phase: Phase[Answer]) -> list[Answer]:
        """Have every process carry out a phase. All are waited for, also if one fails."""
        theirs = () if self._peers is None else self._peers.ask_archives(phase)
        results = await asyncio.gather(phase(self.share), *theirs, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            # What ends this server, or what was confirmed, before what only fails the run.
            raise min(
                failures, key=lambda failure: (type(failure) is not ArchiveTakenOver, type(failure) is not ArchiveGone)
            )
        return [result for result in results if not isinstance(result, BaseException)]

    def _tell(self, tell: Callable[[ArchiveShare], None]) -> None:
        tell(self.share)
        if self._peers is not None:
            self._peers.tell_archives(tell)

    # --- what a purge waits for ---

    async def ask_for(self, addresses: Iterable[TopicAddress]) -> list[AwaitedSegment]:
        """Ask for a run of all processes soon (``ArchiveShare``)."""
        await self._wait_for_peers()
        awaited = await self._each(partial(ArchiveShare.ask_for, addresses=tuple(addresses)))
        return [segment for share in awaited for segment in share]

    async def archive_asked(self, segments: Sequence[AwaitedSegment]) -> None:
        """Archive what was asked for, because it is about to be purged.

        Raises:
            CommandRejected: the store does not take it.
        """
        await self.run_once()
        count = sum(await self._each(partial(ArchiveShare.missing_count, awaited=segments)))
        if count:
            reason = f"{count} messages are not archived: {self.failure or 'they cannot be read'}"
            raise CommandRejected(ErrorCode.NOT_ARCHIVED, reason)

    async def _wait_for_peers(self) -> None:
        if self._peers is not None:
            await self._peers.wait_for_all()

    # --- runs ---

    async def begin(self) -> None:
        """At a start: check the store and claim the archive, unless the store does not answer in time.

        Raises:
            StartRefused: the store cannot be used, or another server has taken over the archive.
        """
        contact = asyncio.ensure_future(self._contact())
        if not await settled_in_time(contact, self._settings.contact_timeout):
            _log.warning("the archive does not answer; archiving starts when it does")
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
            self.share.failure = str(failure)

    async def _contact(self) -> None:
        """Claim the archive, and look at what it has. The first run does the same, for all processes."""
        async with self._turn:
            await self.share.on_thread(self._root_writer.begin)
            await self.share.begin(self._root_writer.state, self._root_writer.newest_step)

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
            self._do_not_give_way()
        async with self._turn:
            if self.is_fenced:
                return False
            self._wake.clear()
            self._is_patient = gives_way
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
        if self.failure is None:
            _log.warning("archiving failed; it will be tried again reason=%s", failure)
        self.share.failure = str(failure)

    def _note_gone(self, failure: ArchiveGone) -> None:
        """Forget what was archived. What comes back may be an older copy: all of it is looked at first."""
        if not self.is_gone:
            _log.error("%s; nothing is archived, and no local segment counts as archived, until it is back", failure)
        self.share.failure, self.share.is_gone = str(failure), True
        self._root_writer.lose()
        self._tell(ArchiveShare.retract)

    def _note_success(self) -> None:
        if self.is_gone:
            _log.warning("the archive is back; archiving works again store=%s", self.share.store.name)
        elif self.failure is not None:
            _log.info("archiving works again")
        self.share.failure, self.share.is_gone = None, False

    async def _archive(self, with_active: bool | None, *, is_final: bool) -> None:
        writer = self._root_writer
        await self.share.on_thread(writer.begin)
        await self._wait_for_peers()
        await self._each(partial(ArchiveShare.begin, claim=writer.state, newest_step=writer.newest_step))
        interval, now = self._settings.active_interval, self._clock.monotonic()
        if with_active is None:
            is_used = bool(interval) and self._settings.moment is ArchiveMoment.SEAL
            with_active = is_used and now >= self._active_due
        if with_active:
            self._active_due = now + interval
        await self._each(partial(ArchiveShare.prepare, with_active=with_active))
        capture = await self._capture(with_active=with_active)
        step = writer.next_step(capture.time, capture.op)
        if capture.metadata is not None:
            await self.share.on_thread(partial(writer.put_metadata, step, capture.metadata))
        is_finished = False
        while not is_finished:
            is_patient = self._is_patient and capture.sealed_size <= _PATIENT_SIZE_MAX
            written = await self._each(partial(ArchiveShare.write, step=step, is_patient=is_patient))
            is_finished = all(share.is_finished for share in written)
            put = partial(writer.put_root, step, written, is_final=is_final and is_finished)
            await self.share.on_thread(put)
            await self._each(ArchiveShare.confirm)
            step = writer.next_step(capture.time, capture.op)

    async def _capture(self, *, with_active: bool) -> "_Capture":
        look = partial(self._look, with_active=with_active)
        for _ in range(_PUBLISH_TRY_COUNT):
            capture = await self._catalog.between_changes(partial(look, accepts_publish=False))
            if capture is not None:
                return capture
            await asyncio.sleep(_PUBLISH_PAUSE)
        capture = await self._catalog.between_changes(partial(look, accepts_publish=True))
        assert capture is not None, "a publish in progress was accepted"
        return capture

    async def _look(self, store: CatalogStore, *, with_active: bool, accepts_publish: bool) -> "_Capture | None":
        """Everything as it is, in steps: no publish begins meanwhile. None if one is in progress and not accepted."""
        if not accepts_publish and any(sink.open is not None for sink in store.state.sinks.values()):
            return None
        op = -1 if store.last_op is None else store.last_op
        snapshot = store.make_snapshot() if op != self._root_writer.metadata_op else None
        # All processes have applied every change up to ``op``, and none is made before they have answered. Nobody is
        # waited for: a process that is being restarted needs the turn that this has.
        captured = await self._each(partial(ArchiveShare.capture, with_active=with_active))
        return _Capture(
            time=min(share.time for share in captured),
            op=op,
            metadata=None if snapshot is None else encode_snapshot(snapshot),
            sealed_size=sum(share.sealed_size for share in captured),
        )

    # --- what a run finds out ---

    def _fence(self, fence: ArchiveTakenOver) -> None:
        self._fenced = self.share.failure = str(fence)
        self._catalog.refuse_changes(str(fence))
        self._tell(partial(ArchiveShare.refuse_writes, reason=str(fence)))

    async def close(self) -> None:
        """Archive what is left, if the store takes it in time, and stop. Also if the store has failed before."""
        is_used = self._settings.active_interval and self._settings.moment is ArchiveMoment.SEAL
        if is_used and not self.is_fenced:
            last = asyncio.create_task(self._run_last())
            await asyncio.wait((last,), timeout=self._settings.last_run_timeout / 1_000_000)
            is_complete = last.done()
            self._tell(ArchiveShare.stop)
            # What is being uploaded ends with its next part, unless the store hangs.
            await asyncio.wait((last,), timeout=_PAUSE_MIN)
            last.cancel()
            if not is_complete:
                _tell_incomplete("the store did not take it in time")
            elif not last.result():
                _tell_incomplete(self.failure or "the server stops")
        self.abandon()

    async def _run_last(self) -> bool:
        while not await self.run_once(with_active=True, is_final=True):
            # A process may have ended since the run began.
            if self._peers is None or not await self._peers.take_over():
                return False
            self.share.read_again()
        return True

    def abandon(self) -> None:
        """Stop at once. What is not archived now is archived after the next start."""
        self.share.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Capture:
    """The server at one moment."""

    time: int
    op: int
    """Of the last change of the catalog; -1 before the first."""
    metadata: bytes | None
    """The catalog as a snapshot; None if the last run has the same."""
    sealed_size: int
    """Bytes of sealed segments to archive."""


def _tell_incomplete(reason: str) -> None:
    _log.error("the last run was not completed: this directory has what the archive does not have reason=%s", reason)
