"""Conduct a run: create the topics and fill them if needed, run the phases, and delete the topics."""

import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass

from courser.bench.actors import open_wire
from courser.bench.channel import Join, Login, Phase, Settle, WorkerSetup
from courser.bench.crew import WORKER_COMMAND, Crew
from courser.bench.plan import Plan, check_plan, fill_count, reader_counts, tasks_of
from courser.bench.samples import cut_sample, make_pool
from courser.bench.watching import Goal, PhaseResult, RunState, Watch
from courser.bench.wires import TopicName, Wire
from courser.client.targets import Target
from courser.errors import CourserError, ErrorCode, NotFound, ServerFailure

_SECOND = 1_000_000_000
_HEAD_START = _SECOND // 5
"""Nanoseconds between the announcement and the start of a phase, so that all processes start together."""
_TICK = 0.1


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which streams to use, and whether to keep them."""

    prefix: str
    """The streams are named ``prefix-0``, ``prefix-1`` and so on."""
    reuses: bool = False
    """Whether the streams already exist, perhaps with messages."""
    keeps: bool = False
    """Whether to keep the streams after the run."""
    is_unique: bool = False
    """Whether no one else can have streams with these names. If not, only streams that this run has created are
    deleted."""


def own_streams(*, keeps: bool = False) -> Arrangement:
    """Streams with a random name."""
    return Arrangement(f"bench-{secrets.token_hex(4)}", keeps=keeps, is_unique=True)


def _show_nothing(state: RunState) -> None:
    """Show no progress."""


class Conductor:
    """Conducts one run."""

    def __init__(
        self,
        plan: Plan,
        target: Target,
        arrangement: Arrangement,
        show: Callable[[RunState], None] = _show_nothing,
        *,
        worker_command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """``show`` is called several times a second with the progress; ``worker_command`` starts a worker.

        Raises:
            PlanRefused: the plan is inconsistent.
        """
        check_plan(plan)
        self._plan = plan
        self._target = target
        self._arrangement = arrangement
        self._show = show
        self._worker_command = worker_command
        self._streams = [f"{arrangement.prefix}-{number}" for number in range(plan.streams)]
        self._topics = [f"topic-{number}" for number in range(plan.topics)]
        mark = secrets.token_hex(4)
        self._groups = [f"group-{mark}-{number}" for number in range(plan.groups)] if plan.mode.is_grouped else []
        self._tasks = tasks_of(plan)
        self._made = set(self._streams) if arrangement.is_unique else set()
        """Streams to delete at the end."""
        self._stored = 0
        """Messages in all topics when the actors start."""

    def run(self) -> PhaseResult:
        """Run it from start to end. Raises ``CourserError``."""
        self._show(RunState("preparing"))
        with closing(open_wire(self._plan.wire, self._target)) as control:
            try:
                outcome = self._measure(control)
            except BaseException:
                # On another connection, because this one may have been interrupted during a request.
                with suppress(CourserError), closing(open_wire(self._plan.wire, self._target)) as another:
                    self._remove(another)
                raise
            self._remove(control)
            return outcome

    def _measure(self, control: Wire) -> PhaseResult:
        self._prepare(control)
        with Crew(self._jobs(), self._worker_command) as crew:
            crew.wait_until_ready()
            for step in (Join(), Settle()):
                crew.tell(step)
                crew.wait_until_ready()
            if self._plan.warm_up:
                self._phase(crew, "warming up", self._plan.warm_up, is_counted=False)
            return self._phase(crew, "measuring", self._plan.seconds, is_counted=True)

    # --- topics ---

    def _places(self) -> list[TopicName]:
        return [TopicName(stream, topic) for stream in self._streams for topic in self._topics]

    def _prepare(self, control: Wire) -> None:
        if self._arrangement.reuses:
            self._look(control)
        else:
            for stream in self._streams:
                control.create_stream(stream)
                self._made.add(stream)
            for place in self._places():
                control.create_topic(place, self._plan.partitions, is_synced=self._plan.is_synced)
            self._fill(control)
        for place in self._places():
            for group in self._groups:
                control.create_group(place, group)

    def _look(self, control: Wire) -> None:
        """Check the existing topics."""
        for place in self._places():
            partition_count, message_count = control.topic_figures(place)
            if partition_count < self._plan.partitions:
                reason = (
                    f"topic {place.stream}/{place.topic} has {partition_count} partitions, not {self._plan.partitions}"
                )
                raise ServerFailure(ErrorCode.PARTITION_NOT_FOUND, reason)
            self._stored += message_count

    def _fill(self, control: Wire) -> None:
        """Fill the topics for consumers without producers."""
        each = fill_count(self._plan)
        if not each:
            return
        total = each * len(self._places()) * self._plan.partitions
        pool = make_pool(self._plan.message_size, self._plan.batch, random.Random(self._plan.seed), each)
        begin = shown = time.monotonic()
        for place in self._places():
            for partition_id in range(self._plan.partitions):
                requests = [control.make_send(place, partition_id, sample) for sample in pool]
                left, turn = each, 0
                while left > 0:
                    request = requests[turn % len(requests)]
                    if left < request.message_count:
                        request = control.make_send(place, partition_id, cut_sample(pool[turn % len(pool)], left))
                    control.send(request)
                    turn += 1
                    left -= request.message_count
                    self._stored += request.message_count
                    if (now := time.monotonic()) - shown > _TICK:
                        shown = now
                        self._show(RunState("filling", now - begin, self._stored / total, self._stored))

    def _remove(self, control: Wire) -> None:
        if self._arrangement.keeps or self._arrangement.reuses:
            return
        self._show(RunState("removing"))
        for stream in sorted(self._made):
            # The run may have failed because someone else deleted the stream.
            with suppress(NotFound):
                control.delete_stream(stream)

    # --- actors ---

    def _jobs(self) -> list[WorkerSetup]:
        login = Login(asdict(self._target))
        names = self._streams, self._topics, self._groups
        return [
            WorkerSetup(
                login, self._plan, [self._tasks[number] for number in numbers], *names, self._arrangement.reuses
            )
            for numbers in self._task_numbers()
        ]

    def _phase(self, crew: Crew, step: str, seconds: float | None, *, is_counted: bool) -> PhaseResult:
        mode = self._plan.mode
        # Whether consumers can reach an end. Without producers they start again, and groups do so in the warm-up.
        is_finite = mode.consumes and (mode.produces or (mode.is_grouped and is_counted))
        if mode.is_end_to_end and not mode.is_grouped:
            is_finite = False
        # A measurement of fixed duration just ends. Otherwise consumers read everything that was sent.
        drains = is_finite and (seconds is None or not is_counted)
        begin = time.monotonic_ns() + _HEAD_START
        end = None if seconds is None else begin + int(seconds * _SECOND)
        crew.tell(Phase(begin=begin, end=end, is_counted=is_counted, drains=drains))
        watch = Watch(crew, self._task_numbers(), reader_counts(self._tasks) if is_finite else None, self._readable)
        goal = Goal(seconds=seconds, messages=self._plan.messages if is_counted else None)
        return watch.follow(step, begin, goal, self._show)

    @property
    def _readable(self) -> int:
        """How many messages groups must read to reach the end of what was stored before the phase."""
        return self._stored * len(self._groups) if not self._plan.mode.produces else 0

    def _task_numbers(self) -> list[list[int]]:
        """The numbers of each worker's tasks."""
        count = max(1, min(self._plan.processes, len(self._tasks)))
        return [list(range(number, len(self._tasks), count)) for number in range(count)]
