"""Group commit: the syncs of one partition, and the sends that wait for them."""

import asyncio
from dataclasses import replace

from courser.broker.partition.disk_pool import TimedRun
from courser.broker.partition.disk_queue import DiskQueue, JobKind
from courser.broker.partition.partition_metrics import PartitionMetrics
from courser.errors import PartitionReadOnly
from courser.model.clock import Clock
from courser.model.durability import DurabilityPolicy
from courser.storage.acknowledgements import Acknowledgements
from courser.storage.jobs import Job
from courser.storage.partition_log import PartitionLog
from courser.storage.upkeep import plan_sync, plan_writeback

_PAUSE = 100_000
"""Microseconds between two writes that nobody waits for: hints to write back, and syncs for a recovery point. More of
them would only slow down a burst of sends. The price: a start after a kill reads what was sent during the pause."""


class GroupCommit:
    """Says when a send may be acknowledged, and when the partition is synced.

    All sends that are written when a sync begins share it, and while one of them waits or a bound is near, the next
    sync begins as soon as the last one has ended.
    """

    def __init__(self, log: PartitionLog, queue: DiskQueue, clock: Clock, metrics: PartitionMetrics) -> None:
        self._log = log
        self._queue = queue
        self._clock = clock
        self._metrics = metrics
        self._acknowledgements: Acknowledgements[asyncio.Future[None]] = Acknowledgements(log.settings.durability)
        self._next_write = clock.monotonic() + _PAUSE
        """When the next write that nobody waits for may begin, on the monotonic clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.sync_count = 0
        self.append_count = self._sync_append_count = 0
        """Batches appended since the partition was opened, which its owner counts; and how many the last sync that
        began covers."""

    # --- sends ---

    def is_within_bounds(self) -> bool:
        """At `bounded`, count the last write and start a sync that is due. Whether it may be acknowledged now."""
        marks, now, acknowledgements = self._log.marks, self._clock.monotonic(), self._acknowledgements
        if acknowledgements.is_free(marks.written, now):
            return True
        if not acknowledgements.admits(marks.written, marks.synced, now):
            return False
        self.wake_if_due(now)
        return True

    def wait(self) -> asyncio.Future[None]:
        """What the last write has to wait for: done when it may be acknowledged."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acknowledgements.wait(self._log.marks.written, waiter)
        self._queue.wake(JobKind.SYNC)
        return waiter

    def write_began(self, time: int) -> None:
        """See ``Acknowledgements.write_began``."""
        self._acknowledgements.write_began(time)

    @property
    def has_waiting(self) -> bool:
        """Whether a send waits to be acknowledged."""
        return len(self._acknowledgements) > 0

    def release(self) -> None:
        """Acknowledge the sends that are durable enough. After a failure, fail all that wait."""
        log, acknowledgements = self._log, self._acknowledgements
        if log.failure is not None:
            for waiter in acknowledgements.drain():
                if not waiter.done():
                    waiter.set_exception(PartitionReadOnly(log.directory, log.failure))
            return
        for waiter in acknowledgements.releasable(log.marks.synced, self._clock.monotonic()):
            if not waiter.done():
                waiter.set_result(None)

    def use(self, policy: DurabilityPolicy) -> None:
        """Another policy holds from now on. Nothing is unsynced, and nobody waits."""
        self._acknowledgements.use(policy)
        self._stop_timer()
        # If the sync before has failed, perhaps nothing else starts the next one.
        self._queue.wake(JobKind.SYNC)

    # --- syncs ---

    async def sync(self) -> None:
        """Make everything that was written before this call durable. Raises ``StorageFailure``."""
        await self._queue.do(JobKind.SYNC, self._plan_sync)

    def plan_due(self) -> Job | None:
        """The sync or the hint to write back that is due now."""
        now = self._clock.monotonic()
        if self._is_sync_due(now):
            return self._plan_sync()
        # Data that was written during the last sync has its own due time, and perhaps nothing follows it.
        self._set_timer(now)
        job = plan_writeback(self._log) if now >= self._next_write else None
        if job is not None:
            self._next_write = now + _PAUSE
        return job

    def _plan_sync(self) -> Job | None:
        log = self._log
        job = plan_sync(log)
        if job is None:
            return None
        self._acknowledgements.sync_began(log.marks.written)
        self._next_write = self._clock.monotonic() + _PAUSE
        self.sync_count += 1
        self._metrics.appends_per_sync.observe(self.append_count - self._sync_append_count)
        self._sync_append_count = self.append_count
        run, complete = TimedRun(job.run, self._clock), job.complete

        def note_and_complete() -> None:
            self._metrics.note_sync(log.directory, run.duration)
            complete()

        return replace(job, run=run, complete=note_and_complete)

    def wake_if_due(self, now: int) -> None:
        """Begin a sync that is due, or set a timer for the next one."""
        if self._is_sync_due(now):
            self._queue.wake(JobKind.SYNC)
        else:
            self._set_timer(now)

    @property
    def needs_recovery_point(self) -> bool:
        """Whether so much is unsynced that a start after a kill would take long."""
        marks = self._log.marks
        return marks.written.size - marks.synced.size >= self._log.settings.recovery_point_size

    def _is_sync_due(self, now: int) -> bool:
        if self.needs_recovery_point and now >= self._next_write:
            return True
        marks = self._log.marks
        return self._acknowledgements.is_sync_due(marks.synced, marks.written, now)

    def _sync_due_at(self) -> int | None:
        """When the next sync is due if nothing more is written."""
        marks = self._log.marks
        due = self._acknowledgements.sync_due_at(marks.synced) if marks.synced.offset < marks.written.offset else None
        if self.needs_recovery_point:
            due = min(due or self._next_write, self._next_write)
        return due

    def _set_timer(self, now: int) -> None:
        """Set a timer for the next due sync."""
        if self._timer is None and not self._is_closing and (due := self._sync_due_at()) is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due - now, 0) / 1_000_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake_if_due(self._clock.monotonic())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Set no timer any more: whoever closes the partition syncs it."""
        self._is_closing = True
        self._stop_timer()
