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
    """So many threads, all begun at once: to begin one costs as much as five sends. ``shutdown`` lets them finish."""

    def __init__(self, thread_count: int, name: str = "disk") -> None:
        self._work: SimpleQueue[tuple[Run, Back] | None] = SimpleQueue()
        self._is_shut = False
        self._threads = [
            threading.Thread(target=_serve, args=(self._work,), name=f"{name}_{number}", daemon=True)
            for number in range(thread_count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, run: Run, back: Back) -> None:
        """Have ``run`` called on a thread, and then ``back`` on the same one, with what ``run`` raised or None."""
        if self._is_shut:
            raise RuntimeError("the pool was shut down")
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
        if not self._is_shut:
            self._is_shut = True
            for _ in self._threads:
                self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


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
