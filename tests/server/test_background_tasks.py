"""Background tasks: never lost in silence."""

import asyncio
import logging

import pytest

from courser.server.background import BackgroundTasks
from tests.fakes.clocks import ManualClock


class Pauses:
    """Pauses that take no time, noted; the last one lasts for ever."""

    def __init__(self, count: int) -> None:
        self.lengths: list[float] = []
        self._count = count
        self.are_over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.lengths.append(seconds)
        if len(self.lengths) == self._count:
            self.are_over.set()
            await asyncio.Event().wait()


async def crash() -> None:
    raise RuntimeError("a defect")


async def test_what_crashes_is_logged_and_begun_again_after_longer_and_longer_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses = Pauses(8)
    tasks = BackgroundTasks(ManualClock(), pause=pauses)
    tasks.keep("cleaner", crash)
    await pauses.are_over.wait()
    await tasks.stop()
    assert pauses.lengths == [1, 2, 4, 8, 16, 32, 60, 60]
    assert tasks.crash_count == 8
    assert all("task=cleaner" in record.message and record.exc_info for record in caplog.records)
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


async def test_a_crash_long_ago_is_forgotten() -> None:
    clock, pauses = ManualClock(), Pauses(3)
    tasks = BackgroundTasks(clock, pause=pauses)

    async def work() -> None:
        if len(pauses.lengths) == 2:
            clock.advance(301_000_000)
        raise RuntimeError("a defect")

    tasks.keep("cleaner", work)
    await pauses.are_over.wait()
    await tasks.stop()
    assert pauses.lengths == [1, 2, 1]


async def test_what_ends_by_itself_is_an_error_too(caplog: pytest.LogCaptureFixture) -> None:
    pauses = Pauses(1)

    async def work() -> None:
        return

    tasks = BackgroundTasks(ManualClock(), pause=pauses)
    tasks.keep("cleaner", work)
    await pauses.are_over.wait()
    await tasks.stop()
    assert "ended unexpectedly" in caplog.text


async def test_at_intervals_and_a_crash_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    pauses = Pauses(4)
    runs: list[int] = []

    async def action() -> None:
        runs.append(len(pauses.lengths))
        if len(runs) == 2:
            raise RuntimeError("a defect")

    tasks = BackgroundTasks(ManualClock(), pause=pauses)
    tasks.every(5_000_000, "cleaner", action)
    await pauses.are_over.wait()
    await tasks.stop()
    assert pauses.lengths == [5, 5, 1, 5]
    assert len(runs) == 2
    assert "a defect" in caplog.text


async def test_a_stop_ends_everything_and_waits_for_it() -> None:
    tasks = BackgroundTasks(ManualClock())
    ended: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    tasks.keep("cleaner", work)
    await begun.wait()
    await tasks.stop()
    assert ended == ["work"]
