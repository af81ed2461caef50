"""The event loop is watched: how long ready work waits for it, and who blocks it."""

import asyncio
import gc
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from courser.model import metric_table as m
from courser.model.metrics import Registry
from courser.server.blame import Blame, BlameKind, WatchedLoop, blame, commands_by_code
from courser.server.garbage import CollectionWatch
from courser.server.loop_watch import LoopReport, LoopWatch, Stall
from courser.storage.watched_clock import SystemClock
from tests.broker.open_partitions import until
from tests.fakes.clocks import ManualClock

SENDER = Blame(BlameKind.COMMAND, "SendMessages", "here")


class ObservedWatch(LoopWatch):
    """Says when it has looked at a loop that is late, and how often the loop answered."""

    def __init__(self, registry: Registry) -> None:
        clock = SystemClock()
        self.registry = registry
        super().__init__(LoopReport(registry, clock), CollectionWatch(registry, clock))
        self.has_looked = threading.Event()
        self.answer_count = 0

    def _look(self, watched: WatchedLoop) -> Blame | None:
        found = super()._look(watched)
        self.has_looked.set()
        return found

    def _reply(self) -> None:
        self.answer_count += 1
        super()._reply()

    def block(self) -> None:
        """Keep the loop busy until somebody has looked."""
        assert self.has_looked.wait(30)

    @property
    def blocks(self) -> dict[tuple[str, str], float]:
        return {
            (labels["kind"], labels["name"]): sample.value
            for sample in self.registry.samples(m.LOOP_BLOCKS)
            if (labels := dict(sample.labels)) and isinstance(sample.value, int | float)
        }


@asynccontextmanager
async def watching() -> AsyncIterator[ObservedWatch]:
    watch = ObservedWatch(Registry())
    task = asyncio.ensure_future(watch.run())
    yield watch
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def blocked_by_a_callback() -> None:
    async with watching() as watch:
        asyncio.get_running_loop().call_soon(watch.block)
        await until(lambda: bool(watch.blocks))
        # If the machine was so busy that the loop did not even get a processor, that is what is reported.
        assert set(watch.blocks) <= {("callback", "test_loop_watch.block"), ("processor", ""), ("unknown", "")}
        assert watch.registry.value(m.LOOP_DELAY) > 0


async def blocked_by_a_task() -> None:
    async with watching() as watch:

        async def work() -> None:
            watch.block()

        task = asyncio.get_running_loop().create_task(work(), name="a chore")
        await task
        await until(lambda: bool(watch.blocks))
        assert set(watch.blocks) <= {("task", "a chore"), ("processor", ""), ("unknown", "")}


async def idle() -> None:
    watched, done = WatchedLoop.here(), threading.Event()
    looks: list[bool] = []

    def look() -> None:
        while not done.is_set() and not any(looks):
            frame = watched.frame()
            looks.append(frame is not None and watched.is_idle(frame))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        await until(lambda: any(looks))
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("scene", [blocked_by_a_callback, blocked_by_a_task, idle])
def test_what_the_loop_does_is_seen(
    scene: Callable[[], Coroutine[Any, Any, None]], make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(scene())


async def test_the_handler_of_a_command_is_found_below_its_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("courser.server.blame._PACKAGE", f"{Path(__file__).parent}{os.sep}")

    def handler() -> Blame | None:
        return helper()

    def helper() -> Blame | None:
        return blame(watched, sys._getframe(), {handler.__code__: "SendMessages"})

    found: list[Blame | None] = []
    watched = WatchedLoop.here()
    loop = watched.loop
    loop.call_soon(lambda: found.append(handler()))
    loop.call_soon(lambda: found.append(helper()))
    await until(lambda: len(found) == 2)
    command, callback = found
    assert command is not None
    assert callback is not None
    assert (command.kind, command.name) == (BlameKind.COMMAND, "SendMessages")
    assert command.place.startswith("test_loop_watch.helper:")
    assert (callback.kind, callback.name) == (BlameKind.CALLBACK, "test_loop_watch.<lambda>")


def test_every_command_is_known_by_its_handler() -> None:
    names = commands_by_code().values()
    assert {"SendMessages", "PollMessages", "GetStats"} <= set(names)
    assert len(set(names)) == len(names)


def test_the_one_seen_most_often_is_to_blame() -> None:
    other = Blame(BlameKind.TASK, "cleaner")
    seen = Counter({other: 3, SENDER: 2, Blame(BlameKind.COMMAND, "SendMessages", "elsewhere"): 2})
    assert Stall(100_000, 0, 0, seen).verdict() == SENDER
    assert Stall(100_000, 50_000, 0, seen).verdict().kind is BlameKind.COLLECTION
    assert Stall(100_000, 0, 50_000, seen).verdict().kind is BlameKind.PROCESSOR
    assert Stall(100_000, 0, 0).verdict().kind is BlameKind.UNKNOWN


def test_all_blocks_are_counted_and_few_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry, clock = Registry(), ManualClock()
    report = LoopReport(registry, clock)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            report.note(Stall(30_000, 0, 0, Counter({SENDER: 1})))
        clock.advance(60_000_000)
        report.note(Stall(900_000, 0, 0, Counter({SENDER: 1})))
    assert registry.value(m.LOOP_BLOCKS, kind="command", name="SendMessages") == 6
    assert registry.value(m.LOOP_BLOCKED_SECONDS, kind="command", name="SendMessages") == pytest.approx(1.05)
    first, second = caplog.records
    assert "duration=30ms by=command name=SendMessages place=here" in first.getMessage()
    assert (second.levelname, second.getMessage().split()[-1]) == ("WARNING", "unlogged=4")


def test_collections_are_timed() -> None:
    registry = Registry()
    with CollectionWatch(registry, SystemClock()) as watch:
        gc.collect()
    count = registry.value(m.COLLECTION_PAUSE)
    assert count >= 1
    assert watch.total > 0
    gc.collect()
    assert registry.value(m.COLLECTION_PAUSE) == count
