"""What a run does: the modes, their settings, and the task of each actor. No I/O."""

import random
from collections import Counter
from dataclasses import dataclass
from enum import Enum

import msgspec

from courser.errors import ClientFailure, ErrorCode
from courser.model.quantities import parse_byte_size

FRAME_SIZE_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of a request that servers accept."""
_MESSAGE_OVERHEAD = 64 + 16
"""Maximum overhead of a message in bytes: header and index entry of the 0.8 protocol."""
_FRAME_OVERHEAD = 4096


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
        """The expected value."""
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
    """What the actors do. Modes that iggy-bench has too have its names."""

    PINNED_PRODUCER = "pinned-producer"
    PINNED_CONSUMER = "pinned-consumer"
    PINNED_PRODUCER_AND_CONSUMER = "pinned-producer-and-consumer"
    BALANCED_PRODUCER = "balanced-producer"
    BALANCED_CONSUMER = "balanced-consumer"
    BALANCED_PRODUCER_AND_CONSUMER = "balanced-producer-and-consumer"
    BALANCED_CONSUMER_GROUP = "balanced-consumer-group"
    BALANCED_PRODUCER_AND_CONSUMER_GROUP = "balanced-producer-and-consumer-group"
    END_TO_END_PRODUCING_CONSUMER = "end-to-end-producing-consumer"
    END_TO_END_PRODUCING_CONSUMER_GROUP = "end-to-end-producing-consumer-group"

    @property
    def is_end_to_end(self) -> bool:
        """Whether each actor alternates between sending and polling."""
        return self.value.startswith("end-to-end")

    @property
    def produces(self) -> bool:
        """Whether messages are sent."""
        return "produc" in self.value

    @property
    def consumes(self) -> bool:
        """Whether messages are read."""
        return "consumer" in self.value

    @property
    def is_grouped(self) -> bool:
        """Whether consumers are members of groups."""
        return self.value.endswith("-group")

    @property
    def is_balanced(self) -> bool:
        """Whether the server chooses the partition of a send."""
        return self.value.startswith("balanced") or (self.is_end_to_end and self.is_grouped)


class WireName(Enum):
    """The protocol to use."""

    VSR = "0.9"
    CLASSIC = "0.8"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run."""

    mode: Mode
    wire: WireName = WireName.VSR
    producers: int = 1
    """The number of producers; in end-to-end modes, of producing consumers."""
    consumers: int = 1
    streams: int = 1
    topics: int = 1
    """Topics per stream."""
    partitions: int = 1
    """Partitions per topic."""
    groups: int = 1
    """Groups per topic."""
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
    PRODUCING_CONSUMER = "producing consumer"


class ActorTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one actor does, and where."""

    number: int
    """The actor's number within its role."""
    role: Role
    stream: int
    topic: int
    partition_id: int | None = None
    """The partition to send to; None to let the server choose."""
    partition_ids: tuple[int, ...] = ()
    """The partitions to read, unless a group assigns them."""
    group: int | None = None
    quota: int | None = None
    """How many messages to send or, without producers, to read."""
    share: float = 1.0
    """The actor's share of the rate."""

    @property
    def place(self) -> tuple[int, int]:
        """Stream and topic."""
        return self.stream, self.topic


def check_plan(plan: Plan) -> None:
    """Check that the plan can be carried out.

    Raises:
        PlanRefused: it cannot. The message says what to change.
    """
    if (plan.messages is None) == (plan.seconds is None):
        raise PlanRefused("a run needs either a number of messages or a duration")
    largest = plan.batch.maximum * (plan.message_size.maximum + _MESSAGE_OVERHEAD) + _FRAME_OVERHEAD
    if largest > FRAME_SIZE_MAX:
        raise PlanRefused(
            f"{plan.batch.maximum} messages of {plan.message_size.maximum} bytes exceed the maximum size of a request "
            f"({FRAME_SIZE_MAX} bytes)"
        )
    if plan.rate is not None and plan.message_rate is not None:
        raise PlanRefused("a rate is either in bytes or in messages, not both")
    if plan.is_synced and plan.wire is WireName.CLASSIC:
        raise PlanRefused("the 0.8 protocol cannot set a durability; use the 0.9 protocol")
    _check_places(plan)


def _check_places(plan: Plan) -> None:
    mode, place_count = plan.mode, plan.streams * plan.topics
    if mode is Mode.END_TO_END_PRODUCING_CONSUMER:
        if plan.producers > place_count * plan.partitions:
            raise PlanRefused(
                f"{plan.producers} actors need a partition each, but there are only {place_count * plan.partitions}"
            )
        return
    readers = plan.producers if mode.is_end_to_end else plan.consumers
    if mode.is_balanced and mode.consumes:
        members = -(-readers // (place_count * (plan.groups if mode.is_grouped else 1)))
        if members > plan.partitions:
            raise PlanRefused(f"{members} consumers cannot share {plan.partitions} partitions: some would read nothing")
    if mode.is_grouped and readers < place_count * plan.groups:
        raise PlanRefused(f"{readers} consumers leave some of {place_count * plan.groups} groups without a member")
    if mode.produces and mode.consumes:
        fed = {_feed(task) for task in tasks_of(plan) if task.role is not Role.CONSUMER}
        idle = [task for task in tasks_of(plan) if task.role is Role.CONSUMER and not _feeds(task) & fed]
        if idle:
            raise PlanRefused(
                f"no producer sends to where consumer {idle[0].number} reads: {plan.producers} producers do not cover "
                f"{place_count} topics with {plan.partitions} partitions each"
            )


Feed = tuple[tuple[int, int], int | None]
"""A partition of a topic, or, with None, all its partitions."""


def _feed(task: ActorTask) -> Feed:
    """Where a producer sends to."""
    return task.place, task.partition_id


def _feeds(task: ActorTask) -> set[Feed]:
    """Where a consumer reads from."""
    return {(task.place, None)} | {(task.place, partition_id) for partition_id in task.partition_ids}


def reader_counts(tasks: list[ActorTask]) -> list[int]:
    """How often the messages of each task are read; 0 if it sends none."""
    pinned = Counter(
        (task.place, partition_id)
        for task in tasks
        if task.role is Role.CONSUMER and task.group is None
        for partition_id in task.partition_ids
    )
    groups = Counter(place for place, _ in {(task.place, task.group) for task in tasks if task.group is not None})
    found = []
    for task in tasks:
        if task.role is Role.CONSUMER:
            found.append(0)
        elif task.partition_id is not None:
            found.append(1 if task.role is Role.PRODUCING_CONSUMER else pinned[task.place, task.partition_id])
        elif groups:
            found.append(groups[task.place])
        else:
            # Consumers without a group share the partitions, so each message is read once if the topic is read.
            found.append(int(any(place == task.place for place, _ in pinned)))
    return found


def tasks_of(plan: Plan) -> list[ActorTask]:
    """The tasks of all actors."""
    if plan.mode.is_end_to_end:
        return [_producing_consumer(plan, number) for number in range(plan.producers)]
    tasks = []
    if plan.mode.produces:
        tasks += [_producer(plan, number) for number in range(plan.producers)]
    if plan.mode.consumes:
        tasks += [_consumer(plan, number) for number in range(plan.consumers)]
    return tasks


def _place(plan: Plan, number: int) -> tuple[int, int]:
    """The topic of an actor: the first topic of each stream in turn, then the second, and so on."""
    place = number % (plan.streams * plan.topics)
    return place % plan.streams, place // plan.streams


def _pinned_partition(plan: Plan, number: int) -> int:
    return number // (plan.streams * plan.topics) % plan.partitions


def _quota(total: int | None, number: int, count: int) -> int | None:
    return None if total is None else total // count + (number < total % count)


def _producer(plan: Plan, number: int) -> ActorTask:
    stream, topic = _place(plan, number)
    return ActorTask(
        number=number,
        role=Role.PRODUCER,
        stream=stream,
        topic=topic,
        partition_id=None if plan.mode.is_balanced else _pinned_partition(plan, number),
        quota=_quota(plan.messages, number, plan.producers),
        share=1 / plan.producers,
    )


def _consumer(plan: Plan, number: int) -> ActorTask:
    stream, topic = _place(plan, number)
    place_count = plan.streams * plan.topics
    group: int | None = None
    partition_ids: tuple[int, ...] = (_pinned_partition(plan, number),)
    if plan.mode.is_grouped:
        group, partition_ids = number // place_count % plan.groups, ()
    elif plan.mode.is_balanced:
        sharers = len(range(number % place_count, plan.consumers, place_count))
        partition_ids = tuple(range(number // place_count, plan.partitions, sharers))
    reads_quota = not plan.mode.produces and not plan.mode.is_grouped
    return ActorTask(
        number=number,
        role=Role.CONSUMER,
        stream=stream,
        topic=topic,
        partition_ids=partition_ids,
        group=group,
        quota=_quota(plan.messages, number, plan.consumers) if reads_quota else None,
        share=1 / plan.consumers,
    )


def _producing_consumer(plan: Plan, number: int) -> ActorTask:
    stream, topic = _place(plan, number)
    partition_id = None if plan.mode.is_grouped else _pinned_partition(plan, number)
    return ActorTask(
        number=number,
        role=Role.PRODUCING_CONSUMER,
        stream=stream,
        topic=topic,
        partition_id=partition_id,
        partition_ids=() if partition_id is None else (partition_id,),
        group=number // (plan.streams * plan.topics) % plan.groups if plan.mode.is_grouped else None,
        quota=_quota(plan.messages, number, plan.producers),
        share=1 / plan.producers,
    )


def fill_count(plan: Plan) -> int:
    """Messages that each partition is filled with before consumers without producers begin; 0 if there are others."""
    if plan.mode.produces:
        return 0
    partition_count = plan.streams * plan.topics * plan.partitions
    wanted = int(plan.fill_size / plan.message_size.mean)
    if plan.messages is not None:
        # What a group has read it does not read again.
        wanted = -(-plan.messages // plan.groups) if plan.mode.is_grouped else min(wanted, plan.messages)
    return max(-(-wanted // partition_count), 1)
