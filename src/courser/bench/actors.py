"""The measured loops: actors that send, read, or do both, each with one request in flight.

If a rate is set, the latency of a request counts from when it was due, not from when it was sent. A stalled server is
therefore charged for the requests that it delayed.
"""

import asyncio
import ctypes
import random
import time
from dataclasses import dataclass, field
from itertools import cycle

import msgspec

from courser.api.commands import SendMessages
from courser.bench.latencies import Latencies
from courser.bench.plan import ActorTask, Plan, Role, Spread
from courser.client.batches import PolledBatches
from courser.client.client import Client
from courser.client.messages import PollingStrategy
from courser.errors import ErrorCode, ServerFailure
from courser.model.messaging import ToPartition
from courser.records.batch import Batch, NewMessage, build_batch, select_messages
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE
from courser.wire.vsr_headers import FRAME_SIZE_MAX

_SECOND = 1_000_000_000
_WAIT = 0.5
"""Seconds that a consumer waits for messages at a time."""
_PATIENCE = 30 * _SECOND
"""Nanoseconds that an actor waits for its own messages."""

_POOL_SIZE_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of one producer's samples."""
_VARIED_COUNT = 32
"""Number of different batches if their sizes vary: enough to represent their distribution."""
_EQUAL_COUNT = 4


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """When actors begin and end. Times are on the monotonic clock, which all processes of a machine share."""

    begin: int
    end: int | None
    """Nanoseconds. None means until the quotas are met."""
    is_counted: bool
    """Whether quotas apply. They do not during the warm-up."""


@dataclass(slots=True)
class Part:
    """What an actor sent, or what it received, in one phase."""

    messages: int = 0
    size: int = 0
    """Bytes of payload."""
    requests: int = 0
    """Requests with messages."""
    empty: int = 0
    """Polls without messages."""
    begin: int = 0
    end: int = 0
    """Start of the first and end of the last request with messages, in nanoseconds."""
    latencies: Latencies = field(default_factory=Latencies)

    def add(self, messages: int, size: int, begin: int, end: int) -> None:
        """Count one request with messages."""
        if not self.requests:
            self.begin = begin
        self.end = end
        self.messages += messages
        self.size += size
        self.requests += 1
        self.latencies.add(end - begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """The result of one actor."""

    task: ActorTask
    sent: Part | None = None
    received: Part | None = None
    end_to_end: Latencies | None = None


class RunProgress:
    """What actors have done so far, in memory that another process may read."""

    def __init__(self, counters: "ctypes.Array[ctypes.c_uint64] | list[int]") -> None:
        """There are four counters: messages sent and their bytes, messages received and their bytes."""
        self._counters = counters

    def clear(self) -> None:
        """Begin a new phase."""
        self._counters[:] = [0] * len(self._counters)

    def sent(self, messages: int, size: int) -> None:
        """Count messages that were sent."""
        self._counters[0] += messages
        self._counters[1] += size

    def received(self, messages: int, size: int) -> None:
        """Count messages that were received."""
        self._counters[2] += messages
        self._counters[3] += size


# --- what is sent ---


def make_pool(message_size: Spread, batch: Spread, source: random.Random) -> list[Batch]:
    """Batches to send in turn."""
    wanted = _EQUAL_COUNT if batch.is_fixed and message_size.is_fixed else _VARIED_COUNT
    largest = batch.maximum * message_size.maximum
    count = max(1, min(wanted, _POOL_SIZE_MAX // largest))
    return [_make_batch(message_size, batch.pick(source), source) for _ in range(count)]


def _make_batch(message_size: Spread, count: int, source: random.Random) -> Batch:
    payloads = (source.randbytes(message_size.pick(source)) for _ in range(count))
    return build_batch([NewMessage(payload, source.getrandbits(128)) for payload in payloads])


def cut(batch: Batch, count: int) -> Batch:
    """The first ``count`` messages."""
    return batch if count >= batch.count else select_messages(batch, range(count))


# --- actors ---


class Schedule:
    """Spreads messages or bytes evenly over time. All times are in nanoseconds."""

    def __init__(self, *, size_rate: float | None = None, message_rate: float | None = None, begin: int = 0) -> None:
        """At most one rate, per second. Without one, there is no limit."""
        self._counts_messages = message_rate is not None
        rate = message_rate if message_rate is not None else size_rate
        self._interval = None if rate is None else _SECOND / rate
        """Nanoseconds per message or per byte."""
        self._begin = begin
        self._done = 0

    def count(self, messages: int, size: int) -> None:
        """Count what was sent or received."""
        self._done += messages if self._counts_messages else size

    def due(self, now: int) -> int:
        """When the next request is due. Without a rate, that is now."""
        return now if self._interval is None else self._begin + int(self._done * self._interval)

    async def next_start(self, end: int | None) -> int | None:
        """Wait until the next request is due. Returns when its latency begins; None at the end of the phase."""
        now = time.monotonic_ns()
        due = self.due(now)
        if end is not None and max(due, now) >= end:
            return None
        if due <= now:
            return due
        await asyncio.sleep((due - now) / _SECOND)
        # The event loop wakes up to a millisecond late, which is not the server's fault.
        return time.monotonic_ns()


class Sending:
    """The sending half of an actor."""

    def __init__(self, client: Client, stream: str, topic: str, task: ActorTask, plan: Plan) -> None:
        self._client = client
        self._place = (stream, topic, ToPartition(task.partition_id))
        source = random.Random(f"{plan.seed} {task.role.value} {task.number}")
        self._pool = make_pool(plan.message_size, plan.batch, source)
        self._batches = cycle(self._pool)
        self.part = Part()

    def prepare(self) -> None:
        """Forget the last phase."""
        self._batches = cycle(self._pool)
        self.part = Part()

    def next_batch(self, left: int | None) -> Batch:
        """What to send next: at most ``left`` messages."""
        batch = next(self._batches)
        return batch if left is None else cut(batch, left)

    async def send(self, batch: Batch, begin: int) -> tuple[int, int]:
        """Send a batch. Returns how many messages and bytes it has."""
        late = time.monotonic_ns() - begin
        # Readers tell the age of messages by this time.
        batch = msgspec.structs.replace(batch, origin_timestamp=(time.time_ns() - late) // 1000)
        await self._client.request(SendMessages(*self._place, [batch]))
        size = _payload_size(batch)
        self.part.add(batch.count, size, begin, time.monotonic_ns())
        return batch.count, size


def _payload_size(batch: Batch) -> int:
    return len(batch.body) - FRAME_HEADER_SIZE * batch.count


class Reading:
    """The polling half of an actor. Reads its partition in order."""

    def __init__(self, client: Client, stream: str, topic: str, task: ActorTask, plan: Plan) -> None:
        self._client = client
        self._place = (stream, topic, task.partition_id)
        self._batch_count = plan.batch.maximum
        self._starts_again = not plan.mode.produces
        """Whether it goes back to the first message from the end of the partition."""
        self._offset: int | None = None
        self.part = Part()
        self.end_to_end = Latencies()

    async def prepare(self) -> None:
        """Forget the last phase, and skip what was sent in it."""
        self.part = Part()
        self.end_to_end = Latencies()
        if not self._starts_again:
            self._offset = (await self._poll(PollingStrategy.Last(), 1)).next_offset

    async def read(self, begin: int, left: int | None) -> PolledBatches:
        """Poll, but for at most ``left`` messages."""
        start = PollingStrategy.First() if self._offset is None else PollingStrategy.Offset(self._offset)
        wanted = self._batch_count if left is None else min(self._batch_count, left)
        polled = await self._poll(start, wanted)
        end = time.monotonic_ns()
        if polled.message_count:
            self._offset = polled.next_offset
            self.part.add(polled.message_count, received_size(polled), begin, end)
        else:
            self.part.empty += 1
            if self._starts_again:
                self._offset = None
        return polled

    async def _poll(self, start: PollingStrategy, count: int) -> PolledBatches:
        return await self._client.poll_batches(*self._place, start, count, size_max=FRAME_SIZE_MAX)

    async def wait(self, seconds: float) -> None:
        """Wait for messages at the end of the partition."""
        stream, topic, partition_id = self._place
        await self._client.wait_for_arrivals(stream, topic, {partition_id: self._offset or 0}, wait=seconds)

    def note_age(self, polled: PolledBatches) -> None:
        """Record the age of the oldest message on arrival."""
        self.end_to_end.add(time.time_ns() - polled.views[0].origin_timestamp * 1000)


def received_size(polled: PolledBatches) -> int:
    """Bytes of payload, including user headers."""
    return polled.size - BATCH_HEADER_SIZE * len(polled) - FRAME_HEADER_SIZE * polled.message_count


class Actor:
    """Carries out one task, with its own connection."""

    def __init__(self, client: Client, stream: str, topic: str, task: ActorTask, plan: Plan) -> None:
        self._task = task
        self._plan = plan
        self._is_paced = task.role is not Role.CONSUMER or not plan.mode.produces
        place = client, stream, topic, task, plan
        self._sending = None if task.role is Role.CONSUMER else Sending(*place)
        self._reading = None if task.role is Role.PRODUCER else Reading(*place)

    async def prepare(self) -> None:
        """Get ready for a phase. The last one must have ended for all actors."""
        if self._reading is not None:
            await self._reading.prepare()
        if self._sending is not None:
            self._sending.prepare()

    async def run(self, phase: Phase, progress: RunProgress) -> ActorReport:
        """Run one phase. Raises ``CourserError``."""
        await asyncio.sleep(max(phase.begin - time.monotonic_ns(), 0) / _SECOND)
        plan, share = self._plan, self._task.share
        schedule = Schedule(
            size_rate=plan.rate * share if plan.rate is not None and self._is_paced else None,
            message_rate=plan.message_rate * share if plan.message_rate is not None and self._is_paced else None,
            begin=phase.begin,
        )
        quota = self._task.quota if phase.is_counted else None
        if self._sending is not None:
            await self._send_all(self._sending, quota, schedule, phase, progress)
        elif self._reading is not None:
            await self._read_all(self._reading, quota, schedule, phase, progress)
        return self._report()

    async def _send_all(
        self, sending: Sending, left: int | None, schedule: Schedule, phase: Phase, progress: RunProgress
    ) -> None:
        while left is None or left > 0:
            batch = sending.next_batch(left)
            begin = await schedule.next_start(phase.end)
            if begin is None:
                return
            messages, size = await sending.send(batch, begin)
            schedule.count(messages, size)
            progress.sent(messages, size)
            left = None if left is None else left - messages
            if self._reading is not None:
                await self._read_back(self._reading, messages, begin, progress)

    async def _read_back(self, reading: Reading, messages: int, begin: int, progress: RunProgress) -> None:
        """Poll until the actor's own messages have arrived."""
        missing = messages
        while missing > 0:
            now = time.monotonic_ns()
            if now - begin > _PATIENCE:
                raise ServerFailure(ErrorCode.ERROR, f"{missing} messages could not be read back within 30 seconds")
            polled = await reading.read(now, None)
            missing -= polled.message_count
            progress.received(polled.message_count, received_size(polled))
        reading.end_to_end.add(time.monotonic_ns() - begin)

    async def _read_all(
        self, reading: Reading, left: int | None, schedule: Schedule, phase: Phase, progress: RunProgress
    ) -> None:
        while (left is None or left > 0) and (begin := await schedule.next_start(phase.end)) is not None:
            polled = await reading.read(begin, left)
            messages, size = polled.message_count, received_size(polled)
            schedule.count(messages, size)
            progress.received(messages, size)
            left = None if left is None else left - messages
            if not self._plan.mode.produces:
                continue
            if messages:
                reading.note_age(polled)
            else:
                rest = _WAIT if phase.end is None else (phase.end - time.monotonic_ns()) / _SECOND
                await reading.wait(min(max(rest, 0), _WAIT))

    def _report(self) -> ActorReport:
        sending, reading = self._sending, self._reading
        has_ages = reading is not None and self._plan.mode.produces
        return ActorReport(
            task=self._task,
            sent=None if sending is None else sending.part,
            received=None if reading is None else reading.part,
            end_to_end=reading.end_to_end if reading is not None and has_ages else None,
        )
