"""One partition on an event loop: sends, polls, stored offsets, and the syncs that they share.

Everything here runs on the loop's thread, which owns the ``PartitionLog``, even small writes and reads from the page
cache. Work that takes long or waits for the disk goes to four lanes (large appends, syncs, upkeep, hints), so that a
send never waits for a seal.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial

from courser.broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from courser.broker.partition.disk_lane import DiskLane
from courser.broker.partition.partition_metrics import PartitionMetrics
from courser.broker.partition.partition_reads import Found, Past, ReadablePartition
from courser.broker.partition.preparing import Preparation
from courser.broker.partition.segment_verification import SegmentVerification
from courser.broker.partition.sync_turns import SyncTurns
from courser.broker.partition.waiting import Entrance, Waiting, attempt
from courser.errors import CommandRejected, CourserError, ErrorCode, PartitionReadOnly, StorageFailure
from courser.model.clock import Clock
from courser.model.durability import Durability
from courser.model.metrics import Registry
from courser.records.batch import Batch
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_body import PLAIN
from courser.records.stored_header import NO_PRODUCER
from courser.storage import upkeep
from courser.storage.acknowledgements import Acknowledgements
from courser.storage.jobs import Job
from courser.storage.message_window import FewIds, MessageIds
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import Appended, PartitionLog
from courser.storage.settings import LogSettings
from courser.storage.syncing import plan_sync

_UPKEEP_SIZE_MIN = 512 * 1024
"""Bytes appended between two checks for due upkeep in a small segment: half of the smallest allocation."""
_UPKEEP_SIZE_MAX = 16 * 1024 * 1024
"""The same in a large segment: half of what is written back at a time. Every check costs a turn of the event loop."""
_DISK_PAUSE = 100_000
"""Microseconds between two writes that nobody waits for: hints to write back, and syncs for a recovery point. More of
them would only slow down a burst of sends. The price: a start after a kill reads what was sent during the pause."""
_CLOSING_COUNT_MAX = 64
"""Maximum number of segments that wait to be sealed. Each holds a descriptor, and a start after a kill reads it."""
_WRITTEN, _BOUNDED, _SYNCED = Durability.WRITTEN, Durability.BOUNDED, Durability.SYNCED


class Partition(ReadablePartition):
    """One partition. Use it from one event loop, and call ``close`` at the end."""

    def __init__(
        self,
        log: PartitionLog,
        pool: Executor,
        clock: Clock,
        *,
        limits: BrokerLimits = DEFAULT_BROKER_LIMITS,
        verification: SegmentVerification | None = None,
        metrics: PartitionMetrics | None = None,
        past: Past = None,
        large_reads: asyncio.Semaphore | None = None,
    ) -> None:
        """``verification``, if any, checks each sealed segment before its first read.

        ``metrics`` are those of all partitions. ``past``, if any, reads messages that only the archive still has.
        ``large_reads`` limits how many large reads of all partitions run at a time.
        """
        super().__init__(log, pool, verification, past, large_reads)
        metrics = metrics or PartitionMetrics(Registry(), clock)
        self._clock = clock
        self._acknowledgements: Acknowledgements[asyncio.Future[None]] = Acknowledgements(log.settings.durability)
        log.syncs.take_turns(SyncTurns().alone)
        fail = partial(self.refuse_writes, is_sync=True)
        lane = partial(DiskLane, pool, on_defect=fail, retry_delay=limits.disk_retry_delay)
        self._syncs = lane(
            plan_next=self._plan_due_sync,
            on_done=self._release,
            on_time=partial(metrics.note_sync, log.directory),
            monotonic=clock.monotonic,
        )
        self._upkeep = lane(plan_next=lambda: upkeep.plan_upkeep(log), on_done=self._release)
        self._writeback = lane(plan_next=self._plan_writeback, on_done=lambda: None)
        self._large_appends = lane(plan_next=lambda: None, on_done=self._end_large_append)
        self._large_append: asyncio.Future[None] | None = None
        """Set from the decision to write a large batch until it is written. Other sends wait for it."""
        self._disk_due = clock.monotonic() + _DISK_PAUSE
        """When the next write that nobody waits for may start, on the monotonic clock."""
        self._upkeep_at_size, self._segment_count = 0, len(log.segments)
        self._is_behind = False
        """Whether so many segments wait to be sealed that sends must wait."""
        self._timer: asyncio.TimerHandle | None = None
        self._hold: asyncio.Event | None = None
        """Set while a purge or a change of settings is in progress. Sends and stores wait for it."""
        self._entrance = Entrance()
        """Sends that wait before they are written."""
        self._preparation = Preparation(log, self.log_reader, self._in_pool, clock)
        self._is_closing = False
        """Whether ``close`` is running, which syncs everything."""
        self.sync_count = 0
        self.append_count = self._sync_append_count = 0
        """Batches appended since the partition was opened; and how many the last sync that began covers."""
        self._append_sizes = metrics.append_sizes
        self._appends_per_sync = metrics.appends_per_sync

    # --- sends ---

    def try_append(
        self,
        batch: Batch,
        producer: bytes = NO_PRODUCER,
        sequence: int = 0,
        timestamp: int = 0,
        is_synced_later: bool = False,
        is_prepared: bool = False,
        is_new: bool = False,
    ) -> Appended | Waiting[Appended]:
        """Append a batch. Returns what was appended if it may be acknowledged now, else what has to be waited for.

        Without a ``timestamp`` the batch gets the current time. ``is_synced_later``: the caller appends more,
        acknowledges nothing before its own call of ``sync``, and does not wait for a sync of each batch.
        ``is_prepared``: the batch is a result of ``prepare``. ``is_new``: none of its messages was stored before.

        Raises:
            DiskFull: nothing was kept.
            PartitionReadOnly: it may or may not be kept; it was not acknowledged.
            CodecMissing: the partition compresses with a library that is not installed.
        """
        log, settings = self.log, self.log.settings
        marks, level = log.marks, settings.durability.level
        ids: MessageIds | FewIds | None = None
        if settings.deduplication is not None and producer is NO_PRODUCER and not is_new:
            ids = None if self._must_wait(batch.count) else self._preparation.ids_if_new(batch)
            if ids is None:
                return attempt(self._append_new(batch, timestamp, is_synced_later))
        if settings.encoding is not PLAIN and not is_prepared:
            if not self._preparation.is_quick(batch):
                later = self._append_later(batch, producer, sequence, timestamp, is_synced_later, is_prepared=False)
                return Waiting(asyncio.get_running_loop().create_task(later))
            batch = self._preparation.encode(batch)
        if (
            self._hold is not None
            or self._large_append is not None
            or self._is_behind
            # As ``needs_reservation``.
            or (marks.written[0] + batch.count > log.reserved_end and level is not _SYNCED)
        ):
            later = self._append_later(batch, producer, sequence, timestamp, is_synced_later, is_prepared=True)
            return Waiting(asyncio.get_running_loop().create_task(later))
        if len(batch.body) > settings.limits.inline_size:
            return attempt(self._append_large(batch, producer, sequence, timestamp, is_synced_later))
        return self._acknowledge(batch, log.append(batch, producer, sequence, timestamp), is_synced_later, ids)

    def _acknowledge(
        self, batch: Batch, appended: Appended, is_synced_later: bool, ids: MessageIds | FewIds | None = None
    ) -> Appended | Waiting[Appended]:
        """Count a batch that was appended, and start what follows from it; return it when it may be acknowledged."""
        log, settings = self.log, self.log.settings
        marks, level = log.marks, settings.durability.level
        if settings.deduplication is not None:
            self._preparation.remember(batch, appended, ids)
        self.append_count += 1
        sizes, size = self._append_sizes, len(batch.body) + BATCH_HEADER_SIZE
        sizes.counts[size.bit_length()] += 1
        sizes.total += size
        if self.readers.waiting:
            self.readers.announce_soon()
        if marks.written[2] >= self._upkeep_at_size or len(log.segments) != self._segment_count:
            self._look_at_upkeep()
        if level is _WRITTEN or is_synced_later or (level is _BOUNDED and self._is_within_bounds()):
            return appended
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acknowledgements.wait(marks.written, waiter)
        self._syncs.wake()
        return Waiting(waiter, appended)

    async def append(
        self,
        batch: Batch,
        *,
        producer: bytes = NO_PRODUCER,
        sequence: int = 0,
        timestamp: int = 0,
        is_synced_later: bool = False,
        is_prepared: bool = False,
    ) -> Appended:
        """``try_append``, for those who can wait: returns when the batch may be acknowledged."""
        appended = self.try_append(batch, producer, sequence, timestamp, is_synced_later, is_prepared)
        return await appended if isinstance(appended, Waiting) else appended

    async def _append_later(
        self,
        batch: Batch,
        producer: bytes,
        sequence: int,
        timestamp: int,
        is_synced_later: bool,
        *,
        is_prepared: bool,
    ) -> Appended:
        with self._entrance.held():
            if not is_prepared:
                batch = await self.prepare(batch)
            await self._wait_to_append(batch.count)
        # Nothing was awaited since the last check: this attempt is not sent back.
        appended = self.try_append(batch, producer, sequence, timestamp, is_synced_later, True, True)
        return await appended if isinstance(appended, Waiting) else appended

    async def _append_large(
        self, batch: Batch, producer: bytes, sequence: int, timestamp: int, is_synced_later: bool
    ) -> Appended:
        """Append a batch whose hash and write would hold up all other clients: on another thread.

        The job goes on if the caller is cancelled, and is complete before anything else is appended.
        """
        self._large_append = asyncio.get_running_loop().create_future()
        began_at = self._clock.monotonic()
        noted: list[Appended | Waiting[Appended]] = []

        def note(appended: Appended) -> None:
            self._acknowledgements.write_began(began_at)
            noted.append(self._acknowledge(batch, appended, is_synced_later))

        with self._entrance.held():
            await self._large_appends.do(partial(self._plan_large_append, batch, producer, sequence, timestamp, note))
        if not noted:
            self.log.check_writable()
        (found,) = noted
        return await found if isinstance(found, Waiting) else found

    def _plan_large_append(
        self, batch: Batch, producer: bytes, sequence: int, timestamp: int, note: Callable[[Appended], None]
    ) -> Job:
        try:
            self._check_open()
            return self.log.plan_append(batch, producer, sequence, timestamp, note)
        except BaseException:
            self._end_large_append()
            raise

    def _end_large_append(self) -> None:
        done, self._large_append = self._large_append, None
        if done is not None:
            done.set_result(None)

    async def _append_new(self, batch: Batch, timestamp: int, is_synced_later: bool) -> Appended:
        """Append those messages whose ids are not known yet. If all are known, return where the first one is."""
        with self._entrance.held():
            while True:
                prepared = await self.prepare(batch)
                await self._wait_to_append(batch.count)
                # Nothing is awaited between this and the append: a batch with the same ids comes before or after both.
                known = self._preparation.look_up(batch)
                if known.fresh is batch:
                    break
                if known.fresh is None:
                    return await self._acknowledge_known(known.first_offset, batch.count)
                batch = known.fresh
        appended = self.try_append(prepared, NO_PRODUCER, 0, timestamp, is_synced_later, True, True)
        return await appended if isinstance(appended, Waiting) else appended

    async def _acknowledge_known(self, offset: int, count: int) -> Appended:
        """Acknowledge messages that were stored before, as soon as they are durable enough."""
        level, marks = self.log.settings.durability.level, self.log.marks
        # Otherwise nobody knows whether they will survive.
        self.log.check_writable()
        is_unsynced = marks.synced.offset < marks.written.offset
        # At `bounded`, they may be among those that wait.
        if is_unsynced and (level is _SYNCED or (level is _BOUNDED and len(self._acknowledgements))):
            await self.sync()
        return Appended(offset, count, self._clock.now())

    async def prepare(self, batch: Batch) -> Batch:
        """See ``Preparation.prepare``."""
        return await self._preparation.prepare(batch)

    def _is_within_bounds(self) -> bool:
        """Whether the last write may be acknowledged before it is synced, at level `bounded`."""
        marks, now, acknowledgements = self.log.marks, self._clock.monotonic(), self._acknowledgements
        if acknowledgements.is_free(marks.written, now):
            return True
        if not acknowledgements.admits(marks.written, marks.synced, now):
            return False
        self._wake_due_sync(now)
        return True

    async def ready_to_append(self, count: int) -> None:
        """Wait until the next ``append`` can write ``count`` messages without waiting. Raises ``CourserError``.

        For callers that decide at the last moment whether to append.
        """
        if self._must_wait(count):
            with self._entrance.held():
                await self._wait_to_append(count)

    def _must_wait(self, count: int) -> bool:
        """Whether a send of ``count`` messages cannot be written now."""
        return (
            self._hold is not None
            or self._large_append is not None
            or self._is_behind
            or self.log.needs_reservation(count)
        )

    async def _wait_to_append(self, count: int) -> None:
        """Wait until a send can be written. Between the last check and the append, nothing is awaited."""
        # Each of these may start while another one is awaited.
        while self._must_wait(count):
            if self._hold is not None:
                await self._wait_for_writes()
            elif self._large_append is not None:
                await self.wait_for_large_append()
            elif self._is_behind:
                self.log.check_writable()
                before = self.log.closing_count
                await self._upkeep.do(partial(upkeep.plan_seal, self.log))
                # If no segment could be sealed, waiting does not help.
                self._is_behind = _CLOSING_COUNT_MAX < self.log.closing_count < before
            else:
                self.log.check_writable()
                await self._upkeep.do(partial(upkeep.plan_reservation, self.log, count))
        self._check_open()

    async def settle(self) -> None:
        """Wait until every send that started before this call is written or has failed."""
        await self._entrance.settle()

    def _look_at_upkeep(self) -> None:
        """Start upkeep that is due, and set the size at which to check again."""
        log, marks = self.log, self.log.marks
        size, left = marks.written.size, log.settings.recovery_point_size + marks.synced.size - marks.written.size
        ahead = min(max(log.segments[-1].size // 8, _UPKEEP_SIZE_MIN), _UPKEEP_SIZE_MAX)
        self._upkeep_at_size = size + (min(ahead, left) if left > 0 else ahead)
        self._segment_count = len(log.segments)
        self._is_behind = log.closing_count > _CLOSING_COUNT_MAX
        # Allocation goes first: it would have to wait for the others.
        self._upkeep.wake()
        if left <= 0:
            self._wake_due_sync(self._clock.monotonic())
        self._writeback.wake()

    def _plan_writeback(self) -> Job | None:
        now = self._clock.monotonic()
        job = upkeep.plan_writeback(self.log) if now >= self._disk_due else None
        if job is not None:
            self._disk_due = now + _DISK_PAUSE
        return job

    def _wake_due_sync(self, now: int) -> None:
        if self._is_sync_due(now):
            self._syncs.wake()
        else:
            self._set_timer(now)

    def _set_timer(self, now: int) -> None:
        """Set a timer for the next due sync."""
        if self._timer is None and not self._is_closing and (due := self._sync_due_at()) is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due - now, 0) / 1_000_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake_due_sync(self._clock.monotonic())

    @property
    def _needs_recovery_point(self) -> bool:
        marks = self.log.marks
        return marks.written.size - marks.synced.size >= self.log.settings.recovery_point_size

    def _is_sync_due(self, now: int) -> bool:
        if self._needs_recovery_point and now >= self._disk_due:
            return True
        marks = self.log.marks
        return self._acknowledgements.is_sync_due(marks.synced, marks.written, now)

    def _sync_due_at(self) -> int | None:
        """When the next sync is due if nothing more is written."""
        marks = self.log.marks
        due = self._acknowledgements.sync_due_at(marks.synced) if marks.synced.offset < marks.written.offset else None
        if self._needs_recovery_point:
            due = min(due or self._disk_due, self._disk_due)
        return due

    def _plan_due_sync(self) -> Job | None:
        now = self._clock.monotonic()
        if self._is_sync_due(now):
            return self._plan_sync()
        # Data that was written during the last sync has its own due time, and perhaps nothing follows it.
        self._set_timer(now)
        return None

    def _plan_sync(self) -> Job | None:
        job = plan_sync(self.log)
        if job is not None:
            self._acknowledgements.sync_began(self.log.marks.written)
            self._disk_due = self._clock.monotonic() + _DISK_PAUSE
            self.sync_count += 1
            self._appends_per_sync.observe(self.append_count - self._sync_append_count)
            self._sync_append_count = self.append_count
        return job

    def _release(self) -> None:
        """Acknowledge the sends that are durable enough. After a failure, fail all that wait."""
        if (log := self.log).failure is not None:
            for waiter in self._acknowledgements.drain():
                if not waiter.done():
                    waiter.set_exception(PartitionReadOnly(log.directory, log.failure))
            self._upkeep.wake()
            self.readers.announce()
            return
        for waiter in self._acknowledgements.releasable(log.marks.synced, self._clock.monotonic()):
            if not waiter.done():
                waiter.set_result(None)
        if self.readers.waiting:
            self.readers.announce_soon()

    # --- stored offsets ---

    async def store_offset(
        self, key: ConsumerKey, offset: int, *, persisted: bool = False, only_forward: bool = False
    ) -> None:
        """Store a consumer's offset. It is written on return, and synced if it moves back or ``persisted`` is set.

        With ``only_forward``, nothing is done if the stored offset is the same or larger.
        """
        await self._wait_to_store()
        # Checked after the wait: another store may have been waiting too.
        if only_forward and (stored := self.log.offsets.get(key)) is not None and stored >= offset:
            return
        if await self._change_offsets(lambda: self.log.store_offset(key, offset)) or persisted:
            await self.sync()
        elif self.log.offsets.is_wasteful:
            self._upkeep.wake()

    async def delete_offset(self, key: ConsumerKey) -> None:
        """Delete a consumer's offset durably."""
        await self._wait_to_store()
        await self._change_offsets(lambda: self.log.delete_offset(key))
        await self.sync()

    async def _change_offsets(self, change: Callable[[], Found]) -> Found:
        try:
            return change()
        except StorageFailure:
            # A power cut could complete what was written of the record, which was cut off.
            if self.log.offsets.has_unsynced:
                await self.sync()
            raise

    # --- maintenance ---

    async def sync(self) -> None:
        """Make everything that was written before this call durable."""
        await self._syncs.do(self._plan_sync)
        self.log.check_removable()

    def find_room(self) -> None:
        """Repeat the recovery from time to time, if the disk had no room for it."""
        if self.log.lack_of_room is not None:
            self._upkeep.wake()

    async def trim(self, before_offset: int) -> None:
        """Delete the sealed segments that are entirely below ``before_offset``. The new start is durable on return."""
        await self._upkeep.do(partial(upkeep.plan_trim, self.log, before_offset))

    async def purge(self, epoch: int | None = None, end_offset: int | None = None) -> None:
        """Delete all messages and stored offsets durably. Numbering continues. Sends and stores wait meanwhile.

        ``epoch`` is the number of purges of the topic including this one, if known. With ``end_offset``, only messages
        below it are deleted.
        """
        async with self.held_writes():
            await self.purge_held(epoch, end_offset)

    async def purge_held(self, epoch: int | None = None, end_offset: int | None = None) -> None:
        """``purge`` for a caller that already holds the writes."""
        await self.sync()
        await self._upkeep.do(partial(upkeep.plan_purge, self.log, epoch, end_offset))

    async def change_settings(self, settings: LogSettings) -> None:
        """Use other settings from now on. If the durability changes, everything is synced first while sends wait.

        Raises:
            CourserError: that sync failed. The stricter of the two levels applies.
        """
        if settings.durability == self.log.settings.durability:
            self.log.use_settings(settings)
            return
        async with self.held_writes():
            try:
                # If everything is synced, no send waits at the old level, and polls see the same at both levels.
                await self.sync()
            except CourserError:
                if settings.durability.level is Durability.SYNCED:
                    self._use(settings)
                raise
            self._use(settings)

    def _use(self, settings: LogSettings) -> None:
        self.log.use_settings(settings)
        self._acknowledgements.use(settings.durability)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # If the sync before has failed, perhaps nothing else starts the next one.
        self._syncs.wake()

    @asynccontextmanager
    async def held_writes(self) -> AsyncIterator[None]:
        """Make sends and stores wait until the end of the block. Only one caller holds them at a time."""
        await self._wait_for_writes()
        self._hold = hold = asyncio.Event()
        try:
            await self.wait_for_large_append()
            yield
        finally:
            self._hold = None
            hold.set()

    async def _wait_for_writes(self) -> None:
        while self._hold is not None:
            await self._hold.wait()

    async def _wait_to_store(self) -> None:
        """Wait until an offset can be stored: writes are not held, and the file of offsets is not being rewritten."""
        while self._hold is not None or self.log.offsets.is_rewriting:
            # The rewrite is the job before this one.
            await (self._upkeep.do(lambda: None) if self._hold is None else self._hold.wait())

    async def wait_for_large_append(self) -> None:
        """Wait until no batch is being appended on another thread."""
        while self._large_append is not None:
            await asyncio.wait((self._large_append,))

    async def work(self, work: Callable[[], Found]) -> Found:
        """Read or write temporary files in the pool. A stop waits for it, even if the caller is cancelled."""
        self._check_open()
        return await asyncio.shield(asyncio.ensure_future(self._in_pool(work)))

    async def do_upkeep(self, plan: Callable[[], Job | None]) -> None:
        """Plan an upkeep job, and wait for it."""
        await self._upkeep.do(plan)

    async def roll(self) -> None:
        """Close and seal the open segment if it has messages, so that it can be trimmed."""
        await self.wait_for_large_append()
        self.log.check_writable()
        self.log.roll()
        await self.seal()

    async def seal(self) -> None:
        """Seal all closed segments."""
        before = -1
        while (count := self.log.closing_count) not in (0, before):
            before = count
            await self._upkeep.do(partial(upkeep.plan_seal, self.log))

    # --- the end ---

    def refuse_writes(self, reason: str, *, is_sync: bool = False) -> None:
        """Accept no more writes until a restart: waiting sends fail. The first reason is kept."""
        self.log.fail(reason, is_sync=is_sync)
        self._release()

    def mark_deleted(self) -> None:
        """Mark the partition as deleted: waiting requests fail, and nothing more is written. Call ``close`` next."""
        self.is_deleted = True
        self.refuse_writes("it was deleted")

    def _check_open(self) -> None:
        """Begin nothing that ``close`` would not wait for."""
        if self._is_closing:
            raise CommandRejected(ErrorCode.DISCONNECTED, "the server is stopping")

    async def close(self) -> bool:
        """Sync and close everything. Returns whether this partition stopped cleanly."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        for lane in (self._large_appends, self._syncs, self._upkeep, self._writeback):
            await lane.drain()
            lane.close()
        await self._end_reads()
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, upkeep.close, self.log)
        finally:
            self._release()
        return self.log.failure is None
