"""The measured loops: producers, consumers, and actors that are both.

If a rate is set, the latency of a request counts from when it was due, not from when it was sent. A stalled server is
therefore charged for the requests that it delayed.
"""

import random
import threading
import time
from collections.abc import Sequence
from itertools import count

from courser.bench.channel import ActorReport, Part, Phase
from courser.bench.classic_wire import ClassicWire
from courser.bench.latencies import Recorder
from courser.bench.plan import ActorTask, Plan, Role, WireName
from courser.bench.samples import cut_sample, make_pool
from courser.bench.vsr_wire import VsrWire
from courser.bench.wires import FIRST, NEXT, OFFSET, PollResult, SendRequest, TopicName, Wire
from courser.client.targets import Target
from courser.errors import ErrorCode, ServerFailure

_SECOND = 1_000_000_000
_REST = 0.0005
"""Seconds that a consumer sleeps if all its partitions are empty, so that producers get processor time."""
_PATIENCE = 30 * _SECOND
"""Nanoseconds that an actor waits for its own messages."""


def open_wire(name: WireName, target: Target) -> Wire:
    """Connect and log in.

    Raises:
        ConnectionFailed: no server listens at the address.
        AuthenticationFailed: the login was refused.
    """
    return ClassicWire(target) if name is WireName.CLASSIC else VsrWire(target)


class Pacer:
    """Spreads messages or bytes evenly over time. All times are in nanoseconds."""

    def __init__(self, *, size_rate: float | None = None, message_rate: float | None = None) -> None:
        """At most one rate, per second. Without one, there is no limit."""
        assert size_rate is None or message_rate is None, "a rate is in bytes or in messages"
        self._counts_messages = message_rate is not None
        rate = message_rate if message_rate is not None else size_rate
        self._interval = None if rate is None else _SECOND / rate
        """Nanoseconds per message or per byte."""
        self._begin = 0
        self._done = 0

    def start(self, begin: int) -> None:
        """Start at this time, with nothing sent."""
        self._begin = begin
        self._done = 0

    def due(self, now: int) -> int:
        """When the next request is due. Without a rate, that is now."""
        return now if self._interval is None else self._begin + int(self._done * self._interval)

    def count(self, messages: int, size: int) -> None:
        """Count what was sent or received."""
        self._done += messages if self._counts_messages else size


class Count:
    """What was sent or received in one phase. Another thread reads it meanwhile."""

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.requests = 0
        self.empty = 0
        self.begin = 0
        self.end = 0
        self.latencies = Recorder()

    def add(self, messages: int, size: int, begin: int, end: int) -> None:
        """Count one request with messages."""
        if not self.requests:
            self.begin = begin
        self.end = end
        self.messages += messages
        self.size += size
        self.requests += 1
        self.latencies.add(end - begin)

    def part(self) -> Part:
        """The totals."""
        return Part(
            messages=self.messages,
            size=self.size,
            requests=self.requests,
            empty=self.empty,
            begin=self.begin,
            end=self.end,
            latencies=self.latencies.tally(),
        )


class Sending:
    """The sending half of an actor."""

    def __init__(self, wire: Wire, place: TopicName, task: ActorTask, plan: Plan, *, stamps: bool) -> None:
        self._wire = wire
        self._stamps = stamps
        source = random.Random(f"{plan.seed} {task.role.value} {task.number}")
        pool = make_pool(plan.message_size, plan.batch, source, task.quota)
        self._requests = [wire.make_send(place, task.partition_id, sample) for sample in pool]
        self._quota = task.quota
        self._tail: SendRequest | None = None
        if task.quota is not None and (number := _tail_of([sample.count for sample in pool], task.quota)) is not None:
            sample, size = pool[number[0]], number[1]
            self._tail = wire.make_send(place, task.partition_id, cut_sample(sample, size))
        self._turn = count()
        self._left: int | None = None
        self.count = Count()

    def begin(self, *, is_counted: bool) -> None:
        """Reset for a new phase."""
        self.count = Count()
        self._turn = count()
        self._left = self._quota if is_counted else None

    @property
    def is_done(self) -> bool:
        """Whether the quota is met."""
        return self._left is not None and self._left <= 0

    def send(self, due: int) -> int:
        """Send the next batch, which was due at ``due``. Returns its number of messages."""
        request = self._requests[next(self._turn) % len(self._requests)]
        if self._left is not None:
            if self._left < request.message_count:
                assert self._tail is not None, "what is left after whole batches was made ready"
                request = self._tail
            self._left -= request.message_count
        if self._stamps:
            late = time.monotonic_ns() - due
            self._wire.stamp(request, (time.time_ns() - late) // 1000)
        self._wire.send(request)
        self.count.add(request.message_count, request.payload_size, due, time.monotonic_ns())
        return request.message_count


def _tail_of(counts: list[int], quota: int) -> tuple[int, int] | None:
    """The index of the last batch and how many of its messages are needed; None if whole batches meet the quota."""
    left = quota % sum(counts)
    for number, size in enumerate(counts):
        if not left:
            return None
        if left < size:
            return number, left
        left -= size
    return None


class _Source:
    """Partitions to poll in turn, and the next offset of each."""

    def __init__(
        self, wire: Wire, place: TopicName, partition_ids: Sequence[int | None], group: str | None = None
    ) -> None:
        self.is_grouped = group is not None
        self.polls = [
            wire.make_poll(place, partition_id, group=group, auto_commit=self.is_grouped)
            for partition_id in partition_ids
        ]
        self.offsets: list[int | None] = [None] * len(self.polls)
        self.turn = 0


class Reading:
    """The polling half of an actor. Polls partitions in turn, by offset or as a member of a group."""

    def __init__(
        self, wire: Wire, place: TopicName, task: ActorTask, plan: Plan, group: str | None, *, is_foreign: bool
    ) -> None:
        self._wire = wire
        self._place = place
        self._group = group
        self._poll_count = plan.batch.maximum
        self._payload_size = None if is_foreign or not plan.message_size.is_fixed else plan.message_size.minimum
        self._is_alone = not plan.mode.produces
        # A group would not read the messages of the warm-up again, so it warms up without the group.
        partition_ids = task.partition_ids if group is None else tuple(range(plan.partitions))
        self._plain = self._source = _Source(wire, place, partition_ids)
        self._member: _Source | None = None
        self._quota = task.quota if task.role is Role.CONSUMER else None
        self._left: int | None = None
        self.count = Count()
        self.end_to_end = Recorder()

    def join(self) -> None:
        """Join the group, if there is one."""
        if self._group is not None:
            self._wire.join_group(self._place, self._group)

    def settle(self) -> None:
        """Ask for the assigned partitions after all members have joined."""
        if self._group is not None:
            partition_ids = self._wire.assigned(self._place, self._group)
            self._member = _Source(self._wire, self._place, partition_ids or (None,), self._group)

    @property
    def partition_count(self) -> int:
        """The number of partitions to poll in turn."""
        return len(self._source.polls)

    def begin(self, *, is_counted: bool) -> None:
        """Reset for a new phase."""
        self.count = Count()
        self.end_to_end = Recorder()
        self._left = self._quota if is_counted else None
        if self._member is not None and (is_counted or not self._is_alone):
            self._source = self._member

    @property
    def is_done(self) -> bool:
        """Whether the quota is met."""
        return self._left is not None and self._left <= 0

    def poll(self, due: int) -> PollResult:
        """Poll the next partition. The poll was due at ``due``."""
        source = self._source
        turn = source.turn % len(source.polls)
        source.turn += 1
        wanted = self._poll_count if self._left is None else min(self._poll_count, self._left)
        offset = source.offsets[turn]
        if source.is_grouped:
            polled = self._wire.poll(source.polls[turn], NEXT, 0, wanted)
        elif offset is None:
            polled = self._wire.poll(source.polls[turn], FIRST, 0, wanted)
        else:
            polled = self._wire.poll(source.polls[turn], OFFSET, offset, wanted)
        end = time.monotonic_ns()
        messages = polled.message_count
        if not messages:
            self.count.empty += 1
            if self._is_alone:
                # At the end of the partition, start again.
                source.offsets[turn] = None
            return polled
        source.offsets[turn] = polled.first_offset + messages
        size = self._wire.payload_size(polled) if self._payload_size is None else messages * self._payload_size
        self.count.add(messages, size, due, end)
        if self._left is not None:
            self._left -= messages
        return polled

    def note_age(self, polled: PollResult) -> None:
        """Record the age of the oldest message on arrival."""
        if polled.message_count:
            self.end_to_end.add(time.time_ns() - polled.origin_timestamp * 1000)


class Actor:
    """Carries out one task, with its own connection and thread."""

    def __init__(
        self, wire: Wire, task: ActorTask, plan: Plan, place: TopicName, group: str | None, *, is_foreign: bool = False
    ) -> None:
        self.task = task
        self._wire = wire
        self._is_alone = not (plan.mode.produces and plan.mode.consumes)
        is_paced = task.role is not Role.CONSUMER or self._is_alone
        self._pace = Pacer(
            size_rate=plan.rate * task.share if plan.rate is not None and is_paced else None,
            message_rate=plan.message_rate * task.share if plan.message_rate is not None and is_paced else None,
        )
        stamps = not self._is_alone and not (plan.mode.is_end_to_end and not plan.mode.is_grouped)
        self._notes_ages = stamps
        self.sending = None if task.role is Role.CONSUMER else Sending(wire, place, task, plan, stamps=stamps)
        self.reading: Reading | None = None
        if task.role is not Role.PRODUCER:
            self.reading = Reading(wire, place, task, plan, group, is_foreign=is_foreign)
        self.is_sending = False
        """Whether it will send more messages in this phase."""

    def begin(self, phase: Phase) -> None:
        """Reset the counts for a new phase."""
        for half in (self.sending, self.reading):
            if half is not None:
                half.begin(is_counted=phase.is_counted)
        self._pace.start(phase.begin)
        self.is_sending = self.sending is not None

    def run(self, phase: Phase, stop: threading.Event) -> None:
        """Run one phase. Raises ``CourserError``."""
        _sleep_until(phase.begin)
        match self.task.role:
            case Role.PRODUCER:
                self._produce(phase, stop)
            case Role.CONSUMER:
                self._consume(phase, stop)
            case Role.PRODUCING_CONSUMER:
                self._produce_and_consume(phase, stop)
        self.is_sending = False

    def _next_due(self, phase: Phase, stop: threading.Event) -> int | None:
        """Wait until the next request is due, and return that time; None at the end of the phase."""
        now = time.monotonic_ns()
        due = self._pace.due(now)
        if stop.is_set() or (phase.end is not None and max(due, now) >= phase.end):
            return None
        if due > now:
            _sleep_until(due)
        return due

    def _produce(self, phase: Phase, stop: threading.Event) -> None:
        sending = self.sending
        assert sending is not None
        while not sending.is_done and (due := self._next_due(phase, stop)) is not None:
            size = sending.count.size
            messages = sending.send(due)
            self._pace.count(messages, sending.count.size - size)

    def _consume(self, phase: Phase, stop: threading.Event) -> None:
        reading = self.reading
        assert reading is not None
        if phase.drains:
            phase = Phase(begin=phase.begin, end=None, is_counted=phase.is_counted, drains=True)
        empty_in_a_row = 0
        while not reading.is_done and (due := self._next_due(phase, stop)) is not None:
            size = reading.count.size
            polled = reading.poll(due)
            if polled.message_count:
                empty_in_a_row = 0
                self._pace.count(polled.message_count, reading.count.size - size)
                if self._notes_ages:
                    reading.note_age(polled)
                continue
            empty_in_a_row += 1
            if not empty_in_a_row % reading.partition_count:
                time.sleep(_REST)

    def _produce_and_consume(self, phase: Phase, stop: threading.Event) -> None:
        sending, reading = self.sending, self.reading
        assert sending is not None
        assert reading is not None
        while not sending.is_done and (due := self._next_due(phase, stop)) is not None:
            size = sending.count.size
            messages = sending.send(due)
            self._pace.count(messages, sending.count.size - size)
            if self.task.group is None:
                self._fetch(messages, due)
            else:
                for _ in range(reading.partition_count):
                    reading.note_age(reading.poll(time.monotonic_ns()))
        self.is_sending = False
        if phase.drains:
            while not stop.is_set():
                reading.note_age(reading.poll(time.monotonic_ns()))

    def _fetch(self, messages: int, begin: int) -> None:
        """Poll until the actor's own messages have arrived."""
        reading = self.reading
        assert reading is not None
        missing = messages
        while missing > 0:
            now = time.monotonic_ns()
            if now - begin > _PATIENCE:
                raise ServerFailure(ErrorCode.ERROR, f"{missing} messages could not be read back within 30 seconds")
            missing -= reading.poll(now).message_count
        reading.end_to_end.add(time.monotonic_ns() - begin)

    def report(self) -> ActorReport:
        """The results of the phase."""
        reading = self.reading
        has_ages = reading is not None and (self._notes_ages or self.sending is not None)
        return ActorReport(
            task=self.task,
            sent=None if self.sending is None else self.sending.count.part(),
            received=None if reading is None else reading.count.part(),
            end_to_end=reading.end_to_end.tally() if reading is not None and has_ages else None,
        )

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()


def _sleep_until(moment: int) -> None:
    while (left := moment - time.monotonic_ns()) > 0:
        time.sleep(left / _SECOND)
