"""Watches the event loop from a thread of its own: how long ready work waits for it, and who is to blame.

The thread asks the loop for an answer now and then. If none comes in time, it looks at the stack of the loop's thread
until it does. Requests pay nothing for this, and an idle loop is rarely woken.
"""

import asyncio
import logging
import os
import threading
from collections import Counter
from dataclasses import dataclass, field

from courser.model import metric_table as m
from courser.model.clock import Clock
from courser.model.metrics import Registry
from courser.server.blame import Blame, BlameKind, WatchedLoop, blame, commands_by_code
from courser.server.garbage import CollectionWatch

_log = logging.getLogger(__name__)

BLOCK_LIMIT = 20_000
"""Microseconds: whoever keeps the loop from answering for so long is named."""
_INTERVAL = 0.02
"""Seconds between two looks at a busy loop: a block of twice the limit is never missed."""
_IDLE_INTERVAL = 0.1
"""Seconds between two looks at a loop that was idle at the last ``_IDLE_COUNT`` looks."""
_IDLE_COUNT = 50
_IDLE_QUESTION_INTERVAL = 250_000
"""Microseconds after which even a loop that looks idle has to answer: it may be busy in compiled code."""
_IDLE_COUNT_MIN = 20
"""Looks in a row at which the loop has to be idle to be called so."""
_SAMPLE_INTERVAL = 0.005
"""Seconds between two looks at the stack of a blocked loop, at first."""
_SAMPLE_COUNT_MAX = 100
"""Looks at the stack of a blocked loop, after which they become rare."""
_RARE_SAMPLE_INTERVAL = 0.25
_NAME_COUNT_MAX = 200
"""Time series of those who blocked the loop."""
_LINE_INTERVAL = 10_000_000
"""Microseconds in which at most one line is logged."""
_WARNING_LIMIT = 250_000
"""Microseconds from which the line is a warning."""
_SECOND = 1_000_000


@dataclass(slots=True)
class Stall:
    """The loop did not answer in time."""

    duration: int
    """Microseconds from the question to the answer."""
    collected: int
    """How many of them a garbage collection took."""
    queued: int
    """How many of them the thread of the loop was ready, but the machine ran something else."""
    seen: Counter[Blame] = field(default_factory=Counter)
    """Who was at work, and at how many looks."""

    def verdict(self) -> Blame:
        """The one to blame."""
        if 2 * self.collected >= self.duration:
            return Blame(BlameKind.COLLECTION)
        if 2 * self.queued >= self.duration:
            return Blame(BlameKind.PROCESSOR)
        if not self.seen:
            return Blame(BlameKind.UNKNOWN)
        # By kind and name: the place changes from look to look.
        counts: Counter[tuple[BlameKind, str]] = Counter()
        for one, count in self.seen.items():
            counts[one.kind, one.name] += count
        ((worst, _),) = counts.most_common(1)
        return next(one for one, _ in self.seen.most_common() if (one.kind, one.name) == worst)


class LoopReport:
    """What the watch has found: metrics, and a line in the log now and then."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self.delays = registry.histogram(m.LOOP_DELAY)
        """Only the watching thread adds to it."""
        self._counts = registry.counters(m.LOOP_BLOCKS, count_max=_NAME_COUNT_MAX)
        self._seconds = registry.counters(m.LOOP_BLOCKED_SECONDS, count_max=_NAME_COUNT_MAX)
        self.clock = clock
        self._next_line = 0
        self._unlogged_count = 0

    def note(self, block: Stall) -> None:
        """Count one, and log it unless another one was logged a moment ago. Called on the loop."""
        verdict = block.verdict()
        self._counts.of(verdict.kind.value, verdict.name).value += 1
        self._seconds.of(verdict.kind.value, verdict.name).value += block.duration / _SECOND
        now = self.clock.monotonic()
        if now < self._next_line:
            self._unlogged_count += 1
            return
        self._next_line = now + _LINE_INTERVAL
        _log.log(
            logging.WARNING if block.duration >= _WARNING_LIMIT else logging.INFO,
            "the event loop was blocked: duration=%dms by=%s name=%s place=%s unlogged=%d",
            block.duration // 1000,
            verdict.kind.value,
            verdict.name or "-",
            verdict.place or "-",
            self._unlogged_count,
        )
        self._unlogged_count = 0


class Scheduling:
    """How long a thread was ready but did not run, according to the kernel."""

    def __init__(self, native_id: int) -> None:
        try:
            self._descriptor = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # A kernel without these statistics.
            self._descriptor = -1

    def queued(self) -> int:
        """Microseconds so far; always 0 if the kernel does not tell."""
        if self._descriptor < 0:
            return 0
        _, waited, _ = os.pread(self._descriptor, 100, 0).split()
        return int(waited) // 1000

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LoopWatch:
    """One for each event loop. ``run`` on the loop starts the thread, and ends it when it is cancelled."""

    def __init__(self, report: LoopReport, collections: CollectionWatch) -> None:
        self._report = report
        self._clock = report.clock
        self._collections = collections
        self._commands = commands_by_code()
        self._answer = threading.Event()
        self._idle_count = 0
        """Looks in a row at which the loop was idle."""
        self._answered_at = 0

    @property
    def is_idle(self) -> bool:
        """Whether the loop has had nothing to do for a while."""
        return self._idle_count >= _IDLE_COUNT_MIN

    async def run(self) -> None:
        """Watch the running loop and the garbage collections until cancelled."""
        with self._collections:
            await self._run()

    async def _run(self) -> None:
        watched, is_over = WatchedLoop.here(), threading.Event()
        loop, scheduling = watched.loop, Scheduling(threading.get_native_id())
        failed: asyncio.Future[None] = loop.create_future()

        def watch() -> None:
            try:
                self._watch(watched, is_over, scheduling)
            except Exception as error:  # noqa: BLE001 -- whoever keeps the task logs it
                if not loop.is_closed():
                    loop.call_soon_threadsafe(failed.set_exception, error)
            finally:
                scheduling.close()

        threading.Thread(target=watch, name="loop watch", daemon=True).start()
        try:
            await failed
        finally:
            is_over.set()
            self._answer.set()

    def _watch(self, watched: WatchedLoop, is_over: threading.Event, scheduling: Scheduling) -> None:
        self._idle_count = 0
        next_question = 0
        while not is_over.wait(_INTERVAL if self._idle_count < _IDLE_COUNT else _IDLE_INTERVAL):
            frame = watched.frame()
            is_idle = frame is not None and watched.is_idle(frame)
            del frame
            self._idle_count = self._idle_count + 1 if is_idle else 0
            now = self._clock.monotonic()
            if is_idle and now < next_question:
                self._report.delays.observe(0.0)
                continue
            next_question = now + _IDLE_QUESTION_INTERVAL
            if not self._ask(watched, is_over, scheduling):
                return

    def _look(self, watched: WatchedLoop) -> Blame | None:
        frame = watched.frame()
        return None if frame is None else blame(watched, frame, self._commands)

    def _ask(self, watched: WatchedLoop, is_over: threading.Event, scheduling: Scheduling) -> bool:
        """Ask the loop for an answer, and find out who is to blame if it is late. False: the watch is over."""
        asked, collected, queued = self._clock.monotonic(), self._collections.total, scheduling.queued()
        self._answer.clear()
        try:
            watched.loop.call_soon_threadsafe(self._reply)
        except RuntimeError:
            # The loop was closed.
            return False
        seen: Counter[Blame] = Counter()
        pause = BLOCK_LIMIT / _SECOND
        while not self._answer.wait(pause):
            if is_over.is_set():
                return False
            if (one := self._look(watched)) is not None:
                seen[one] += 1
            pause = _SAMPLE_INTERVAL if seen.total() < _SAMPLE_COUNT_MAX else _RARE_SAMPLE_INTERVAL
        if is_over.is_set():
            return False
        duration = max(self._answered_at - asked, 0)
        self._report.delays.observe(duration / _SECOND)
        if duration >= BLOCK_LIMIT:
            block = Stall(duration, self._collections.total - collected, scheduling.queued() - queued, seen)
            watched.loop.call_soon_threadsafe(self._report.note, block)
        return True

    def _reply(self) -> None:
        self._answered_at = self._clock.monotonic()
        self._answer.set()
