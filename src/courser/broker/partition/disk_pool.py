"""Threads for disk work. Like ``ThreadPoolExecutor``, but handing work over costs half as much.

Every send at level ``synced`` goes to a thread and back, so this cost is part of each send. ``submit`` creates a future
with a lock and a condition; ``start`` hands over only a function and a callback.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import ParamSpec, TypeAlias, TypeVar

from courser.model.clock import Clock

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

Run: TypeAlias = Callable[[], object]
Back: TypeAlias = Callable[[BaseException | None], object]
Item: TypeAlias = tuple[Run, Back]


class TimedRun:
    """Work that measures how long it takes, on the pool's thread: how long it waited for the thread does not count."""

    __slots__ = ("_monotonic", "_run", "duration")

    def __init__(self, run: Run, clock: Clock) -> None:
        self._run = run
        self._monotonic = clock.monotonic
        self.duration = 0
        """Microseconds."""

    def __call__(self) -> None:
        began = self._monotonic()
        self._run()
        self.duration = self._monotonic() - began


class _Worker:
    """One thread and its next item."""

    __slots__ = ("item", "thread", "wake")

    def __init__(self) -> None:
        self.item: Item | None = None
        self.wake = threading.Lock()
        """Released when there is an item, or when the thread has to end because there is none."""
        self.wake.acquire()
        self.thread: threading.Thread


class DiskPool(Executor):
    """A fixed number of threads, all started at once: starting one costs as much as five sends.

    ``shutdown`` lets them finish. The thread that was busy last gets the next work: its data is still in the CPU cache.
    """

    def __init__(self, thread_count: int, name: str = "disk") -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._backlog: deque[Item] = deque()
        """Work for which no thread was idle."""
        self._is_shut = False
        self._workers = [_Worker() for _ in range(thread_count)]
        for number, worker in enumerate(self._workers):
            worker.thread = threading.Thread(target=self._serve, args=(worker,), name=f"{name}_{number}", daemon=True)
            worker.thread.start()

    def start(self, run: Run, back: Back) -> None:
        """Call ``run`` on a thread, and then ``back`` on the same thread with the exception of ``run`` or None."""
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the pool was shut down")
            if not self._idle:
                self._backlog.append((run, back))
                return
            worker = self._idle.pop()
        worker.item = (run, back)
        worker.wake.release()

    def submit(
        self, run: Callable[_Parameters, _Result], /, *arguments: _Parameters.args, **options: _Parameters.kwargs
    ) -> Future[_Result]:
        """Run it on a thread, as every executor does."""
        future: Future[_Result] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(run(*arguments, **options))

        def back(error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)

        self.start(work, back)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 -- the queue is short
        """Accept no more work; with ``wait``, return when everything is done."""
        with self._lock:
            self._is_shut = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.wake.release()
        if wait:
            for worker in self._workers:
                worker.thread.join()

    def _serve(self, worker: _Worker) -> None:
        while (item := self._next(worker)) is not None:
            run, back = item
            try:
                run()
            except BaseException as error:  # noqa: BLE001 -- passed to the callback
                back(error)
            else:
                back(None)
            del item, run, back

    def _next(self, worker: _Worker) -> Item | None:
        with self._lock:
            if self._backlog:
                return self._backlog.popleft()
            if self._is_shut:
                return None
            self._idle.append(worker)
        worker.wake.acquire()
        item, worker.item = worker.item, None
        return item


def start(pool: Executor, run: Run, back: Back) -> None:
    """``DiskPool.start`` for any executor. ``back`` may be called at once, on the caller's thread."""
    if isinstance(pool, DiskPool):
        pool.start(run, back)
    else:
        pool.submit(run).add_done_callback(partial(_pass_on, back))


def _pass_on(back: Back, ran: "Future[object]") -> None:
    back(ran.exception())
