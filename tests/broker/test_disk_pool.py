"""The pool: what is handed over is done once, on a thread, and whoever asked hears of it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from courser.broker.partition.disk_pool import DiskPool, start

TIMEOUT = 60

every_pool = pytest.mark.parametrize("make", [DiskPool, ThreadPoolExecutor])


def outcome_of(pool: Executor, run: Callable[[], object]) -> BaseException | None:
    heard: Future[BaseException | None] = Future()
    start(pool, run, heard.set_result)
    return heard.result(TIMEOUT)


@every_pool
def test_the_callback_hears_how_it_went(make: Callable[[int], Executor]) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    with make(2) as pool:
        assert outcome_of(pool, lambda: "done") is None
        error = outcome_of(pool, fail)
        assert isinstance(error, OSError)
        # A failure takes no thread with it.
        assert outcome_of(pool, lambda: None) is None


@every_pool
def test_work_runs_elsewhere_and_on_so_many_threads_at_once(make: Callable[[int], Executor]) -> None:
    together = threading.Barrier(3)
    with make(3) as pool:
        futures = [pool.submit(lambda: (together.wait(TIMEOUT), threading.get_ident())[1]) for _ in range(3)]
        assert len({future.result(TIMEOUT) for future in futures} | {threading.get_ident()}) == 4


async def test_it_serves_an_event_loop_as_any_executor() -> None:
    loop = asyncio.get_running_loop()
    with DiskPool(2) as pool:
        assert await loop.run_in_executor(pool, sum, (1, 2, 3)) == 6
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(pool, lambda: 1 // 0)


def test_a_future_that_was_cancelled_is_not_run() -> None:
    gate, ran = threading.Event(), threading.Event()
    with DiskPool(1) as pool:
        pool.submit(gate.wait, TIMEOUT)
        cancelled = pool.submit(ran.set)
        assert cancelled.cancel()
        gate.set()
    assert not ran.is_set()


def test_shutdown_finishes_what_was_handed_over_and_takes_nothing_more() -> None:
    done: list[int] = []
    pool = DiskPool(1)
    for number in range(20):
        pool.start(lambda number=number: done.append(number), lambda _: None)  # type: ignore[misc]
    pool.shutdown()
    assert done == list(range(20))
    with pytest.raises(RuntimeError, match="shut down"):
        pool.start(lambda: None, lambda _: None)
    pool.shutdown()


def test_no_thread_begins_while_something_waits_for_it() -> None:
    before = threading.active_count()
    with DiskPool(4) as pool:
        assert threading.active_count() == before + 4
        assert outcome_of(pool, lambda: None) is None
        assert threading.active_count() == before + 4
    assert threading.active_count() == before
