"""The disk jobs of one partition: planned and completed on the event loop, run in a pool."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from courser.broker.partition.disk_pool import start
from courser.errors import CourserError, StorageFailure
from courser.storage.jobs import Job

_log = logging.getLogger(__name__)

Plan: TypeAlias = Callable[[], Job | None]
_Done: TypeAlias = asyncio.Future[None]


class JobKind(IntEnum):
    """What a job is for."""

    APPEND = 0
    """Writes a large batch."""
    SYNC = 1
    """Makes what was written durable, or asks the kernel to begin with it."""
    UPKEEP = 2
    """Changes the ledger, or adds, replaces and removes files."""


class JobOwner(Protocol):
    """Whoever a queue works for."""

    def plan_due(self, kind: JobKind) -> Job | None:
        """Plan the most urgent job of a kind that nobody asked for; None if none is due."""

    def job_ended(self) -> None:
        """Look at what a job has done. Called after each, complete or not."""

    def note_defect(self, reason: str) -> None:
        """A plan or a completion raised an unexpected exception: what was begun is not complete.

        Nothing that depends on it may be acknowledged.
        """


@dataclass(slots=True, eq=False)
class _Line:
    """The jobs of one kind that wait for their turn."""

    kind: JobKind
    asked: deque[tuple[Plan, _Done]] = field(default_factory=deque)
    is_busy: bool = False
    """Whether a job runs, or will be looked for in this turn of the event loop."""
    idle: _Done | None = None
    retry: asyncio.TimerHandle | None = None


class DiskQueue:
    """Runs the jobs of a partition: those of one kind one after another, those of different kinds at the same time.

    Nothing else may run at the same time, and this much has to: a sync, which acknowledges sends, must not wait for
    upkeep, which may sync or copy a whole segment; and a large write, for which all other sends wait, must not wait
    for either. Jobs that a caller waits for come before those that are merely due.

    A job is planned when its turn comes, not when it is requested: by then another job may have done its work.

    Whatever a plan, a run or a completion raises, whoever waits for the job gets it as a failure, and the queue goes
    on. An exception that nobody expects is a defect, after which the disk is as uncertain as after a failed sync.
    """

    def __init__(self, pool: Executor, owner: JobOwner, *, retry_delay: float) -> None:
        """``retry_delay``: seconds before failed work that is due is retried."""
        self._pool = pool
        self._owner = owner
        self._retry_delay = retry_delay
        self._lines = [_Line(kind) for kind in JobKind]

    def wake(self, kind: JobKind) -> None:
        """Check for due work after all callbacks that are ready on the loop: one sync then serves many sends."""
        line = self._lines[kind]
        if not line.is_busy:
            line.is_busy = True
            asyncio.get_running_loop().call_soon(self._next, line)

    async def do(self, kind: JobKind, plan: Plan) -> None:
        """Run one job and wait for it. Raises its ``StorageFailure``, or what its plan raises."""
        done: _Done = asyncio.get_running_loop().create_future()
        self._lines[kind].asked.append((plan, done))
        self.wake(kind)
        await done

    async def drain(self, *kinds: JobKind) -> None:
        """Wait until no job of these kinds, or of any, is running or due."""
        for kind in kinds or JobKind:
            self.wake(kind)
            line = self._lines[kind]
            if line.idle is None:
                line.idle = asyncio.get_running_loop().create_future()
            await line.idle

    def close(self) -> None:
        """Do not retry failed work."""
        for line in self._lines:
            if line.retry is not None:
                line.retry.cancel()

    # --- planning ---

    def _next(self, line: _Line) -> None:
        while line.asked:
            plan, done = line.asked.popleft()
            try:
                job = plan()
            except CourserError as error:
                _reject(done, error)
            except Exception as error:  # noqa: BLE001 -- a defect: reported, and passed to whoever waits
                _reject(done, self._note_defect("plan", error))
            else:
                if job is not None:
                    self._start(line, job, done)
                    return
                _resolve(done)
        job = self._plan_due(line)
        if job is not None:
            self._start(line, job, None)
            return
        line.is_busy = False
        if line.idle is not None:
            _resolve(line.idle)
            line.idle = None

    def _plan_due(self, line: _Line) -> Job | None:
        if line.retry is not None:
            return None
        try:
            return self._owner.plan_due(line.kind)
        except Exception as error:  # noqa: BLE001 -- a defect: reported
            self._note_defect("plan", error)
            self._pause(line)
            return None

    def _pause(self, line: _Line) -> None:
        """Delay due work that failed, for example on a full disk: it would fail again at once."""
        if line.retry is None:
            line.retry = asyncio.get_running_loop().call_later(self._retry_delay, self._resume, line)

    def _resume(self, line: _Line) -> None:
        line.retry = None
        if not line.is_busy:
            line.is_busy = True
            self._next(line)

    # --- running ---

    def _start(self, line: _Line, job: Job, done: _Done | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            start(self._pool, job.run, partial(self._hand_back, loop, line, job, done))
        except Exception as error:  # noqa: BLE001 -- passed on: there are no threads any more, for example
            loop.call_soon(self._finish, line, job, done, error)

    def _hand_back(
        self, loop: asyncio.AbstractEventLoop, line: _Line, job: Job, done: _Done | None, error: BaseException | None
    ) -> None:
        """Usually called on a thread of the pool."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, line, job, done, error)

    def _finish(self, line: _Line, job: Job, done: _Done | None, error: BaseException | None) -> None:
        failure = self._end(job, error)
        try:
            self._owner.job_ended()
        except Exception as defect:  # noqa: BLE001 -- reported, and passed to whoever waits
            failure = self._note_defect(job.name, defect)
        if done is None:
            if failure is not None:
                self._pause(line)
        elif failure is None:
            _resolve(done)
        else:
            # What ends the process is no failure that a caller may survive.
            is_end = error is not None and not isinstance(error, Exception)
            _reject(done, error if error is not None and is_end else failure)
        self._next(line)

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

    def _note_defect(self, name: str, error: BaseException) -> StorageFailure:
        _log.error("a defect in a disk job job=%s", name, exc_info=error)
        failure = _as_failure(name, error)
        try:
            self._owner.note_defect(str(failure))
        except Exception:  # noqa: BLE001 -- a defect in handling a defect: the queue goes on all the same
            _log.exception("a defect was not handled job=%s", name)
        return failure


def _as_failure(name: str, error: BaseException) -> StorageFailure:
    """Convert an unexpected exception to a storage failure."""
    if isinstance(error, StorageFailure):
        return error
    failure = StorageFailure("sync", Path(name), OSError(repr(error)))
    failure.__cause__ = error
    return failure


def _resolve(future: _Done) -> None:
    if not future.done():
        future.set_result(None)


def _reject(future: _Done, error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
