"""Follows a phase: how far it is, when consumers have read everything, and when nothing moves any more."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from courser.bench.channel import ActorReport, Done, Stop, WorkerFailed, WorkerProgress
from courser.bench.crew import Crew

_SECOND = 1_000_000_000
_PATIENCE = 30.0
"""Seconds in which nothing moves before the run is given up."""
_STEP_MAX = 1.0
"""Seconds between two reports that count."""


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is, for whoever shows it."""

    step: str
    """What is being done, in words."""
    seconds: float = 0.0
    """Since this step began."""
    share: float | None = None
    """Of this step, 0 to 1; None if that cannot be told."""
    sent: int = 0
    """Messages."""
    sent_size: int = 0
    received: int = 0
    received_size: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """What had been sent and received at a time."""

    seconds: float
    sent: int
    """Messages."""
    received: int


@dataclass(slots=True)
class PhaseResult:
    """What a phase gives."""

    reports: list[ActorReport]
    moments: list[Moment] = field(default_factory=list)
    """About one for each second."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a phase is to reach."""

    seconds: float | None = None
    messages: int | None = None
    """To be sent or, without producers, received."""

    def share(self, seconds: float, sent: int, received: int) -> float | None:
        """How much of it is done."""
        if self.seconds is not None:
            return min(seconds / self.seconds, 1.0)
        return min((sent or received) / self.messages, 1.0) if self.messages else None


class Stillness:
    """How long nothing has moved. A machine that slept meanwhile, and all processes with it, is not blamed for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._seconds = 0.0

    def end(self) -> None:
        """Something moved."""
        self._seconds = 0.0

    def seconds(self) -> float:
        """Asked whenever somebody reports, which is several times a second."""
        now = self._clock()
        self._seconds += min(now - self._last, _STEP_MAX)
        self._last = now
        return self._seconds


class Watch:
    """Over one phase."""

    def __init__(self, crew: Crew, tasks: list[list[int]], reader_counts: list[int] | None, readable: int) -> None:
        """Prepare it.

        Args:
            crew: Who works.
            tasks: The numbers of the tasks of each worker.
            reader_counts: How often the messages of each task are read; None if nobody knows when all is read.
            readable: Messages to read that were there before.
        """
        self._crew = crew
        self._tasks = tasks
        self._reader_counts = reader_counts
        self._readable = readable
        self._progress: dict[int, WorkerProgress] = {}
        self._done: dict[int, Done] = {}

    def follow(self, step: str, begin: int, goal: Goal, show: Callable[[RunState], None]) -> PhaseResult:
        """Until all are done. Raises ``CourserError``."""
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
        """In the order of the tasks."""
        found: dict[int, ActorReport] = {}
        for number, done in self._done.items():
            found.update(zip(self._tasks[number], done.reports, strict=True))
        return [found[task] for task in sorted(found)]
