"""Threads for what waits for the disk. Like ``ThreadPoolExecutor``, with a way in and out that costs half as much.

Every send at ``synced`` goes to a thread and back, so the way there is part of its price. ``submit`` makes a future
with a lock and a condition in it; ``start`` hands over a function and a callback, and nothing else.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeAlias, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

Run: TypeAlias = Callable[[], object]
Back: TypeAlias = Callable[[BaseException | None], object]


class DiskPool(Executor):
    """So many threads, begun one by one as work arrives. ``shutdown`` lets them finish what was handed over."""

    def __init__(self, thread_count: int, name: str = "disk") -> None:
        self._thread_count = thread_count
        self._name = name
        self._work: SimpleQueue[tuple[Run, Back] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_shut = False

    def start(self, run: Run, back: Back) -> None:
        """Have ``run`` called on a thread, and then ``back`` on the same one, with what ``run`` raised or None."""
        if len(self._threads) < self._thread_count or self._is_shut:
            self._add_thread()
        self._work.put((run, back))

    def submit(
        self, run: Callable[_Parameters, _Result], /, *arguments: _Parameters.args, **options: _Parameters.kwargs
    ) -> Future[_Result]:
        """As every executor does it."""
        future: Future[_Result] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(run(*arguments, **options))

        def back(error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)

        self.start(work, back)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 -- no queue is long
        """Take nothing more; with ``wait``, return when everything is done."""
        with self._lock:
            if not self._is_shut:
                self._is_shut = True
                for _ in self._threads:
                    self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _add_thread(self) -> None:
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the pool was shut down")
            if len(self._threads) < self._thread_count:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()


def _serve(work: "SimpleQueue[tuple[Run, Back] | None]") -> None:
    while (item := work.get()) is not None:
        run, back = item
        try:
            run()
        except BaseException as error:  # noqa: BLE001 -- not ours: whoever handed it over hears of it
            back(error)
        else:
            back(None)
        del item, run, back


def start(pool: Executor, run: Run, back: Back) -> None:
    """``DiskPool.start`` for any executor: ``back`` may then be called at once, on the caller's thread."""
    if isinstance(pool, DiskPool):
        pool.start(run, back)
    else:
        pool.submit(run).add_done_callback(partial(_pass_on, back))


def _pass_on(back: Back, ran: "Future[object]") -> None:
    back(ran.exception())
