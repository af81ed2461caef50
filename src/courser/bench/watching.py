"""Watch a phase: its progress, whether consumers have read everything, and whether it is stuck."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from courser.bench.channel import ActorReport, Done, Stop, WorkerFailed, WorkerProgress
from courser.bench.crew import Crew

_SECOND = 1_000_000_000
_PATIENCE = 30.0
"""Seconds without progress after which the run is aborted."""
_STEP_MAX = 1.0
"""Maximum number of seconds that count between two reports."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The progress of a run, for display."""

    step: str
    """What the run is doing, in words."""
    seconds: float = 0.0
    """Seconds since the step started."""
    share: float | None = None
    """How much of the step is done, from 0 to 1; None if unknown."""
    sent: int = 0
    """Messages sent."""
    sent_size: int = 0
    received: int = 0
    received_size: int = 0


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
    moments: list[Moment] = field(default_factory=list)
    """About one for each second."""


@dataclass(frozen=True, slots=True)
class Goal:
    """When a phase ends."""

    seconds: float | None = None
    messages: int | None = None
    """How many messages to send or, without producers, to receive."""

    def share(self, seconds: float, sent: int, received: int) -> float | None:
        """How much of the phase is done, from 0 to 1; None if unknown."""
        if self.seconds is not None:
            return min(seconds / self.seconds, 1.0)
        return min((sent or received) / self.messages, 1.0) if self.messages else None


class Stillness:
    """Measures the time without progress. Time during which the machine was suspended does not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._seconds = 0.0

    def end(self) -> None:
        """Note progress."""
        self._seconds = 0.0

    def seconds(self) -> float:
        """Seconds without progress. Called on every report of a worker, several times a second."""
        now = self._clock()
        self._seconds += min(now - self._last, _STEP_MAX)
        self._last = now
        return self._seconds


class Watch:
    """Watches one phase."""

    def __init__(self, crew: Crew, tasks: list[list[int]], reader_counts: list[int] | None, readable: int) -> None:
        """Prepare to watch.

        Args:
            crew: The workers.
            tasks: The numbers of each worker's tasks.
            reader_counts: How often the messages of each task are read; None if consumers reach no end.
            readable: Messages to read that were stored before the phase.
        """
        self._crew = crew
        self._tasks = tasks
        self._reader_counts = reader_counts
        self._readable = readable
        self._progress: dict[int, WorkerProgress] = {}
        self._done: dict[int, Done] = {}

    def follow(self, step: str, begin: int, goal: Goal, show: Callable[[RunState], None]) -> PhaseResult:
        """Watch until all workers are done. Raises ``CourserError``."""
        moments: list[Moment] = []
        is_stopped = False
        last, stillness = (0, 0), Stillness()
        for number, message in self._crew.events(_PATIENCE):
            if isinstance(message, Done):
                self._done[number] = message
                if len(self._done) == len(self._tasks):
                    return PhaseResult(self._reports(), moments)
            elif isinstance(message, WorkerProgress):
                self._progress[number] = message
                if not is_stopped and self._has_read_everything():
                    self._crew.tell(Stop())
                    is_stopped = True
                state = self._state(step, begin, goal)
                if state.seconds > len(moments) + 1:
                    moments.append(Moment(state.seconds, state.sent, state.received))
                show(state)
                if (state.sent, state.received) != last:
                    last = (state.sent, state.received)
                    stillness.end()
            if stillness.seconds() > (goal.seconds or 0) + _PATIENCE:
                break
        sent, received = last
        raise WorkerFailed(f"the run is stuck: {sent} messages sent, {received} received")

    def _has_read_everything(self) -> bool:
        if self._reader_counts is None or len(self._progress) < len(self._tasks):
            return False
        if any(progress.are_producing for progress in self._progress.values()):
            return False
        expected = self._readable
        for number, progress in self._progress.items():
            for task, sent in zip(self._tasks[number], progress.sent, strict=True):
                expected += sent * self._reader_counts[task]
        return sum(progress.received for progress in self._progress.values()) >= expected

    def _state(self, step: str, begin: int, goal: Goal) -> RunState:
        seconds = max((time.monotonic_ns() - begin) / _SECOND, 0.0)
        sent = sum(sum(progress.sent) for progress in self._progress.values())
        received = sum(progress.received for progress in self._progress.values())
        return RunState(
            step,
            seconds,
            goal.share(seconds, sent, received),
            sent,
            sum(progress.sent_size for progress in self._progress.values()),
            received,
            sum(progress.received_size for progress in self._progress.values()),
        )

    def _reports(self) -> list[ActorReport]:
        """The reports in the order of the tasks."""
        found: dict[int, ActorReport] = {}
        for number, done in self._done.items():
            found.update(zip(self._tasks[number], done.reports, strict=True))
        return [found[task] for task in sorted(found)]
