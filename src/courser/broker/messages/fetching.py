"""Reads of SDK 0.10: waiting until several partitions have enough messages, and reading them into one reply.

A reply belongs to one buffer of the connection, which the next read uses again. Messages of several partitions are
therefore copied; those of a single one are not.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from courser.api.commands import AwaitMessages, FetchMessages, ReadTarget
from courser.api.replies import Fetched, FetchedPartition, ReadyPartitions
from courser.broker.access.sessions import Session
from courser.broker.groups.groups import ConsumerGroups
from courser.broker.messages.consuming import Polls, current_offset, wait_for_any
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry, check_incarnation
from courser.broker.partition.read_buffers import ReadBuffers
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind, TopicAddress
from courser.model.messaging import PollingKind
from courser.storage.offset_table import ConsumerKey
from courser.storage.read_result import ReadResult

WAIT_MAX = 600_000_000
"""Microseconds that a read may wait for messages."""


@dataclass(slots=True)
class _Section:
    """What was read of one partition."""

    target: ReadTarget
    status: int = 0
    partition: Partition | None = None
    key: ConsumerKey | None = None
    next_offset: int = 0
    result: ReadResult | None = None
    pieces: Sequence[memoryview] = ()

    def refuse(self, error: CourserError) -> None:
        """Return nothing of this partition, and say why."""
        self.status, self.result, self.pieces = int(error.code), None, ()

    def described(self) -> FetchedPartition:
        """What the reply says about it."""
        partition, result = self.partition, self.result
        if partition is None or self.status:
            return FetchedPartition(self.target.partition_id, self.status, 0, 0, 0, self.next_offset, 0)
        return FetchedPartition(
            self.target.partition_id,
            0,
            current_offset(partition),
            0 if result is None else result.message_count,
            partition.log.identity.incarnation,
            self.next_offset,
            0 if result is None else result.size,
        )


class Fetches:
    """Carries out the fetches of all connections."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        groups: ConsumerGroups,
        polls: Polls,
        buffers: ReadBuffers,
        *,
        size_max: int,
    ) -> None:
        """``size_max``: bytes of a reply."""
        self._partitions = partitions
        self._groups = groups
        self._polls = polls
        self._buffers = buffers
        self._size_max = size_max

    # --- waiting ---

    async def wait(self, session: Session, address: TopicAddress, command: AwaitMessages) -> ReadyPartitions:
        """Wait until the partitions together have enough messages, or one of them cannot be read.

        Changes nothing, and may be cancelled at any time.

        Raises:
            CommandRejected: no such group (5000), no member of it (5006), or too many waits (20010).
        """
        topic, loop = self._partitions.at(address), asyncio.get_running_loop()
        deadline = loop.time() + min(command.wait, WAIT_MAX) / 1_000_000
        self._check_member(session, topic, command.consumer)
        starts = {
            target.partition_id: await topic.partition(target.partition_id).reader.offset_at_time(target.value)
            for target in command.targets
            if target.kind is PollingKind.TIMESTAMP and target.partition_id < len(topic.partitions)
        }
        ready, is_enough, awaited = self._look(session, topic, command, starts)
        if is_enough or deadline <= loop.time():
            return ReadyPartitions(ready)
        with self._polls.rows.counted(session.user_id, len(command.targets)):
            while not is_enough and (remaining := deadline - loop.time()) > 0:
                await wait_for_any(session, awaited, remaining, is_parked=True)
                ready, is_enough, awaited = self._look(session, topic, command, starts)
        return ReadyPartitions(ready)

    def _check_member(self, session: Session, topic: OpenTopic, consumer: Consumer) -> None:
        if consumer.kind is ConsumerKind.GROUP:
            self._groups.assignment(session, self._polls.group_of(topic, consumer.identifier))

    def _look(
        self, session: Session, topic: OpenTopic, command: AwaitMessages, starts: dict[int, int]
    ) -> tuple[tuple[int, ...], bool, list[tuple[Partition, int]]]:
        """What can be read, whether it is enough, and otherwise the offsets of the messages that are waited for."""
        ready: list[int] = []
        awaited: list[tuple[Partition, int]] = []
        missing_count = command.min_count
        # The message that completes them is known only if there is one partition.
        ahead_count = missing_count - 1 if len(command.targets) == 1 else 0
        for target in command.targets:
            try:
                partition, key = self._open(session, topic, command.consumer, target)
                start = starts.get(target.partition_id)
                offset = partition.reader.after_holes(_start(partition, key, target) if start is None else start)
            except CourserError:
                # The read says why.
                ready.append(target.partition_id)
                missing_count = 0
                continue
            log = partition.log
            count = log.readable_end - offset
            if count > 0:
                ready.append(target.partition_id)
                missing_count -= count
            awaited.append((partition, max(offset + ahead_count, log.visible_end)))
        return tuple(ready), missing_count <= 0, awaited

    def _open(
        self, session: Session, topic: OpenTopic, consumer: Consumer, target: ReadTarget
    ) -> tuple[Partition, ConsumerKey]:
        """The partition of a target. Raises why it cannot be read."""
        partition, key = self._polls.target(session, topic, consumer, target.partition_id)
        check_incarnation(partition, target.incarnation)
        if partition.is_deleted:
            raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, "the partition was deleted in the meantime")
        partition.log.check_readable()
        return partition, key

    # --- reading ---

    async def fetch(self, session: Session, address: TopicAddress, command: FetchMessages) -> Fetched:
        """Read partitions in the order of the request, until the reply is full.

        What is gone or damaged is passed over and counted.

        Raises:
            CommandRejected: no such group (5000), or no member of it (5006).
        """
        topic = self._partitions.at(address)
        self._check_member(session, topic, command.consumer)
        is_copied = len(command.targets) > 1
        sections: list[_Section] = []
        count_left, size_left = command.count, min(command.size_max, self._size_max)
        ledger, held_size = self._buffers.ledger, 0
        try:
            for target in command.targets:
                section, limit = _Section(target), min(size_left, target.size_max)
                try:
                    result = await self._read(session, topic, command.consumer, section, count_left, limit)
                except CourserError as error:
                    if session.ended is not None:
                        raise
                    section.refuse(error)
                    result = None
                if result is not None and result.size > limit:
                    # A single message. The client reads it alone, unless it only came too late.
                    if limit < target.size_max:
                        break
                    reason = f"the first message has {result.size} bytes, and at most {limit} are wanted"
                    section.refuse(CommandRejected(ErrorCode.READ_TOO_LARGE, reason))
                    result = None
                sections.append(section)
                if result is None:
                    continue
                count_left -= result.message_count
                size_left -= result.size
                section.pieces = result.pieces
                if is_copied:
                    held_size += result.size
                    exceeds = ledger.take(result.size)
                    section.pieces = (memoryview(b"".join(result.pieces)),)
                    self._buffers.give_back(session)
                    if exceeds:
                        break
                if not count_left or size_left <= 0:
                    break
            if command.auto_commit:
                await self._commit(session, topic, command.consumer, sections)
        finally:
            ledger.give_back(held_size)
        return _reply(sections, is_copied=is_copied)

    async def _read(
        self, session: Session, topic: OpenTopic, consumer: Consumer, section: _Section, count: int, size_max: int
    ) -> ReadResult | None:
        """Read one partition. None if there is nothing."""
        partition, key = self._open(session, topic, consumer, section.target)
        section.partition, section.key = partition, key
        section.next_offset = offset = _start(partition, key, section.target)
        result = await self._polls.read(session, partition, offset, count, size_max)
        if result is None:
            return None
        if result.size <= size_max:
            # It is counted as read.
            self._polls.polled(partition, result)
            section.next_offset = result.next_offset
            section.result = result
        return result

    async def _commit(
        self, session: Session, topic: OpenTopic, consumer: Consumer, sections: Sequence[_Section]
    ) -> None:
        """Store how far the read got in each partition. A partition where that fails is refused."""
        found = [section for section in sections if section.result is not None and section.result.message_count]
        await asyncio.gather(*(self._commit_one(session, topic, consumer, section) for section in found))

    async def _commit_one(self, session: Session, topic: OpenTopic, consumer: Consumer, section: _Section) -> None:
        assert section.partition is not None, "it was read"
        assert section.key is not None, "the same"
        assert section.result is not None, "the same"
        try:
            await self._polls.commit(session, topic, section.partition, section.key, consumer, section.result)
        except CourserError as error:
            if session.ended is not None:
                raise
            section.refuse(error)


def _reply(sections: Sequence[_Section], *, is_copied: bool) -> Fetched:
    pieces = tuple(piece for section in sections for piece in section.pieces)
    size = sum(map(len, pieces))
    return Fetched(tuple(section.described() for section in sections), pieces, size, is_copied)


def _start(partition: Partition, key: ConsumerKey, target: ReadTarget) -> int:
    """The offset at which a read begins; for what has to be looked up, that of the oldest message."""
    if target.kind is PollingKind.OFFSET:
        return target.value
    if target.kind is PollingKind.NEXT:
        stored = partition.log.offsets.get(key)
        if stored is not None:
            return stored + 1
    return partition.reader.start_offset
