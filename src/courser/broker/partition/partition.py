"""One partition on an event loop: sends, polls, stored offsets, and the syncs that they share.

Everything here runs on the loop's thread, which owns the ``PartitionLog``, even small writes and reads from the page
cache. Work that takes long or waits for the disk goes to the ``DiskQueue``, so that a send never waits for a seal.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial

from courser.broker.partition.disk_queue import DiskQueue, JobKind
from courser.broker.partition.group_commit import GroupCommit
from courser.broker.partition.partition_metrics import PartitionMetrics
from courser.broker.partition.partition_reader import Found, PartitionReader, Past
from courser.broker.partition.preparing import Preparation
from courser.broker.partition.segment_verification import SegmentVerification
from courser.broker.partition.waiting import PAST_EVERY_OFFSET, Entrance, Waiting, WaitingReaders, attempt
from courser.broker.settings import DEFAULT_BROKER_LIMITS, BrokerLimits
from courser.errors import CommandRejected, CourserError, ErrorCode, StorageFailure
from courser.model.clock import Clock
from courser.model.durability import Durability
from courser.model.metrics import Registry
from courser.records.batch import Batch
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_body import PLAIN
from courser.records.stored_header import NO_PRODUCER
from courser.storage import upkeep
from courser.storage.jobs import Job
from courser.storage.message_window import FewIds, MessageIds
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import Appended, PartitionLog
from courser.storage.settings import LogSettings

_UPKEEP_SIZE_MIN = 512 * 1024
"""Bytes appended between two checks for due upkeep in a small segment: half of the smallest allocation."""
_UPKEEP_SIZE_MAX = 16 * 1024 * 1024
"""The same in a large segment: half of what is written back at a time. Every check costs a turn of the event loop."""
_CLOSING_COUNT_MAX = 64
"""Maximum number of segments that wait to be sealed. Each holds a descriptor, and a start after a kill reads it."""
_WRITTEN, _BOUNDED, _SYNCED = Durability.WRITTEN, Durability.BOUNDED, Durability.SYNCED


class Partition:
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
        metrics = metrics or PartitionMetrics(Registry(), clock)
        self.log = log
        self._pool = pool
        self.reader = PartitionReader(log, pool, verification, past, large_reads)
        self._clock = clock
        self._queue = DiskQueue(pool, self, retry_delay=limits.disk_retry_delay)
        self.commits = GroupCommit(log, self._queue, clock, metrics)
        self.readers = WaitingReaders(self._final_end)
        self.is_deleted = False
        self._upkeep_at_size, self._segment_count = 0, len(log.segments)
        self._is_behind = False
        """Whether so many segments wait to be sealed that sends must wait."""
        self._hold: asyncio.Event | None = None
        """Set while a purge or a change of settings is in progress. Sends and stores wait for it."""
        self._entrance = Entrance()
        """Sends that wait before they are written."""
        self._preparation = Preparation(log, self.reader, clock)
        self._is_closing = False
        """Whether ``close`` is running, which syncs everything."""
        self._append_sizes = metrics.append_sizes

    @property
    def is_unavailable(self) -> bool:
        """Whether reads are refused. Clients that wait here are woken, and their next poll gets the reason."""
        return self.is_deleted or self.log.is_offline

    def _final_end(self) -> int:
        """The offset after the last readable message; if nothing will follow, whoever waits must learn why."""
        return PAST_EVERY_OFFSET if self.is_deleted or self.log.failure is not None else self.log.visible_end

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

        ``producer`` and ``sequence`` are those of a publish. If the batch has an idempotent producer and was stored
        before, it is not stored again: what is returned is where it is, as soon as it is durable enough.

        Without a ``timestamp`` the batch gets the current time. ``is_synced_later``: the caller appends more,
        acknowledges nothing before its own call of ``sync``, and does not wait for a sync of each batch.
        ``is_prepared``: the batch is a result of ``prepare``. ``is_new``: none of its messages was stored before.

        Raises:
            CommandRejected: it is not the next batch of its idempotent producer.
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
            or log.is_appending
            or self._is_behind
            # As ``needs_reservation``.
            or (marks.written[0] + batch.count > log.reserved_end and level is not _SYNCED)
            or (batch.producer is not None and not self._preparation.knows_producers)
        ):
            later = self._append_later(batch, producer, sequence, timestamp, is_synced_later, is_prepared=True)
            return Waiting(asyncio.get_running_loop().create_task(later))
        if batch.producer is not None and (offset := self._preparation.find_repeat(batch.producer)) is not None:
            return attempt(self._acknowledge_known(offset, batch.producer.message_count))
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
        if batch.producer is not None:
            self._preparation.remember_producer(batch.producer, appended.base_offset)
        self.commits.append_count += 1
        sizes, size = self._append_sizes, len(batch.body) + BATCH_HEADER_SIZE
        sizes.counts[size.bit_length()] += 1
        sizes.total += size
        if self.readers.waiting:
            self.readers.announce_soon()
        if marks.written[2] >= self._upkeep_at_size or len(log.segments) != self._segment_count:
            self._look_at_upkeep()
        if level is _WRITTEN or is_synced_later or (level is _BOUNDED and self.commits.is_within_bounds()):
            return appended
        return Waiting(self.commits.wait(), appended)

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
            if batch.producer is not None:
                await self._preparation.learn_producers()
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
        self._check_open()
        began_at = self._clock.monotonic()
        noted: list[Appended | Waiting[Appended]] = []

        def note(appended: Appended) -> None:
            self.commits.write_began(began_at)
            noted.append(self._acknowledge(batch, appended, is_synced_later))

        job = self.log.plan_append(batch, producer, sequence, timestamp, note)
        with self._entrance.held():
            await self._queue.do(JobKind.APPEND, lambda: job)
        if not noted:
            self.log.check_writable()
        (found,) = noted
        return await found if isinstance(found, Waiting) else found

    async def _append_new(self, batch: Batch, timestamp: int, is_synced_later: bool) -> Appended:
        """Append those messages whose ids are not known yet. If all are known, return where the first one is."""
        producer, preparation = batch.producer, self._preparation
        with self._entrance.held():
            if producer is not None:
                await preparation.learn_producers()
            while True:
                prepared = await self.prepare(batch)
                await self._wait_to_append(batch.count)
                # Nothing is awaited between this and the append: a batch with the same ids comes before or after both.
                if producer is not None and (offset := preparation.find_repeat(producer)) is not None:
                    return await self._acknowledge_known(offset, producer.message_count)
                known = preparation.look_up(batch)
                if known.fresh is batch:
                    break
                if known.fresh is None:
                    if producer is not None:
                        preparation.remember_producer(producer, known.first_offset)
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
        if is_unsynced and (level is _SYNCED or (level is _BOUNDED and self.commits.has_waiting)):
            await self.sync()
        return Appended(offset, count, self._clock.now())

    async def prepare(self, batch: Batch) -> Batch:
        """See ``Preparation.prepare``."""
        return await self._preparation.prepare(batch)

    async def ready_to_append(self, count: int) -> None:
        """Wait until the next ``append`` can write ``count`` messages without waiting. Raises ``CourserError``.

        For callers that decide at the last moment whether to append.
        """
        if self._must_wait(count):
            with self._entrance.held():
                await self._wait_to_append(count)

    def _must_wait(self, count: int) -> bool:
        """Whether a send of ``count`` messages cannot be written now."""
        return self._hold is not None or self.log.is_appending or self._is_behind or self.log.needs_reservation(count)

    async def _wait_to_append(self, count: int) -> None:
        """Wait until a send can be written. Between the last check and the append, nothing is awaited."""
        # Each of these may start while another one is awaited.
        while self._must_wait(count):
            if self._hold is not None:
                await self._wait_for_writes()
            elif self.log.is_appending:
                await self.wait_for_large_append()
            elif self._is_behind:
                self.log.check_writable()
                before = self.log.closing_count
                await self._queue.do(JobKind.UPKEEP, partial(upkeep.plan_seal, self.log))
                # If no segment could be sealed, waiting does not help.
                self._is_behind = _CLOSING_COUNT_MAX < self.log.closing_count < before
            else:
                self.log.check_writable()
                await self._queue.do(JobKind.UPKEEP, partial(upkeep.plan_reservation, self.log, count))
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
        self._queue.wake(JobKind.UPKEEP)
        self._queue.wake(JobKind.SYNC)

    # --- for the queue of disk jobs ---

    def plan_due(self, kind: JobKind) -> Job | None:
        """Plan the most urgent job of a kind that nobody asked for; None if none is due."""
        if kind is JobKind.SYNC:
            return self.commits.plan_due()
        return upkeep.plan_upkeep(self.log) if kind is JobKind.UPKEEP else None

    def note_defect(self, reason: str) -> None:
        """Acknowledge nothing more: after an unexpected exception, the disk is as uncertain as after a failed sync."""
        self.refuse_writes(reason, is_sync=True)

    def job_ended(self) -> None:
        """Acknowledge what a job has made durable enough; after a failure, say so to all that wait."""
        self.commits.release()
        if self.log.failure is not None:
            self._queue.wake(JobKind.UPKEEP)
            self.readers.announce()
        elif self.readers.waiting:
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
            self._queue.wake(JobKind.UPKEEP)

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
        await self.commits.sync()
        self.log.check_removable()

    def find_room(self) -> None:
        """Repeat the recovery from time to time, if the disk had no room for it."""
        if self.log.lack_of_room is not None:
            self._queue.wake(JobKind.UPKEEP)

    async def trim(self, before_offset: int) -> None:
        """Delete the sealed segments that are entirely below ``before_offset``. The new start is durable on return."""
        await self._queue.do(JobKind.UPKEEP, partial(upkeep.plan_trim, self.log, before_offset))

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
        await self._queue.do(JobKind.UPKEEP, partial(upkeep.plan_purge, self.log, epoch, end_offset))

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
        self.commits.use(settings.durability)

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
            await (self._queue.do(JobKind.UPKEEP, lambda: None) if self._hold is None else self._hold.wait())

    async def wait_for_large_append(self) -> None:
        """Wait until no batch is being appended on another thread."""
        while self.log.is_appending:
            await self._queue.do(JobKind.APPEND, lambda: None)

    async def work(self, work: Callable[[], Found]) -> Found:
        """Read or write temporary files in the pool. A stop waits for it, even if the caller is cancelled."""
        self._check_open()
        return await asyncio.shield(asyncio.ensure_future(self.reader.run(work)))

    async def do_upkeep(self, plan: Callable[[], Job | None]) -> None:
        """Plan an upkeep job, and wait for it."""
        await self._queue.do(JobKind.UPKEEP, plan)

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
            await self._queue.do(JobKind.UPKEEP, partial(upkeep.plan_seal, self.log))

    # --- the end ---

    def refuse_writes(self, reason: str, *, is_sync: bool = False) -> None:
        """Accept no more writes until a restart: waiting sends fail. The first reason is kept."""
        self.log.fail(reason, is_sync=is_sync)
        self.job_ended()

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
        self.commits.close()
        await self._queue.drain()
        self._queue.close()
        await self.reader.close()
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, upkeep.close, self.log)
        finally:
            self.job_ended()
        return self.log.failure is None
