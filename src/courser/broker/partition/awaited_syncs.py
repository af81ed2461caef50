"""Syncs that clients wait for: one by one, or all of a crowd with one call, whichever takes less time here.

A single file is synced in the time of the disk. Sixteen files at a time need sixteen threads, and the processor has to
switch between them: on a fast disk that takes longer than the disk does. One call for all of them needs one thread,
but it also writes what others have written, and on a busy machine many threads get a larger share of the processor. So
both ways are measured as they are used, and now and then the slower one is tried again.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from courser.broker.partition.disk_pool import Run, TimedRun, start
from courser.broker.partition.whole_syncs import WholeSyncs, sync_together
from courser.model.clock import Clock

Finish: TypeAlias = Callable[[BaseException | None], None]

_UNWRITTEN_SIZE_MAX = 16 * 1024 * 1024
"""Bytes that wait to be written on this machine. Above, a sync of the whole file system would take too long."""
_LOOK_INTERVAL = 10_000
"""Microseconds between two looks at how much that is."""
_TRIAL_PERIOD = 64
"""The slower way is taken once in so many times, to learn whether it still is the slower one ..."""
_RARE_TRIAL_PERIOD = 1024
"""... and once in so many times if it took more than twice as long."""
_WEIGHT = 0.125
"""Of the newest measurement in an average."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One sync: its run, what to call on the loop when it is done, and when it was handed in."""

    run: Run
    finish: Finish
    began: int


class _Average:
    """The time that a sync takes one way, newer ones counting more."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time: float | None = None

    def note(self, time: float) -> None:
        self.time = time if self.time is None else self.time + (time - self.time) * _WEIGHT


class AwaitedSyncs:
    """For all partitions on one file system. Used on the event loop."""

    def __init__(self, whole: WholeSyncs, pool: Executor, clock: Clock, crowd_count: int) -> None:
        """From ``crowd_count`` syncs on that are under way at a time, one call for all of them is considered."""
        self._whole = whole
        self._pool = pool
        self._clock = clock
        self._crowd_count = crowd_count
        self._is_crowded = False
        """Whether syncs are collected for one turn of the loop. A single client does not pay for that turn."""
        self._collected: list[_Item] = []
        self._alone_count = 0
        """Syncs under way, one by one."""
        self._is_whole_running = False
        self._alone, self._together = _Average(), _Average()
        self._choice_count = 0
        self._next_look = 0
        self._is_much_unwritten = False

    def start(self, run: Run, finish: Finish) -> None:
        """Sync in the pool, and then call ``finish`` on this loop with the exception of ``run`` or None."""
        item = _Item(run, finish, self._clock.monotonic())
        if not self._is_crowded:
            self._start_alone(item)
            self._is_crowded = self._alone_count >= self._crowd_count and not self._whole.has_failed
            return
        if not self._collected and not self._is_whole_running:
            asyncio.get_running_loop().call_soon(self._start_collected)
        self._collected.append(item)

    def _start_collected(self) -> None:
        if self._is_whole_running:
            # They are too late for it. The next one begins when it is done.
            return
        items, self._collected = self._collected, []
        self._is_crowded = 2 * (len(items) + self._alone_count) >= self._crowd_count
        if len(items) > 1 and self._is_whole_better():
            self._is_whole_running = True
            self._run(partial(self._sync_all, items), partial(self._finish_all, items))
            return
        for item in items:
            self._start_alone(item)

    def _is_whole_better(self) -> bool:
        """Whether to take one call for all, judging by what both ways took until now."""
        if self._whole.has_failed or self._is_too_much():
            return False
        alone, together = self._alone.time, self._together.time
        if alone is None or together is None:
            return together is None
        self._choice_count += 1
        low, high = sorted((alone, together))
        is_trial = self._choice_count % (_TRIAL_PERIOD if high <= 2 * low else _RARE_TRIAL_PERIOD) == 0
        return (together <= alone) != is_trial

    def _is_too_much(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_INTERVAL
            size = self._whole.unwritten_size()
            self._is_much_unwritten = size is None or size > _UNWRITTEN_SIZE_MAX
        return self._is_much_unwritten

    def _start_alone(self, item: _Item) -> None:
        self._alone_count += 1
        self._run(item.run, partial(self._finish_alone, item))

    def _finish_alone(self, item: _Item, error: BaseException | None) -> None:
        self._alone_count -= 1
        if self._is_crowded:
            self._alone.note(self._clock.monotonic() - item.began)
        item.finish(error)

    def _sync_all(self, items: list[_Item]) -> None:
        """In the pool."""
        began = self._clock.monotonic()
        failures = sync_together(self._whole, [item.run for item in items])
        duration = self._clock.monotonic() - began
        for item in items:
            if isinstance(item.run, TimedRun):
                item.run.duration = duration
        if any(failures):
            raise _Failures(failures)

    def _finish_all(self, items: list[_Item], error: BaseException | None) -> None:
        self._is_whole_running = False
        now = self._clock.monotonic()
        self._together.note(sum(now - item.began for item in items) / len(items))
        if self._collected:
            asyncio.get_running_loop().call_soon(self._start_collected)
        failures = error.failures if isinstance(error, _Failures) else [error] * len(items)
        for item, failure in zip(items, failures, strict=True):
            item.finish(failure)

    def _run(self, run: Run, finish: Finish) -> None:
        loop = asyncio.get_running_loop()
        try:
            start(self._pool, run, partial(_hand_back, loop, finish))
        except Exception as error:  # noqa: BLE001 -- passed on: there are no threads any more, for example
            loop.call_soon(finish, error)


class _Failures(Exception):
    """Some of the syncs of a crowd have failed."""

    def __init__(self, failures: list[BaseException | None]) -> None:
        super().__init__(failures)
        self.failures = failures


def _hand_back(loop: asyncio.AbstractEventLoop, finish: Finish, error: BaseException | None) -> None:
    """Usually called on a thread of the pool."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(finish, error)
