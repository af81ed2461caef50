"""What a run does: the modes, their settings, and the task of each actor. No I/O."""

import random
from dataclasses import dataclass
from enum import Enum

import msgspec

from courser.errors import ClientFailure, ErrorCode
from courser.model.quantities import parse_byte_size
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE
from courser.wire.vsr_headers import FRAME_SIZE_MAX

_REQUEST_OVERHEAD = 4096
"""More than the bytes of a request before its batch."""


class PlanRefused(ClientFailure):
    """The settings contradict each other."""

    code = ErrorCode.CONFIGURATION_REFUSED


@dataclass(frozen=True, slots=True)
class Spread:
    """A number that is fixed, or random between ``minimum`` and ``maximum``, both included."""

    minimum: int
    maximum: int

    @property
    def is_fixed(self) -> bool:
        """Whether minimum and maximum are equal."""
        return self.minimum == self.maximum

    @property
    def mean(self) -> float:
        return (self.minimum + self.maximum) / 2

    def pick(self, source: random.Random) -> int:
        """Pick a number. All are equally likely."""
        return self.minimum if self.is_fixed else source.randint(self.minimum, self.maximum)

    def __str__(self) -> str:
        return f"{self.minimum}" if self.is_fixed else f"{self.minimum}..{self.maximum}"


def parse_spread(text: str) -> Spread:
    """Parse ``1000``, ``1 KB``, ``200..1800`` or ``1 KB..64 KiB``.

    Raises:
        ValueError: the text is something else. The message says what was expected.
    """
    first, dots, second = text.partition("..")
    minimum = parse_byte_size(first)
    maximum = parse_byte_size(second) if dots else minimum
    if not 1 <= minimum <= maximum:
        raise ValueError(f'a range of at least 1 with the smaller bound first, such as "200..1800", not "{text[:60]}"')
    return Spread(minimum, maximum)


class Mode(Enum):
    """What the actors do."""

    SEND = "send"
    POLL = "poll"
    BOTH = "both"
    END_TO_END = "end-to-end"

    @property
    def produces(self) -> bool:
        """Whether messages are sent."""
        return self is not Mode.POLL

    @property
    def consumes(self) -> bool:
        """Whether messages are read."""
        return self is not Mode.SEND


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run."""

    mode: Mode
    producers: int = 1
    """The number of producers; end to end, of actors that send and read."""
    consumers: int = 1
    topics: int = 1
    partitions: int = 1
    """Partitions per topic."""
    message_size: Spread = Spread(1000, 1000)
    """Bytes of payload."""
    batch: Spread = Spread(1000, 1000)
    """Messages per request."""
    messages: int | None = None
    """The total number of messages. Exactly one of this and ``seconds`` is set."""
    seconds: float | None = None
    rate: float | None = None
    """Bytes of payload per second, of all actors together."""
    message_rate: float | None = None
    """Messages per second, of all actors together."""
    warm_up: float = 0.0
    """Duration of the warm-up in seconds."""
    fill_size: int = 256_000_000
    """Bytes that are stored for consumers without producers, which read them repeatedly."""
    is_synced: bool = False
    processes: int = 1
    seed: int = 7


class Role(Enum):
    """What an actor does."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    ECHO = "echo"
    """Sends a batch, reads it back, and then sends the next."""


class ActorTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one actor does, and where."""

    number: int
    """The actor's number within its role."""
    role: Role
    topic: int
    partition_id: int
    quota: int | None = None
    """How many messages to send or, for a consumer, to read."""
    share: float = 1.0
    """The actor's share of the rate."""

    @property
    def place(self) -> tuple[int, int]:
        return self.topic, self.partition_id


def check_plan(plan: Plan) -> None:
    """Check that the plan can be carried out.

    Raises:
        PlanRefused: it cannot. The message says what to change.
    """
    if (plan.messages is None) == (plan.seconds is None):
        raise PlanRefused("a run needs either a number of messages or a duration")
    largest = plan.batch.maximum * (plan.message_size.maximum + FRAME_HEADER_SIZE) + BATCH_HEADER_SIZE
    if largest + _REQUEST_OVERHEAD > FRAME_SIZE_MAX:
        raise PlanRefused(
            f"{plan.batch.maximum} messages of {plan.message_size.maximum} bytes exceed the maximum size of a request "
            f"({FRAME_SIZE_MAX} bytes)"
        )
    if plan.rate is not None and plan.message_rate is not None:
        raise PlanRefused("a rate is either in bytes or in messages, not both")
    partition_count = plan.topics * plan.partitions
    if plan.mode is Mode.END_TO_END and plan.producers > partition_count:
        raise PlanRefused(f"{plan.producers} actors need a partition each, but there are only {partition_count}")
    if plan.mode is Mode.BOTH and min(plan.consumers, partition_count) > plan.producers:
        raise PlanRefused(
            f"{plan.producers} producers send to {plan.producers} of {partition_count} partitions, "
            f"but {plan.consumers} consumers read {min(plan.consumers, partition_count)}"
        )


def tasks_of(plan: Plan) -> list[ActorTask]:
    if plan.mode is Mode.END_TO_END:
        return _tasks(plan, Role.ECHO, plan.producers)
    producers = _tasks(plan, Role.PRODUCER, plan.producers) if plan.mode.produces else []
    consumers = _tasks(plan, Role.CONSUMER, plan.consumers) if plan.mode.consumes else []
    if producers and plan.messages is not None:
        # A consumer is done when it has read what is sent to its partition.
        consumers = [
            msgspec.structs.replace(task, quota=sum(one.quota or 0 for one in producers if one.place == task.place))
            for task in consumers
        ]
    return producers + consumers


def _tasks(plan: Plan, role: Role, count: int) -> list[ActorTask]:
    return [
        ActorTask(
            number=number,
            role=role,
            topic=number % plan.topics,
            partition_id=number // plan.topics % plan.partitions,
            quota=None if plan.messages is None else plan.messages // count + (number < plan.messages % count),
            share=1 / count,
        )
        for number in range(count)
    ]


def fill_count(plan: Plan) -> int:
    """Messages that each partition is filled with before consumers without producers begin; 0 if there are others."""
    if plan.mode.produces:
        return 0
    wanted = int(plan.fill_size / plan.message_size.mean)
    if plan.messages is not None:
        wanted = min(wanted, plan.messages)
    return max(-(-wanted // (plan.topics * plan.partitions)), 1)
