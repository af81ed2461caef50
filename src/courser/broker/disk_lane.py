"""Disk jobs: one at a time, planned and completed on the event loop, run in a pool."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path

from courser.broker.disk_pool import Run, TimedRun, start
from courser.errors import CourserError, StorageFailure
from courser.storage.jobs import Job

Plan = Callable[[], Job | None]
BeginDue = Callable[[Run, Callable[[BaseException | None], None]], bool]


class DiskLane:
    """Runs jobs one after another. Jobs that a caller waits for come before those that are merely due.

    A job is planned when its turn comes, not when it is requested: by then another job may have done its work.
    """

    def __init__(
        self,
        pool: Executor,
        *,
        plan_next: Plan,
        on_done: Callable[[], None],
        retry_delay: float,
        on_time: Callable[[int], None] | None = None,
        monotonic: Callable[[], int] | None = None,
        begin_due: BeginDue | None = None,
    ) -> None:
        """``retry_delay``: seconds before failed work that is still due is retried.

        ``on_time`` is told how many microseconds each job took that did not fail, by the clock ``monotonic``.
        ``begin_due`` may take work that is due, run it elsewhere, and report on the loop how it ended. It returns
        whether it does.
        """
        self._begin_due = begin_due
        self._pool = pool
        self._on_time = on_time
        self._monotonic = monotonic
        self._plan_next = plan_next
        self._on_done = on_done
        self._retry_delay = retry_delay
        self._asked: deque[tuple[Plan, asyncio.Future[None]]] = deque()
        self._is_busy = False
        self._idle: asyncio.Future[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Check for due work after all callbacks that are ready on the loop: one sync then serves many sends."""
        if not self._is_busy:
            self._is_busy = True
            asyncio.get_running_loop().call_soon(self._next)

    async def do(self, plan: Plan) -> None:
        """Run one job and wait for it. Raises its ``StorageFailure``."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append((plan, done))
        self.wake()
        await done

    async def drain(self) -> None:
        """Wait until no job is running or due."""
        self.wake()
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        await self._idle

    def _next(self) -> None:
        while self._asked:
            plan, done = self._asked.popleft()
            try:
                job = plan()
            except CourserError as error:
                _reject(done, error)
                continue
            if job is not None:
                self._start(job, done)
                return
            _resolve(done)
        job = self._plan_next() if self._retry is None else None
        if job is not None:
            self._start(job, None)
            return
        self._is_busy = False
        if self._idle is not None:
            _resolve(self._idle)
            self._idle = None

    def _pause(self) -> None:
        """Delay due work that failed, for example on a full disk: it would fail again at once."""
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(self._retry_delay, self._resume)

    def _resume(self) -> None:
        self._retry = None
        self.wake()

    def close(self) -> None:
        """Do not retry failed work."""
        if self._retry is not None:
            self._retry.cancel()

    def _start(self, job: Job, done: asyncio.Future[None] | None) -> None:
        if self._on_time is not None and self._monotonic is not None:
            job = _timed(job, self._on_time, self._monotonic)
        if done is None and self._begin_due is not None and self._begin_due(job.run, partial(self._finish, job, None)):
            return
        start(self._pool, job.run, partial(self._hand_back, asyncio.get_running_loop(), job, done))

    def _hand_back(
        self,
        loop: asyncio.AbstractEventLoop,
        job: Job,
        done: asyncio.Future[None] | None,
        error: BaseException | None,
    ) -> None:
        """Usually called on a thread of the pool."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, job, done, error)

    def _finish(self, job: Job, done: asyncio.Future[None] | None, error: BaseException | None) -> None:
        try:
            if error is None:
                job.complete()
            else:
                job.fail(_as_failure(job, error))
                if done is None:
                    self._pause()
            self._on_done()
        finally:
            if done is not None:
                _resolve(done) if error is None else _reject(done, error)
            self._next()


def _timed(job: Job, on_time: Callable[[int], None], monotonic: Callable[[], int]) -> Job:
    run = TimedRun(job.run, monotonic)

    def complete() -> None:
        on_time(run.duration)
        job.complete()

    return replace(job, run=run, complete=complete)


def _as_failure(job: Job, error: BaseException) -> StorageFailure:
    """Convert an unexpected exception to a storage failure.

    It is a defect, after which the state of the disk is as uncertain as after a failed sync.
    """
    if isinstance(error, StorageFailure):
        return error
    return StorageFailure("sync", Path(job.name), OSError(repr(error)))


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _reject(future: "asyncio.Future[None]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
