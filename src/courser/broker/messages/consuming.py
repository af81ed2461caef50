"""Polling: where a read begins, what it gives, and how far consumers say they got.

Two kinds of readers: SDK clients get the next good message when some are gone or damaged, as they expect, and it is
counted; Courser's own get an error that names the offsets, because they must not skip any in silence.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from courser.api.commands import FindMessages, PollMessages, WaitForArrivals, WaitForMessages
from courser.api.internal_commands import FindStartOffsets, StartOffsets
from courser.api.replies import Arrivals, ArrivalsInTopics, FoundMessages, Polled
from courser.broker.access.sessions import Session
from courser.broker.catalog.finding import find_group
from courser.broker.groups.groups import ConsumerGroups
from courser.broker.messages.poll_turns import LIGHT_SIZE, PollTurns
from courser.broker.messages.row_counts import RowCounts
from courser.broker.messages.searching import SEARCH_COUNT, SEARCH_SIZE, search
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_reader import PartitionReader, Question
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry, check_incarnation
from courser.broker.partition.read_buffers import ReadBuffers
from courser.broker.partition.recent_reads import RecentReads
from courser.broker.partition.waiting import Waiting, attempt
from courser.broker.settings import BrokerSettings
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode, OffsetsUnavailable
from courser.model.identifiers import Consumer, ConsumerKind, Identifier, TopicAddress
from courser.model.messaging import PollingKind
from courser.records.message_filter import MessageFilter
from courser.storage.offset_table import ConsumerKey
from courser.storage.read_result import MemoryNeeded, ReadBuffer, ReadResult, SkippedRange, SkipReason

_log = logging.getLogger(__name__)

# By name: members of an enum take long to find, and every poll asks for some.
_GROUP = ConsumerKind.GROUP
_NEXT, _OFFSET, _FIRST, _LAST = PollingKind.NEXT, PollingKind.OFFSET, PollingKind.FIRST, PollingKind.LAST

_NOBODY = Consumer(ConsumerKind.CONSUMER, 0)
WAIT_MAX = 20_000_000
"""Microseconds that a poll may wait for messages."""
_NOTHING = Polled(0, 0, 0, (), 0)
"""For a member without messages, which may be one without partitions."""
_KNOWN_COUNT_MAX = 1000
"""Damaged ranges that were logged already, and consumers whose keys are at hand."""
_NUMBER = b"\x01"
_NAME = b"\x02"
_UNAVAILABLE = {
    SkipReason.TRIMMED: (ErrorCode.OFFSET_GONE, "deleted"),
    SkipReason.LOST: (ErrorCode.DAMAGED_DATA, "lost"),
    SkipReason.DAMAGED: (ErrorCode.DAMAGED_DATA, "damaged on disk"),
}
SKIP_REASONS = {words: reason for reason, (_, words) in _UNAVAILABLE.items()}
"""Why messages are not there, by the reason that an ``OffsetsUnavailable`` gives."""


def consumer_key(identifier: Identifier) -> ConsumerKey:
    """The key of a single consumer: the identifier as it was sent, so a number never finds a name."""
    if isinstance(identifier, str):
        return ConsumerKey(ConsumerKind.CONSUMER, _NAME + identifier.encode())
    return ConsumerKey(ConsumerKind.CONSUMER, _NUMBER + identifier.to_bytes(4, "little"))


def group_key(group_id: int) -> ConsumerKey:
    """The key of a consumer group, however a client names it."""
    return ConsumerKey(ConsumerKind.GROUP, _NUMBER + group_id.to_bytes(4, "little"))


def current_offset(partition: Partition) -> int:
    """The offset of the newest message that polls can see; 0 if there never was one."""
    return max(partition.log.readable_end - 1, 0)


@dataclass(slots=True)
class PollCounters:
    """What readers could not get."""

    gone_count: int = 0
    """Polls that began below the oldest message."""
    damaged_count: int = 0
    """Polls that met damaged or lost messages."""
    known: set[tuple[str, int, int]] = field(default_factory=set)
    """Ranges that were logged: directory, first and end offset."""

    def note(self, partition: Partition, skipped: SkippedRange) -> None:
        """Messages were passed over."""
        if skipped.reason is SkipReason.RESERVED:
            # Numbers that no message ever had.
            return
        if skipped.reason is SkipReason.TRIMMED:
            self.gone_count += 1
            return
        self.damaged_count += 1
        place = (str(partition.log.directory), skipped.first_offset, skipped.end_offset)
        if place not in self.known and len(self.known) < _KNOWN_COUNT_MAX:
            self.known.add(place)
            _log.error(
                "poll skipped %s messages directory=%s first_offset=%d end_offset=%d", skipped.reason.value, *place
            )


class Polls:
    """Reads messages for clients, and commits how far they got."""

    def __init__(
        self,
        state: CatalogState,
        partitions: PartitionRegistry,
        groups: ConsumerGroups,
        buffers: ReadBuffers,
        settings: BrokerSettings,
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._groups = groups
        self._buffers = buffers
        self._size_max = settings.poll_size_max
        self._keys: dict[Identifier, ConsumerKey] = {}
        """Keys of single consumers that were here before: each polls many times."""
        self._group_ids: dict[tuple[int, int, Identifier], int] = {}
        """Groups by name, which the catalog finds only by looking at all of a topic. Hints: they may be old."""
        self.rows = RowCounts(settings.limits)
        """Partitions that are waited for."""
        self._turns = PollTurns()
        self.recent = RecentReads(buffers)
        self.counters = PollCounters()

    # --- which partition ---

    def group_of(self, topic: OpenTopic, identifier: Identifier) -> tuple[int, int, int]:
        """The ids of a consumer group of a topic. Raises 5000, or 2010 if the topic was deleted meanwhile."""
        try:
            found = self._state.streams[topic.stream_id].topics[topic.topic_id]
        except KeyError:
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "the topic was deleted meanwhile") from None
        if type(identifier) is int and identifier in found.groups:
            return topic.stream_id, topic.topic_id, identifier
        place = (topic.stream_id, topic.topic_id, identifier)
        group = found.groups.get(self._group_ids.get(place, -1))
        if group is None or group.name != identifier:
            group = find_group(found, identifier)
            if len(self._group_ids) >= _KNOWN_COUNT_MAX:
                self._group_ids.clear()
            self._group_ids[place] = group.group_id
        return topic.stream_id, topic.topic_id, group.group_id

    def target(
        self, session: Session, topic: OpenTopic, consumer: Consumer, partition_id: int | None
    ) -> tuple[Partition, ConsumerKey]:
        """The partition that a consumer reads, and the key of what it stores there. Raises as ``poll``."""
        if consumer.kind is _GROUP:
            group = self.group_of(topic, consumer.identifier)
            partition_id = self._groups.partition_for_poll(session, group, partition_id)
            return topic.partition(partition_id), group_key(group[2])
        identifier = consumer.identifier
        return topic.partition(partition_id or 0), self._keys.get(identifier) or self._new_key(identifier)

    def _new_key(self, identifier: Identifier) -> ConsumerKey:
        if len(self._keys) >= _KNOWN_COUNT_MAX:
            self._keys.clear()
        key = self._keys[identifier] = consumer_key(identifier)
        return key

    # --- polls of SDKs ---

    def poll(
        self, session: Session, address: TopicAddress, command: PollMessages, size_max: int = sys.maxsize
    ) -> Polled | Waiting[Polled]:
        """Read for a client. What is gone or damaged is passed over and counted.

        Raises ``CommandRejected``: no such partition (3007), another one than the client means (87), or one that is not
        the group member's (5006, 5009).
        """
        topic = self._partitions.topics.get(address) or self._partitions.at(address)
        partition, key = self.target(session, topic, command.consumer, command.partition_id)
        if command.incarnation:
            check_incarnation(partition, command.incarnation)
        offset = start_of_poll(partition, key, command)
        if size_max > self._size_max:
            size_max = self._size_max
        if offset is None or command.auto_commit or command.kind is _LAST:
            return attempt(self._poll_in_steps(session, topic, partition, key, command, offset, size_max))
        found = self._try_read(session, partition, offset, command.count, size_max)
        if isinstance(found, Waiting):
            return found.then(partial(self.polled, partition), _as_it_is)
        return self.polled(partition, found)

    async def _poll_in_steps(
        self,
        session: Session,
        topic: OpenTopic,
        partition: Partition,
        key: ConsumerKey,
        command: PollMessages,
        offset: int | None,
        size_max: int,
    ) -> Polled:
        """``poll`` with something to do before or after the read. ``offset`` is where it begins, if that is known."""
        if offset is None:
            offset = await find_start_of_poll(partition, command)
        result = await self.read(session, partition, offset, command.count, size_max)
        if result is not None and command.kind is _LAST:
            result = await self._read_newest(session, partition, command.count, size_max, result)
        reply = self.polled(partition, result)
        if result is not None and command.auto_commit:
            await self.commit(session, topic, partition, key, command.consumer, result)
        return reply

    def polled(self, partition: Partition, result: ReadResult | None) -> Polled:
        """The reply to a poll. What was passed over is counted."""
        log, reader = partition.log, partition.reader
        current_offset = max((log.readable_end if log.ledger.state.gaps else log.visible_end) - 1, 0)
        if result is None:
            return Polled(log.identity.partition_id, current_offset, 0, (), 0, log.identity.incarnation)
        for skipped in result.skipped:
            self.counters.note(partition, skipped)
        count, size = result.message_count, result.size
        reader.polled_count += count
        reader.polled_size += size
        identity = log.identity
        return Polled(identity.partition_id, current_offset, count, result.pieces, size, identity.incarnation)

    async def _read_newest(
        self, session: Session, partition: Partition, count: int, size_max: int, result: ReadResult
    ) -> ReadResult | None:
        """Who asks for the newest messages gets the newest: those that are left out of a limited reply are the older.

        As many as came the first time come again, from further behind; fewer if they are larger there.
        """
        found: ReadResult | None = result
        while found is not None and found.message_count < count and found.next_offset < partition.log.visible_end:
            count = max(found.message_count, 1)
            found = await self.read(session, partition, await partition.reader.offset_of_last(count), count, size_max)
            if count == 1:
                break
        return found

    # --- reads into memory that is leased until the reply is sent ---

    async def read(
        self, session: Session, partition: Partition, offset: int, count: int, size_max: int
    ) -> ReadResult | None:
        """Messages from ``offset`` on, or None if there is nothing. The memory is the session's until its next read."""
        found = self._try_read(session, partition, offset, count, size_max)
        return await found if isinstance(found, Waiting) else found

    def _try_read(
        self, session: Session, partition: Partition, offset: int, count: int, size_max: int, has_turn: bool = False
    ) -> ReadResult | Waiting[ReadResult | None] | None:
        """Messages from ``offset`` on, or what has to be waited for. ``has_turn``: it waited for one (large polls)."""
        log, reader = partition.log, partition.reader
        visible_end = log.visible_end
        if not count or offset >= visible_end:
            if log.is_offline:
                log.check_readable()
            return None
        if session.last_poll_size > LIGHT_SIZE and not has_turn and self._turns.is_spent:
            return attempt(self._read_in_turn(session, partition, offset, count, size_max))
        if reader.followed_count and (shared := self._find_recent(session, partition, offset, count, size_max)):
            return shared
        buffer, leased_size = self._buffers.lease(session, size_max)
        found: ReadResult | Waiting[ReadResult] | None = None
        if buffer is not None:
            try:
                found = reader.try_read(offset, count, leased_size, buffer)
            except MemoryNeeded:
                pass  # The next read asks for it again, and waits until it has it.
            except BaseException:
                self._buffers.drop(session)
                raise
            if type(found) is ReadResult and found.message_count and self._buffers.settle(session, found.size):
                session.last_poll_size = size = found.size
                if size > LIGHT_SIZE:
                    self._note_large(session, partition, (offset, count, size_max, log.epoch), found, visible_end)
                return found
        question = offset, count, size_max, log.epoch
        return attempt(self._read_patiently(session, partition, question, leased_size, buffer, found))

    def _find_recent(
        self, session: Session, partition: Partition, offset: int, count: int, size_max: int
    ) -> ReadResult | None:
        """What another reader of the partition has just read."""
        shared = self.recent.find(session, partition, (offset, count, size_max, partition.log.epoch))
        if shared is not None:
            session.last_poll_size = shared.size
            # It costs no read, but is sent, and perhaps converted.
            self._turns.note(shared.size)
        return shared

    def _note_large(
        self, session: Session, partition: Partition, question: Question, result: ReadResult, visible_end: int
    ) -> None:
        self._turns.note(result.size)
        self.recent.note(session, partition, question, result, visible_end)

    async def _read_in_turn(
        self, session: Session, partition: Partition, offset: int, count: int, size_max: int
    ) -> ReadResult | None:
        """Read when others have had their turn."""
        await self._turns.wait()
        _check_present(session, partition)
        found = self._try_read(session, partition, offset, count, size_max, has_turn=True)
        return await found if isinstance(found, Waiting) else found

    async def _read_patiently(
        self,
        session: Session,
        partition: Partition,
        question: Question,
        size_max: int,
        buffer: ReadBuffer | None,
        found: ReadResult | Waiting[ReadResult] | None,
    ) -> ReadResult:
        """Read on if disk or memory has to be waited for, or if there are holes. ``found`` is the read that began."""
        start_offset, count, _, _ = question
        offset, visible_end = start_offset, partition.log.visible_end
        if buffer is None:
            buffer = await self._buffers.lease_later(session, size_max)
            # Many may get memory at the same moment.
            await self._turns.wait()
            _check_present(session, partition)
        result: ReadResult | None
        while True:
            try:
                if found is None:
                    found = partition.reader.try_read(offset, count, size_max, buffer)
                result = await found if isinstance(found, Waiting) else found
                while not result.message_count and offset < result.next_offset < partition.log.visible_end:
                    # Nothing but holes so far.
                    offset = result.next_offset
                    more = await partition.reader.read(offset, count=count, size_max=size_max, buffer=buffer)
                    result = more._replace(skipped=(*result.skipped, *more.skipped))
                needed_size = result.size
            except MemoryNeeded as needed:
                # Of one message, or of the batch that it is in, which is checked as a whole.
                needed_size, offset, result = needed.size, start_offset, None
                # Its frames refer to what was read so far.
                needed.__traceback__ = None
            except BaseException:
                # A thread may still write into it.
                self._buffers.drop(session)
                raise
            has_room = self._buffers.settle(session, needed_size)
            if has_room and result is not None:
                if not result.message_count:
                    # Whoever waits from here on waits for something else.
                    partition.reader.hole = start_offset, result.next_offset
                session.last_poll_size = result.size
                if result.size > LIGHT_SIZE:
                    self._note_large(session, partition, question, result, visible_end)
                return result
            found = result = None
            if not has_room:
                # Whoever waits for memory holds none.
                del buffer
                buffer = await self._buffers.lease_later(session, needed_size)
                _check_present(session, partition)

    async def commit(
        self,
        session: Session,
        topic: OpenTopic,
        partition: Partition,
        key: ConsumerKey,
        consumer: Consumer,
        result: ReadResult,
    ) -> None:
        """Store how far a poll got."""
        if result.message_count:
            self._check_commit(session, topic, consumer, partition.log.identity.partition_id)
            await partition.store_offset(
                key, result.next_offset - 1, persisted=topic.persists_offsets, only_forward=True
            )

    def _check_commit(self, session: Session, topic: OpenTopic, consumer: Consumer, partition_id: int) -> None:
        """Refuse a commit for one who is gone, or whose partition is another's, since the read began.

        The next owner would pass over messages that nobody got.
        """
        if session.ended is not None:
            raise session.ended.with_traceback(None)
        if consumer.kind is _GROUP:
            self._groups.partition_for_commit(session, self.group_of(topic, consumer.identifier), partition_id)

    # --- polls of our own ---

    async def wait(
        self, session: Session, address: TopicAddress, command: WaitForMessages, check_access: Callable[[], None]
    ) -> Polled:
        """Read, and wait for messages if there are none. Nothing is passed over in silence.

        ``check_access`` is asked once more before anything is committed or answered: it may have been a long wait.

        Raises:
            OffsetsUnavailable: messages that were asked for are gone or damaged.
            CommandRejected: as ``poll``.
        """
        topic, poll, loop = self._partitions.at(address), command.poll, asyncio.get_running_loop()
        deadline = loop.time() + min(command.wait, WAIT_MAX) / 1_000_000
        size_max = max(min(command.size_max, self._size_max), 1)
        named = poll.partition_id
        if named is None and poll.consumer.kind is _GROUP:
            return await self._wait_in_turn(session, topic, poll, size_max, deadline, check_access)
        while True:
            partition, key = self.target(session, topic, poll.consumer, named)
            # If it has to wait: the same one again, if it is still the member's.
            named = partition.log.identity.partition_id
            seen_end = partition.log.visible_end
            result = await self._read_strictly(session, partition, key, poll, size_max)
            check_access()
            if result is not None and result.message_count:
                if poll.auto_commit:
                    await self.commit(session, topic, partition, key, poll.consumer, result)
                return self.polled(partition, result)
            remaining = deadline - loop.time()
            if not poll.count or remaining <= 0:
                return self.polled(partition, None)
            # Or for what is wanted, if that is further away: other messages need not wake it.
            awaited = max(seen_end, start_of_poll(partition, key, poll) or 0)
            if partition.log.visible_end == seen_end and not await wait_for_any(
                session, [(partition, awaited)], remaining
            ):
                check_access()
                return self.polled(partition, None)
            if partition.is_deleted:
                raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, f"partition {named} was deleted meanwhile")

    async def _wait_in_turn(
        self,
        session: Session,
        topic: OpenTopic,
        poll: PollMessages,
        size_max: int,
        deadline: float,
        check_access: Callable[[], None],
    ) -> Polled:
        """``wait`` for a member that names no partition: read the next of its partitions that has messages.

        It waits for all of them, and for others that it may be given meanwhile.
        """
        group, loop = self.group_of(topic, poll.consumer.identifier), asyncio.get_running_loop()
        while True:
            assignment = self._groups.assignment(session, group)
            awaited: list[tuple[Partition, int]] = []
            for _ in assignment.partition_ids:
                partition, key = self.target(session, topic, poll.consumer, None)
                seen_end = partition.log.visible_end
                result = await self._read_strictly(session, partition, key, poll, size_max)
                check_access()
                if result is not None and result.message_count:
                    if poll.auto_commit:
                        await self.commit(session, topic, partition, key, poll.consumer, result)
                    return self.polled(partition, result)
                awaited.append((partition, max(seen_end, start_of_poll(partition, key, poll) or 0)))
                if self._groups.assignment(session, group).generation != assignment.generation:
                    break
            remaining = deadline - loop.time()
            if not poll.count or remaining <= 0:
                return _NOTHING
            if self._groups.assignment(session, group).generation != assignment.generation or any(
                partition.log.visible_end > offset for partition, offset in awaited
            ):
                continue
            with self.rows.counted(session.user_id, len(awaited)):
                is_woken = await wait_for_any(session, awaited, remaining)
            if not is_woken:
                check_access()
                return _NOTHING

    async def find_start_offsets(self, address: TopicAddress, command: FindStartOffsets) -> StartOffsets:
        """Where a subscription starts. Raises ``CommandRejected`` (3007) without such a partition."""
        topic, selection = self._partitions.at(address), command.selection
        key = consumer_key(selection.consumer)
        found: dict[int, int] = {}
        for partition_id in command.partition_ids:
            partition = topic.partition(partition_id)
            if partition_id in selection.offsets:
                found[partition_id] = selection.offsets[partition_id]
            elif selection.start is None:
                found[partition_id] = partition.log.visible_end
            else:
                place = command.stream, command.topic, partition_id
                start = selection.start, selection.value, selection.count
                poll = PollMessages(_NOBODY, *place, *start, auto_commit=False)
                offset = start_of_poll(partition, key, poll)
                found[partition_id] = await find_start_of_poll(partition, poll) if offset is None else offset
        return StartOffsets(found)

    async def find(
        self, session: Session, address: TopicAddress, command: FindMessages, wanted: MessageFilter
    ) -> FoundMessages:
        """Look for messages that match a filter. Only a part of the log: the reply says where to continue.

        Raises:
            OffsetsUnavailable: messages that were asked for are gone or damaged.
            CommandRejected: no such partition (3007).
        """
        partition = self._partitions.at(address).partition(command.partition_id)
        offset = command.offset
        poll = PollMessages(_NOBODY, *address, command.partition_id, _OFFSET, offset, SEARCH_COUNT, auto_commit=False)
        result = await self._read_strictly(session, partition, consumer_key(0), poll, SEARCH_SIZE)
        if result is None:
            return FoundMessages(offset, offset, offset)
        found = await search(result.pieces, wanted, lambda: _check_present(session, partition))
        return FoundMessages(*(found or (result.next_offset, result.next_offset)), result.next_offset)

    async def wait_for_arrivals(self, session: Session, address: TopicAddress, command: WaitForArrivals) -> Arrivals:
        """Wait until one of several partitions has something to read, or the member's partitions are others.

        Raises:
            CommandRejected: no such partition (3007), no member of the group (5006), or too many waits (20010).
        """
        topic, loop = self._partitions.at(address), asyncio.get_running_loop()
        deadline = loop.time() + min(command.wait, WAIT_MAX) / 1_000_000
        # One row for each partition, whatever was asked: the first message that is wanted there ends the wait.
        wanted: dict[int, int] = {}
        for partition_id, offset in command.positions:
            wanted[partition_id] = min(offset, wanted.get(partition_id, offset))
        places = [(topic.partition(partition_id), offset) for partition_id, offset in wanted.items()]
        is_hurried = False
        with self.rows.counted(session.user_id, len(command.positions)):
            while True:
                generation = self._generation(session, topic, command.consumer)
                ready = [partition for partition, offset in places if _has_arrived(partition, offset)]
                remaining = deadline - loop.time()
                if ready or generation != command.generation or remaining <= 0 or is_hurried:
                    return Arrivals(generation, tuple(partition.log.identity.partition_id for partition in ready))
                is_hurried = not await wait_for_any(session, places, remaining)

    async def wait_for_topics(
        self, session: Session, wanted: Sequence[tuple[TopicAddress, int, int]], wait: int
    ) -> ArrivalsInTopics:
        """Wait until there is a message at one of several offsets, each in a partition of any topic.

        Raises:
            CommandRejected: no such partition (3007), or too many waits (20010).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait, WAIT_MAX) / 1_000_000
        places = [
            (self._partitions.at(address).partition(partition_id), offset) for address, partition_id, offset in wanted
        ]
        # A partition may be in several rows.
        lowest: dict[Partition, int] = {}
        for partition, offset in places:
            lowest[partition] = min(offset, lowest.get(partition, offset))
        is_hurried = False
        with self.rows.counted(session.user_id, len(places)):
            while True:
                ready = tuple(number for number, place in enumerate(places) if _has_arrived(*place))
                remaining = deadline - loop.time()
                if ready or remaining <= 0 or is_hurried:
                    return ArrivalsInTopics(ready)
                is_hurried = not await wait_for_any(session, list(lowest.items()), remaining)

    def _generation(self, session: Session, topic: OpenTopic, consumer: Consumer) -> int:
        if consumer.kind is not _GROUP:
            return 0
        return self._groups.assignment(session, self.group_of(topic, consumer.identifier)).generation

    async def _read_strictly(
        self, session: Session, partition: Partition, key: ConsumerKey, poll: PollMessages, size_max: int
    ) -> ReadResult | None:
        offset = start_of_poll(partition, key, poll)
        if offset is None:
            offset = await find_start_of_poll(partition, poll)
        start_offset = partition.reader.start_offset if offset < partition.log.start_offset else offset
        if offset < start_offset:
            gone = SkippedRange(offset, start_offset, SkipReason.TRIMMED)
            self.counters.note(partition, gone)
            raise _unavailable(gone)
        result = await self.read(session, partition, offset, poll.count, size_max)
        for skipped in result.skipped if result is not None else ():
            self.counters.note(partition, skipped)
            if skipped.reason in _UNAVAILABLE:
                raise _unavailable(skipped)
        return result


def _has_arrived(partition: Partition, offset: int) -> bool:
    """Whether there is a message at ``offset`` or later, or there can never be one."""
    return partition.log.readable_end > offset or partition.is_unavailable


def _check_present(session: Session, partition: Partition) -> None:
    """After a wait: raise if the client or the partition is gone."""
    if session.ended is not None:
        raise session.ended.with_traceback(None)
    if partition.is_deleted:
        raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, "the partition was deleted in the meantime")


def _unavailable(skipped: SkippedRange) -> OffsetsUnavailable:
    code, reason = _UNAVAILABLE[skipped.reason]
    return OffsetsUnavailable(code, first_offset=skipped.first_offset, end_offset=skipped.end_offset, reason=reason)


def _as_it_is(error: BaseException) -> Exception:
    assert isinstance(error, Exception)
    return error


async def wait_for_any(
    session: Session, places: Sequence[tuple[Partition, int]], seconds: float | None, *, is_parked: bool = False
) -> bool:
    """Wait until there may be a message at an offset of one of several partitions.

    ``seconds`` is None if there is no limit. Returns False if the time is over, or if the client asks for something
    else meanwhile, unless the read is parked. Raises ``CommandRejected`` if the connection goes.
    """
    woken = asyncio.get_running_loop().create_future()
    if is_parked:
        session.parked |= {woken}
    else:
        session.waiting = woken
    for partition, offset in places:
        partition.readers.wait_for(woken, offset)
    try:
        await asyncio.wait((woken,), timeout=seconds)
        if woken.cancelled():
            raise CommandRejected(ErrorCode.DISCONNECTED, "the connection is closed")
        return woken.done() and woken.result()
    finally:
        if is_parked:
            session.parked -= {woken}
        else:
            session.waiting = None
        woken.cancel()
        for partition, _ in places:
            partition.readers.stop_waiting(woken)


def start_of_poll(partition: Partition, key: ConsumerKey, command: PollMessages) -> int | None:
    """The offset at which a poll begins to read; None if it must be looked up (``find_start_of_poll``)."""
    log, reader, kind = partition.log, partition.reader, command.kind
    if kind is _NEXT:
        stored = log.offsets.get(key)
        if stored is not None:
            return stored + 1
    elif kind is _OFFSET:
        return command.value
    elif kind is not _FIRST:
        return _start_of_last(reader, command.count) if kind is _LAST else None
    # As ``reader.start_offset``.
    return log.start_offset if reader.past is None else reader.start_offset


def _start_of_last(reader: PartitionReader, count: int) -> int | None:
    if reader.past is not None:
        return None
    try:
        return reader.disk.offset_of_last(count, wait=False)
    except BlockingIOError:
        return None


async def find_start_of_poll(partition: Partition, command: PollMessages) -> int:
    """The offset at which a poll begins to read if only the log can tell."""
    if command.kind is _LAST:
        return await partition.reader.offset_of_last(command.count)
    return await partition.reader.offset_at_time(command.value)
