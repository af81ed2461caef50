"""Retention: which segments are deleted, when and why.

Whole segments are deleted, oldest first, even if a consumer has not read them. ``plan`` is a pure function. The cleaner
checks all topics periodically, and checks a topic that reached its size limit at once. If the disk has too little free
space, archived segments are deleted before their time.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.topic_settings import expiry_of, local_size_limit, local_time_limit
from courser.broker.partition.waiting import Pause, Steps, let_others_run
from courser.broker.settings import BrokerSettings
from courser.errors import CourserError, ErrorCode
from courser.model.clock import Clock
from courser.model.identifiers import TopicAddress
from courser.records.stored_header import PartitionIdentity
from courser.storage.ledger import SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment, SegmentState

_log = logging.getLogger(__name__)

_STEP_GRACE = 3_600_000_000
"""Microseconds for which expiry uses the old time after the clock was set forward. A clock that is wrong for a short
time must not expire everything; an operator or the time daemon has an hour to correct it."""
_ROUND_COUNT_MAX = 1000
"""How often one run plans for a topic again: each round deletes or rolls something."""


class DeletionReason(Enum):
    """Why a segment is deleted."""

    EXPIRED = "expired"
    SIZE = "size"
    REQUESTED = "requested"
    LOCAL = "local"
    """The archive has it, and the topic has enough here."""
    PRESSURE = "pressure"
    """The disk had less free space than the configured minimum, and the archive has the segment."""


class SegmentLife(Enum):
    """Where a segment is between its first message and its deletion, as users see it."""

    ACTIVE = "active"
    """It takes new messages."""
    ROLLED = "rolled"
    """A newer segment takes new messages."""
    EXPIRED = "expired"
    """Its newest message has expired: the cleaner deletes it, or waits for the archive."""
    ARCHIVED = "archived"
    """The archive has confirmed it."""


class RetainedSegment(NamedTuple):
    """What retention needs to know about a segment that has messages."""

    end_offset: int
    size: int
    first_timestamp: int
    last_timestamp: int
    """When its messages were stored, if known."""
    is_sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a topic. None is no limit."""

    expiry: int | None = None
    """Microseconds."""
    size: int | None = None
    """In bytes, over all partitions."""
    local_expiry: int | None = None
    local_size: int | None = None
    """The same for what stays here of the messages that the archive has."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Delete the segments of a partition below an offset."""

    partition_id: int
    before_offset: int
    reason: DeletionReason


@dataclass(frozen=True, slots=True)
class Roll:
    """Close the open segment of a partition, so that it can be deleted."""

    partition_id: int


Step = Trim | Roll


def plan(partitions: Sequence[Sequence[RetainedSegment]], limits: Limits, now: int) -> list[Step]:
    """What to do now. After a roll, call it again with the new facts.

    ``partitions`` are the segments of each partition, oldest first.
    """
    kept = [list(segments) for segments in partitions]
    steps: list[Step] = []
    if limits.expiry is not None:
        steps += _plan_expiry(kept, now - limits.expiry, DeletionReason.EXPIRED)
    if limits.size is not None:
        steps += _plan_size(kept, limits.size, DeletionReason.SIZE)
    # Open segments stay here until they are full.
    if limits.local_expiry is not None:
        steps += _trims(_plan_expiry(kept, now - limits.local_expiry, DeletionReason.LOCAL))
    if limits.local_size is not None:
        steps += _trims(_plan_size(kept, limits.local_size, DeletionReason.LOCAL))
    return steps


def _trims(steps: list[Step]) -> list[Step]:
    return [step for step in steps if isinstance(step, Trim)]


def _plan_expiry(kept: list[list[RetainedSegment]], horizon: int, reason: DeletionReason) -> list[Step]:
    """Delete segments whose newest message has expired; close an open one whose oldest message has."""
    steps: list[Step] = []
    for partition_id, segments in enumerate(kept):
        gone = 0
        while gone < len(segments) and segments[gone].is_sealed and segments[gone].last_timestamp <= horizon:
            gone += 1
        if gone:
            steps.append(Trim(partition_id, segments[gone - 1].end_offset, reason))
            del segments[:gone]
        if segments and not segments[-1].is_sealed and segments[-1].first_timestamp <= horizon:
            steps.append(Roll(partition_id))
    return steps


def _plan_size(kept: list[list[RetainedSegment]], size_max: int, reason: DeletionReason) -> list[Step]:
    """Delete the segment with the oldest message until the topic is within its limit."""
    excess = sum(segment.size for segments in kept for segment in segments) - size_max
    steps: list[Step] = []
    while excess > 0:
        oldest = min((segments[0].first_timestamp, number) for number, segments in enumerate(kept) if segments)
        partition_id = oldest[1]
        segment = kept[partition_id].pop(0)
        if not segment.is_sealed:
            # The next segment to delete is still open.
            return [*steps, Roll(partition_id)]
        excess -= segment.size
        steps.append(Trim(partition_id, segment.end_offset, reason))
    return steps


# --- carrying it out ---


@dataclass(slots=True)
class RetentionCounters:
    """How much was deleted since the start, by reason."""

    segment_count: defaultdict[DeletionReason, int] = field(default_factory=lambda: defaultdict(int))
    message_count: defaultdict[DeletionReason, int] = field(default_factory=lambda: defaultdict(int))
    size: defaultdict[DeletionReason, int] = field(default_factory=lambda: defaultdict(int))


class _Urgent(NamedTuple):
    """A topic that cannot wait for the next run."""

    topic: OpenTopic
    looked_at: asyncio.Future[None]


class DeletionGuard(Protocol):
    """Keeps segments from being deleted: the archive, until it has them."""

    def is_archived(self, log: PartitionLog, segment: Segment) -> bool:
        """Whether the archive has confirmed a sealed segment."""

    def remote_segments(self, log: PartitionLog) -> Iterable[SegmentFacts]:
        """The segments that only the archive has now, oldest first."""

    def deletable_end(
        self, log: PartitionLog, before_offset: int, *, is_expiry: bool = False, is_request: bool = False
    ) -> int:
        """The offset up to which segments may be deleted now. Those up to ``before_offset`` should be soon."""


class Retention:
    """Deletes old segments. ``run`` is the cleaner; the rest may be called at any time."""

    def __init__(
        self, registry: PartitionRegistry, settings: BrokerSettings, clock: Clock, pause: Pause = let_others_run
    ) -> None:
        """``pause`` lets the other tasks of the event loop run."""
        self._pause = pause
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._urgent: dict[tuple[int, int], _Urgent] = {}
        self._is_running = False
        self._wake: asyncio.Event = asyncio.Event()
        self._turn = asyncio.Lock()
        """One topic at a time: the cleaner and a full disk must not plan to delete the same segments."""
        self.counters = RetentionCounters()
        self._step = self._believed_step = clock.step
        self._stepped_at = clock.monotonic()
        self.guard: DeletionGuard | None = None
        """Says what may be deleted; None: everything."""
        self.settle: Callable[[PartitionIdentity, int], Awaitable[None]] | None = None
        """Called before what lies in a partition below an offset is deleted: a publish may still look for it."""

    def expiry_time(self) -> int:
        """The time used for expiry: the clock, without a recent step forward that may be wrong."""
        now, monotonic, step = self._clock.now(), self._clock.monotonic(), self._clock.step
        if step != self._step:
            self._step, self._stepped_at = step, monotonic
        if step <= self._believed_step or monotonic - self._stepped_at >= _STEP_GRACE:
            self._believed_step = step
        return now - (step - self._believed_step)

    def hurry(self, topic: OpenTopic) -> asyncio.Future[None] | None:
        """Check a topic that reached its limit now. The future is done after that; None if no cleaner runs."""
        if not self._is_running:
            return None
        key = topic.stream_id, topic.topic_id
        if key not in self._urgent:
            self._urgent[key] = _Urgent(topic, asyncio.get_running_loop().create_future())
            self._wake.set()
        return self._urgent[key].looked_at

    async def run(self) -> None:
        """Run the cleaner until cancelled: all topics at each interval, and urgent topics in between."""
        loop = asyncio.get_running_loop()
        interval = self._settings.cleaner_interval / 1_000_000
        due = loop.time() + interval
        self._is_running = True
        try:
            while True:
                await self._sleep_until(due)
                while self._urgent:
                    await self._clean_urgent(self._urgent.pop(next(iter(self._urgent))))
                if loop.time() >= due:
                    await self.clean_all()
                    due = loop.time() + interval
        finally:
            # The cleaner has stopped: release those who wait for it.
            self._is_running = False
            while self._urgent:
                self._urgent.popitem()[1].looked_at.set_result(None)

    async def _clean_urgent(self, urgent: _Urgent) -> None:
        try:
            await self.clean(urgent.topic)
        finally:
            urgent.looked_at.set_result(None)

    async def _sleep_until(self, due: float) -> None:
        timeout = max(due - asyncio.get_running_loop().time(), 0)
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def clean_all(self) -> None:
        """Check every topic once."""
        steps = Steps(self._pause)
        for topic in list(self._registry):
            await steps.take()
            await self._clean_if_limited(topic, steps)

    async def clean(self, topic: OpenTopic) -> None:
        """Apply the limits of one topic. A disk failure is logged and retried in the next run."""
        await self._clean_if_limited(topic, Steps(self._pause))

    async def _clean_if_limited(self, topic: OpenTopic, walk: Steps) -> None:
        limits = self.limits_of(topic)
        if limits == Limits():
            return
        async with self._turn:
            await self._clean(topic, limits, walk)

    async def _clean(self, topic: OpenTopic, limits: Limits, walk: Steps) -> None:
        partitions = list(topic.partitions)
        try:
            for partition in partitions:
                await walk.take(len(partition.log.segments) + 1)
                if partition.log.failure is None:
                    partition.log.follow_clock()
                if partition.log.closing_count and partition.log.failure is None:
                    await partition.seal()
            for _ in range(_ROUND_COUNT_MAX):
                now = self.expiry_time()
                steps = plan(await retained_segments(partitions, now, walk), limits, now)
                for step in steps:
                    if not await self._carry_out(topic, partitions[step.partition_id], step):
                        # The steps after it assume that these segments are gone.
                        return
                if not any(isinstance(step, Roll) for step in steps):
                    return
        except CourserError as error:
            if any(partition.is_deleted for partition in partitions):
                # Another task deleted it meanwhile. The next run checks the rest of the topic.
                return
            _log.warning("retention stopped stream=%d topic=%d reason=%s", topic.stream_id, topic.topic_id, error)

    async def relieve(self, missing_size: int) -> None:
        """Free so many bytes of the disk, if possible: apply all limits, then delete archived segments, oldest first.

        Nothing else is deleted. Without an archive, the limits of topics alone decide what may be deleted.
        """
        before = self._freed_size
        if self._settings.cleaner_enabled:
            await self.clean_all()
        while self._freed_size - before < missing_size:
            async with self._turn:
                if not await self._delete_oldest_archived():
                    return

    @property
    def _freed_size(self) -> int:
        return sum(self.counters.size.values())

    async def _delete_oldest_archived(self) -> bool:
        """Delete the oldest segment of all that the archive has. Return False if there is none."""
        if self.guard is None:
            return False
        oldest: tuple[int, OpenTopic, Partition, Segment] | None = None
        walk = Steps(self._pause)
        for topic in list(self._registry):
            for partition in topic.partitions:
                await walk.take()
                segments = partition.log.segments
                # The first one only: messages are deleted from the beginning of a log.
                first = next((segment for segment in segments if segment.message_count), None)
                if first is None or partition.log.failure is not None:
                    continue
                if not segments[0].state is first.state is SegmentState.SEALED:
                    continue
                is_older = oldest is None or first.first_stored_at < oldest[0]
                if is_older and self.guard.is_archived(partition.log, first):
                    oldest = first.first_stored_at, topic, partition, first
        if oldest is None:
            return False
        _, topic, partition, segment = oldest
        try:
            return await self._trim(topic, partition, segment.end_offset, DeletionReason.PRESSURE)
        except CourserError as error:
            if partition.is_deleted:
                # Meanwhile, so that its space is free, too. Look for another one.
                return True
            _log.warning("could not free disk space partition=%s reason=%s", partition.log.directory, error)
            return False

    def life_of(self, topic: OpenTopic, log: PartitionLog, segment: Segment) -> SegmentLife:
        """Where a segment is in its life."""
        if segment.state is SegmentState.OPEN:
            return SegmentLife.ACTIVE
        if self.guard is not None and self.guard.is_archived(log, segment):
            return SegmentLife.ARCHIVED
        expiry, now = expiry_of(topic.effective), self.expiry_time()
        if expiry is not None and segment.message_count and _expires_from(segment, now) <= now - expiry:
            return SegmentLife.EXPIRED
        return SegmentLife.ROLLED

    async def delete_segments(self, address: TopicAddress, partition_id: int, count: int) -> None:
        """Delete up to ``count`` of the oldest sealed segments of a partition, on request of a client.

        The open segment stays, and so do segments with a message above the smallest stored offset.
        """
        topic = self._registry.at(address)
        partition = topic.partition(partition_id)
        await partition.seal()
        log = partition.log
        needed = log.offsets.smallest()
        before_offset = log.start_offset
        for segment in log.segments[:count]:
            if segment.state is not SegmentState.SEALED or (needed is not None and segment.end_offset - 1 > needed):
                break
            before_offset = segment.end_offset
        await self._trim(topic, partition, before_offset, DeletionReason.REQUESTED)

    def limits_of(self, topic: OpenTopic) -> Limits:
        """The limits that apply to a topic."""
        size = topic.size_limit if self._settings.delete_oldest_segments else None
        effective, is_archived = topic.effective, self.guard is not None
        return Limits(
            expiry=expiry_of(effective),
            size=size,
            local_expiry=local_time_limit(effective) if is_archived else None,
            local_size=local_size_limit(effective) if is_archived else None,
        )

    async def _carry_out(self, topic: OpenTopic, partition: Partition, step: Step) -> bool:
        """Carry out a step. Return False if some of its segments must stay for now."""
        if isinstance(step, Roll):
            await partition.roll()
            return True
        return await self._trim(topic, partition, step.before_offset, step.reason)

    async def _trim(self, topic: OpenTopic, partition: Partition, wanted: int, reason: DeletionReason) -> bool:
        log = partition.log
        before_offset = wanted
        if self.guard is not None:
            before_offset = self.guard.deletable_end(
                log,
                wanted,
                is_expiry=reason is DeletionReason.EXPIRED,
                is_request=reason is DeletionReason.REQUESTED,
            )
        gone = [segment for segment in log.segments if segment.end_offset <= before_offset]
        if not gone:
            return before_offset >= wanted
        if self.settle is not None:
            try:
                await self.settle(log.identity, before_offset)
            except CourserError as error:
                if error.code is ErrorCode.SERVER_BUSY:
                    # The server stops, or a process is away: the next start or round settles it. Deleted before that,
                    # its messages would be appended once more.
                    raise
                # The disk may be full, and only this makes room. What could come back is what the publish holds.
                _log.warning("deleting messages of a publish that is not finalized reason=%s", error)
        await partition.trim(before_offset)
        topic.room = 0
        self._note(topic, partition, gone, reason)
        return before_offset >= wanted

    def _note(self, topic: OpenTopic, partition: Partition, gone: list[Segment], reason: DeletionReason) -> None:
        message_count, size = sum(segment.message_count for segment in gone), sum(segment.size for segment in gone)
        counters = self.counters
        counters.segment_count[reason] += len(gone)
        counters.message_count[reason] += message_count
        counters.size[reason] += size
        self._registry.note_deletion(topic, partition, gone, reason.value)
        _log.info(
            "segments deleted reason=%s stream=%d topic=%d partition=%d segments=%d messages=%d size=%d "
            "first_offset=%d end_offset=%d",
            reason.value,
            topic.stream_id,
            topic.topic_id,
            partition.log.identity.partition_id,
            len(gone),
            message_count,
            size,
            gone[0].base_offset,
            gone[-1].end_offset,
        )


async def retained_segments(partitions: Sequence[Partition], now: int, walk: Steps) -> list[list[RetainedSegment]]:
    """The segments of each partition that have messages, oldest first.

    What changes during the walk is found by the next one: a plan names offsets, and each step looks at what is there.
    """
    return [await _retained(partition, now, walk) for partition in partitions]


async def _retained(partition: Partition, now: int, walk: Steps) -> list[RetainedSegment]:
    found: list[RetainedSegment] = []
    if partition.log.failure is not None:
        # Nothing can be deleted here: the limits apply to the other partitions only.
        return found
    segments = partition.log.segments
    for start in range(0, len(segments), walk.count_max):
        some = segments[start : start + walk.count_max]
        await walk.take(len(some))
        found += [
            RetainedSegment(
                segment.end_offset,
                segment.size,
                segment.first_stored_at,
                _expires_from(segment, now),
                segment.state is SegmentState.SEALED,
            )
            for segment in some
            if segment.message_count
        ]
    return found


def _expires_from(segment: Segment, now: int) -> int:
    """When the newest message was stored: the latest of the times that the clock has already reached."""
    return max(segment.last_stored_at, segment.last_timestamp if segment.last_timestamp <= now else 0)
