"""Conduct a run: create the topics and fill them if needed, run the phases, and delete the topics."""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle

from courser.api.commands import SendMessages
from courser.bench.actors import ActorReport, Phase, cut, make_pool
from courser.bench.plan import Plan, check_plan, fill_count, tasks_of
from courser.bench.workers import ActorJob, Totals, WorkerFailed, Workers
from courser.client.client import Client, connect
from courser.client.targets import Target
from courser.errors import CourserError, ErrorCode, NotFound, ServerFailure
from courser.model.messaging import ToPartition

_SECOND = 1_000_000_000
_HEAD_START = _SECOND // 10
"""Nanoseconds between the announcement and the start of a phase, so that all processes start together."""
_FILL_REQUEST_COUNT = 8
"""Sends in flight while topics are filled."""
_PATIENCE = 30.0
"""Seconds without progress after which a run is stuck."""
_STEP_MAX = 1.0
"""Maximum number of seconds without progress that count at a time: the machine may have been suspended."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which stream to use, and whether to keep it."""

    stream: str
    reuses: bool = False
    """Whether the stream already exists, perhaps with messages."""
    keeps: bool = False
    """Whether to keep the stream after the run."""
    is_unique: bool = False
    """Whether no one else can have a stream with this name. If not, it is only deleted if this run has created it."""


def own_stream(*, keeps: bool = False) -> Arrangement:
    """A stream with a random name."""
    return Arrangement(f"bench-{secrets.token_hex(4)}", keeps=keeps, is_unique=True)


@dataclass(frozen=True, slots=True)
class RunState:
    """The progress of a run, for display."""

    step: str
    """What the run is doing, in words."""
    seconds: float = 0.0
    """Seconds since the step started."""
    share: float | None = None
    """How much of the step is done, from 0 to 1; None if unknown."""
    totals: Totals = field(default_factory=Totals)


@dataclass(frozen=True, slots=True)
class Moment:
    """How much had been sent and received at a time."""

    seconds: float
    sent: int
    """Messages sent."""
    received: int


@dataclass(slots=True)
class PhaseResult:
    """The result of a phase."""

    reports: list[ActorReport]
    """In the order of the tasks."""
    moments: list[Moment] = field(default_factory=list)
    """About one for each second."""


def _show_nothing(state: RunState) -> None: ...


class Conductor:
    """Carries out one run: topics, phases, and what is left to remove."""

    def __init__(
        self, plan: Plan, target: Target, arrangement: Arrangement, show: Callable[[RunState], None] = _show_nothing
    ) -> None:
        """``show`` is called several times a second with the progress.

        Raises:
            PlanRefused: the plan is inconsistent.
        """
        check_plan(plan)
        self._plan = plan
        # A measurement with an interruption is worthless.
        self._target = replace(target, reconnect=False)
        self._arrangement = arrangement
        self._show = show
        self._stream = arrangement.stream
        self._topics = [f"topic-{number}" for number in range(plan.topics)]
        self._tasks = tasks_of(plan)
        self._is_made = arrangement.is_unique
        """Whether the stream has to be deleted at the end."""

    def run(self) -> PhaseResult:
        """Run it from start to end. Raises ``CourserError``."""
        self._show(RunState("preparing"))
        try:
            asyncio.run(self._prepare())
            outcome = self._measure()
        except BaseException:
            with suppress(CourserError):
                asyncio.run(self._remove())
            raise
        asyncio.run(self._remove())
        return outcome

    # --- topics ---

    async def _prepare(self) -> None:
        async with connect(self._target) as client:
            if self._arrangement.reuses:
                await self._look(client)
                return
            await client.create_stream(self._stream)
            self._is_made = True
            for topic in self._topics:
                durability = "synced" if self._plan.is_synced else None
                await client.create_topic(self._stream, topic, self._plan.partitions, durability=durability)
            if fill_count(self._plan):
                await self._fill(client)

    async def _look(self, client: Client) -> None:
        """Check the existing topics."""
        for name in self._topics:
            found = len((await client.get_topic(self._stream, name)).partitions)
            if found < self._plan.partitions:
                reason = f"topic {self._stream}/{name} has {found} partitions, not {self._plan.partitions}"
                raise ServerFailure(ErrorCode.PARTITION_NOT_FOUND, reason)

    async def _fill(self, client: Client) -> None:
        """Fill the topics for consumers without producers."""
        total = fill_count(self._plan) * self._plan.topics * self._plan.partitions
        stored, begin = 0, time.monotonic()
        requests = self._fill_requests()

        async def work() -> None:
            nonlocal stored
            for request in requests:
                await client.request(request)
                stored += request.batches[0].count
                self._show(RunState("filling", time.monotonic() - begin, stored / total, Totals(stored)))

        await asyncio.gather(*(work() for _ in range(_FILL_REQUEST_COUNT)))

    def _fill_requests(self) -> Iterator[SendMessages]:
        pool = cycle(make_pool(self._plan.message_size, self._plan.batch, random.Random(self._plan.seed)))
        for topic in self._topics:
            for partition_id in range(self._plan.partitions):
                left = fill_count(self._plan)
                while left > 0:
                    batch = cut(next(pool), left)
                    left -= batch.count
                    yield SendMessages(self._stream, topic, ToPartition(partition_id), [batch])

    async def _remove(self) -> None:
        if self._arrangement.keeps or not self._is_made:
            return
        self._show(RunState("removing"))
        async with connect(self._target) as client:
            # The run may have failed because someone else deleted the stream.
            with suppress(NotFound):
                await client.delete_stream(self._stream)

    # --- actors ---

    def _measure(self) -> PhaseResult:
        plan, count = self._plan, max(1, min(self._plan.processes, len(self._tasks)))
        jobs = [
            ActorJob(self._target, plan, self._tasks[first::count], self._stream, self._topics)
            for first in range(count)
        ]
        with Workers(jobs) as workers:
            if plan.warm_up:
                self._phase(workers, "warming up", plan.warm_up, is_counted=False)
            return self._phase(workers, "measuring", plan.seconds, is_counted=True)

    def _phase(self, workers: Workers, step: str, seconds: float | None, *, is_counted: bool) -> PhaseResult:
        workers.prepare()
        begin = time.monotonic_ns() + _HEAD_START
        end = None if seconds is None else begin + int(seconds * _SECOND)
        watch = _Watch(self._plan, workers, step, begin, seconds)
        reports = workers.run(Phase(begin=begin, end=end, is_counted=is_counted), lambda: self._show(watch.look()))
        return PhaseResult(sorted(reports, key=lambda report: self._tasks.index(report.task)), watch.moments)


class _Watch:
    """Knows the progress of a phase, and notices if there is none."""

    def __init__(self, plan: Plan, workers: Workers, step: str, begin: int, seconds: float | None) -> None:
        self._plan = plan
        self._workers = workers
        self._step = step
        self._begin = begin
        self._seconds = seconds
        self._last = Totals()
        self._last_time = time.monotonic()
        self._still = 0.0
        self._patience = _PATIENCE + _request_interval(plan)
        self.moments: list[Moment] = []

    def look(self) -> RunState:
        """Look at the workers. Raises ``WorkerFailed``."""
        totals, now = self._workers.totals(), time.monotonic()
        seconds = max((time.monotonic_ns() - self._begin) / _SECOND, 0.0)
        self._still += min(now - self._last_time, _STEP_MAX)
        self._last_time = now
        if totals != self._last:
            self._last, self._still = totals, 0.0
        if self._still > self._patience:
            raise WorkerFailed(f"the run is stuck: {totals.sent} messages sent, {totals.received} received")
        if seconds > len(self.moments) + 1:
            self.moments.append(Moment(seconds, totals.sent, totals.received))
        return RunState(self._step, seconds, self._share(seconds, totals), totals)

    def _share(self, seconds: float, totals: Totals) -> float | None:
        if self._seconds is not None:
            return min(seconds / self._seconds, 1.0)
        done = totals.sent if self._plan.mode.produces else totals.received
        return min(done / self._plan.messages, 1.0) if self._plan.messages else None


def _request_interval(plan: Plan) -> float:
    """Seconds between two requests of all actors, at most, with a rate."""
    if plan.message_rate is not None:
        return plan.batch.maximum / plan.message_rate
    return 0.0 if plan.rate is None else plan.batch.maximum * plan.message_size.maximum / plan.rate
