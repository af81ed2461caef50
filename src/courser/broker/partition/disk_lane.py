"""Disk jobs: one at a time, planned and completed on the event loop, run in a pool."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path

from courser.broker.partition.disk_pool import TimedRun, start
from courser.errors import CourserError, StorageFailure
from courser.storage.jobs import Job

_log = logging.getLogger(__name__)

Plan = Callable[[], Job | None]


class DiskLane:
    """Runs jobs one after another. Jobs that a caller waits for come before those that are merely due.

    A job is planned when its turn comes, not when it is requested: by then another job may have done its work.

    Whatever a plan, a run or a completion raises, whoever waits for the job gets it as a failure, and the lane goes on.
    An exception that nobody expects is a defect, after which the disk is as uncertain as after a failed sync.
    """

    def __init__(
        self,
        pool: Executor,
        *,
        plan_next: Plan,
        on_done: Callable[[], None],
        on_defect: Callable[[str], None],
        retry_delay: float,
        on_time: Callable[[int], None] | None = None,
        monotonic: Callable[[], int] | None = None,
    ) -> None:
        """``on_done`` is called after each job. ``retry_delay``: seconds before failed work that is due is retried.

        ``on_defect`` is told of unexpected exceptions of plans and completions. What was begun is not complete then: it
        must see to it that nothing that depends on it is acknowledged.
        ``on_time`` is told how many microseconds each job took that did not fail, by the clock ``monotonic``.
        """
        self._pool = pool
        self._on_time = on_time
        self._monotonic = monotonic
        self._plan_next = plan_next
        self._on_done = on_done
        self._on_defect = on_defect
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
        """Run one job and wait for it. Raises its ``StorageFailure``, or what its plan raises."""
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
            except Exception as error:  # noqa: BLE001 -- a defect: reported, and passed to whoever waits
                _reject(done, self._note_defect("plan", error))
            else:
                if job is not None:
                    self._start(job, done)
                    return
                _resolve(done)
        job = self._plan_due()
        if job is not None:
            self._start(job, None)
            return
        self._is_busy = False
        if self._idle is not None:
            _resolve(self._idle)
            self._idle = None

    def _plan_due(self) -> Job | None:
        if self._retry is not None:
            return None
        try:
            return self._plan_next()
        except Exception as error:  # noqa: BLE001 -- a defect: reported
            self._note_defect("plan", error)
            self._pause()
            return None

    def _note_defect(self, name: str, error: BaseException) -> StorageFailure:
        _log.error("a defect in a disk job job=%s", name, exc_info=error)
        failure = _as_failure(name, error)
        try:
            self._on_defect(str(failure))
        except Exception:  # noqa: BLE001 -- a defect in handling a defect: the lane goes on all the same
            _log.exception("a defect was not handled job=%s", name)
        return failure

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
        loop = asyncio.get_running_loop()
        try:
            start(self._pool, job.run, partial(self._hand_back, loop, job, done))
        except Exception as error:  # noqa: BLE001 -- passed on: there are no threads any more, for example
            loop.call_soon(self._finish, job, done, error)

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
        failure = self._end(job, error)
        try:
            self._on_done()
        except Exception as defect:  # noqa: BLE001 -- reported, and passed to whoever waits
            failure = self._note_defect(job.name, defect)
        if done is None:
            if failure is not None:
                self._pause()
        elif failure is None:
            _resolve(done)
        else:
            # What ends the process is no failure that a caller may survive.
            is_end = error is not None and not isinstance(error, Exception)
            _reject(done, error if error is not None and is_end else failure)
        self._next()

    def _end(self, job: Job, error: BaseException | None) -> StorageFailure | None:
        """Complete or fail a job. Returns why it is not complete."""
        failure = None if error is None else _as_failure(job.name, error)
        if failure is not error:
            _log.error("a defect in a disk job job=%s", job.name, exc_info=error)
        try:
            if failure is None:
                job.complete()
            else:
                job.fail(failure)
        except Exception as defect:  # noqa: BLE001 -- reported, and passed to whoever waits
            return self._note_defect(job.name, defect)
        return failure


def _timed(job: Job, on_time: Callable[[int], None], monotonic: Callable[[], int]) -> Job:
    run = TimedRun(job.run, monotonic)

    def complete() -> None:
        on_time(run.duration)
        job.complete()

    return replace(job, run=run, complete=complete)


def _as_failure(name: str, error: BaseException) -> StorageFailure:
    """Convert an unexpected exception to a storage failure."""
    if isinstance(error, StorageFailure):
        return error
    failure = StorageFailure("sync", Path(name), OSError(repr(error)))
    failure.__cause__ = error
    return failure


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _reject(future: "asyncio.Future[None]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
