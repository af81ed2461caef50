"""The processes of a run: each has an event loop and some of the actors, and does what the conductor asks for.

The interpreter of a single process would be the bottleneck of many connections. What actors have done so far is counted
in memory that all processes share, so that the conductor can show progress.
"""

import asyncio
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import RawArray
from types import TracebackType
from typing import Self, TypeAlias

import msgspec
import uvloop

from courser.bench.actors import Actor, ActorReport, Phase, RunProgress
from courser.bench.plan import ActorTask, Plan
from courser.client.client import connect
from courser.client.targets import Target
from courser.errors import CourserError

_PATIENCE = 30.0
"""Seconds that a process may take to end, in case the machine is overloaded."""
_TICK = 0.1
_spawn = multiprocessing.get_context("spawn")

Counters: TypeAlias = "ctypes.Array[ctypes.c_uint64]"


class ActorJob(msgspec.Struct, frozen=True):
    """What the actors of one process do, and where."""

    target: Target
    plan: Plan
    tasks: list[ActorTask]
    stream: str
    topics: list[str]


class WorkerFailed(CourserError):
    """A process of the load generator has failed."""


class Totals(msgspec.Struct, frozen=True):
    """What all actors have done in a phase so far."""

    sent: int = 0
    """Messages sent."""
    sent_size: int = 0
    received: int = 0
    received_size: int = 0


# --- in a worker ------------------------------------------------------------------------------------------


def _work(connection: Connection, job: ActorJob, counters: Counters) -> None:
    """The main function of a process: connect the actors, and answer the conductor until it has no more requests."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(connection, job, RunProgress(counters)))
        except CourserError as error:
            connection.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "the conductor started this process"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


async def _serve(connection: Connection, job: ActorJob, progress: RunProgress) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        actors = []
        for task in job.tasks:
            client = await stack.enter_async_context(connect(job.target))
            actors.append(Actor(client, job.stream, job.topics[task.topic], task, job.plan))
        while (phase := await loop.run_in_executor(None, connection.recv)) is not False:
            if phase is None:
                progress.clear()
                await asyncio.gather(*(actor.prepare() for actor in actors))
                connection.send([])
            else:
                connection.send(await asyncio.gather(*(actor.run(phase, progress) for actor in actors)))


# --- in the conductor -------------------------------------------------------------------------------------


class Workers:
    """All processes, as a context manager that ends them."""

    def __init__(self, jobs: Sequence[ActorJob]) -> None:
        self._jobs = jobs
        self._counters: list[Counters] = [RawArray(ctypes.c_uint64, 4) for _ in jobs]
        self._connections: list[Connection] = []
        self._processes: list[SpawnProcess] = []

    def __enter__(self) -> Self:
        try:
            with _interrupts_blocked():
                for job, counters in zip(self._jobs, self._counters, strict=True):
                    ours, theirs = _spawn.Pipe()
                    process = _spawn.Process(target=_work, args=(theirs, job, counters), daemon=True)
                    self._connections.append(ours)
                    process.start()
                    self._processes.append(process)
                    # Only the process has it now, so that its end can be noticed.
                    theirs.close()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for connection in self._connections:
                connection.send(False)
            for process in self._processes:
                process.join(_PATIENCE)
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()

    def prepare(self) -> None:
        """Let all actors get ready for a phase. Raises ``CourserError``."""
        self._ask(None, lambda: None)

    def run(self, phase: Phase, tick: Callable[[], None]) -> list[ActorReport]:
        """Run a phase; ``tick`` is called several times a second. Raises ``CourserError``."""
        return [report for answer in self._ask(phase, tick) for report in answer]

    def totals(self) -> Totals:
        """What all actors have done since the last ``prepare``."""
        return Totals(*map(sum, zip(*self._counters, strict=True)))

    def _ask(self, phase: Phase | None, tick: Callable[[], None]) -> list[list[ActorReport]]:
        for connection in self._connections:
            connection.send(phase)
        answers: dict[int, list[ActorReport]] = {}
        while len(answers) < len(self._connections):
            waiting = [one for number, one in enumerate(self._connections) if number not in answers]
            for ready in multiprocessing.connection.wait(waiting, _TICK):
                number = next(number for number, one in enumerate(self._connections) if one is ready)
                answers[number] = self._answer(number)
            tick()
        return [answers[number] for number in sorted(answers)]

    def _answer(self, number: int) -> list[ActorReport]:
        try:
            answer = self._connections[number].recv()
        except EOFError:
            self._processes[number].join(_PATIENCE)
            raise WorkerFailed(f"a worker exited with status {self._processes[number].exitcode}") from None
        if isinstance(answer, CourserError):
            raise answer
        reports: list[ActorReport] = answer
        return reports


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started in this block do not get Ctrl-C: the conductor ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
