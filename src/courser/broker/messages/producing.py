"""Sending: which partition messages go to, and their way into it.

On the path of every send: dictionary look-ups, one append, nothing else.
"""

import asyncio
from concurrent.futures import Executor
from functools import partial

from courser.api.commands import SendMessages
from courser.api.replies import Sent
from courser.broker.partition.disk_watch import DiskWatch
from courser.broker.partition.message_keys import with_key
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry, check_incarnation
from courser.broker.partition.waiting import Waiting, attempt
from courser.broker.upkeep.retention import Retention
from courser.catalog.directories import identity_of
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode, PartitionReadOnly
from courser.model.identifiers import TopicAddress
from courser.model.messaging import ByKey, Partitioning, ToPartition
from courser.records.batch import Batch
from courser.records.message_keys import partition_of_key
from courser.records.stored_header import PartitionIdentity
from courser.storage.partition_log import Appended
from courser.storage.settings import DEFAULT_LIMITS
from courser.storage.staged_file import StagingTarget

_LIMIT_SHARE = 64
"""A topic at its limit is measured again after this share of it: the sum over all partitions is not for every send."""
_EXCESS_SHARE = 4
"""By this share a topic may pass its limit before sends wait for what is deleted: a slow disk is not to be overrun."""
_KEYED_COUNT_MAX = 1000
"""Messages that get their key on the event loop: some 10 us for each of them, if all have headers of their own."""
_REMOTE_COUNT_MIN = 100
"""Topics of other processes that are remembered before any are forgotten."""


class Sends:
    """Appends what clients send."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        pool: Executor,
        *,
        disk_watch: DiskWatch,
        state: CatalogState,
        delete_oldest_segments: bool,
        retention: Retention,
    ) -> None:
        """``disk_watch`` says whether the disk has enough free space.

        ``retention`` is told of topics that have grown to their limit, if their oldest segments may go.
        """
        self._partitions = partitions
        self._pool = pool
        self._disk_watch = disk_watch
        self._state = state
        self._remote: dict[TopicAddress, OpenTopic] = {}
        """Topics of other processes that messages are staged for: whose turn it is. Some may have been deleted."""
        self._remote_count_max = _REMOTE_COUNT_MIN
        """At so many, deleted ones are forgotten."""
        self._deletes_oldest = delete_oldest_segments
        self._retention = retention

    def append(self, address: TopicAddress, command: SendMessages) -> Sent | Waiting[Sent]:
        """Append the batches of a command to one partition, in order. Gives the reply when it may be acknowledged.

        If one of several batches fails, those before it are kept, and the client is told of the failure alone.

        Raises:
            CommandRejected: no such partition, a topic that is full, or too little free space on the disk.
            DiskFull, StorageFailure, PartitionReadOnly: not acknowledged.
        """
        if self._disk_watch.refusal is not None:
            self.check_space()
        topic = self._partitions.topics.get(address) or self._partitions.at(address)
        partitioning, batches = command.partitioning, command.batches
        if type(partitioning) is not ToPartition or topic.size_limit is not None or len(batches) != 1:
            return attempt(self._append_in_steps(topic, command))
        partition_id = partitioning.partition_id
        partition = topic.partition(partition_id)
        if command.incarnation:
            check_incarnation(partition, command.incarnation)
        try:
            appended = partition.try_append(batches[0])
        except PartitionReadOnly as error:
            raise _explain(partition, error) from None
        if isinstance(appended, Waiting):
            return appended.then(partial(_sent, topic, partition_id), partial(_explain, partition))
        return Sent(topic.stream_id, topic.topic_id, partition_id, appended[0])

    def check_space(self) -> None:
        """Raise 20001 if the disk has less free space than the configured minimum."""
        if (refusal := self._disk_watch.refusal) is not None:
            raise CommandRejected(ErrorCode.DISK_FULL, refusal)

    async def _append_in_steps(self, topic: OpenTopic, command: SendMessages) -> Sent:
        """Append what needs something done first: a partition chosen, a key added, room made."""
        partitioning, batches = command.partitioning, command.batches
        if type(partitioning) is not ToPartition and any(batch.producer is not None for batch in batches):
            # Sent again, it might go to another partition, which would not recognise it.
            reason = "an idempotent producer must name the partition of a batch"
            raise CommandRejected(ErrorCode.PRODUCER_NEEDS_PARTITION, reason)
        partition_id = choose_partition(topic, partitioning)
        partition = topic.partition(partition_id)
        check_incarnation(partition, command.incarnation)
        if type(partitioning) is ByKey:
            batches = await self.with_key(batches, partitioning.key)
        size = sum(batch.size for batch in batches)
        if topic.size_limit is not None:
            cleaning = self.take_room(topic, topic.size_limit, size)
            if cleaning is not None:
                await asyncio.wait((cleaning,))
        try:
            first = await partition.append(batches[0])
            for batch in batches[1:]:
                # For the client they are one batch: they have one time.
                await partition.append(batch, timestamp=first.timestamp)
        except PartitionReadOnly as error:
            raise _explain(partition, error) from None
        limit = topic.size_limit
        if limit is not None and size > DEFAULT_LIMITS.inline_size and topic.size > limit and self._deletes_oldest:
            # The cleaner that was told before may have found the topic as it was before the write.
            self._retention.hurry(topic)
        return Sent(topic.stream_id, topic.topic_id, partition_id, first.base_offset)

    async def flush(self, address: TopicAddress, partition_id: int, *, fsync: bool) -> None:
        """Wait for the sends that were started before, and for a sync if one is asked for. Nothing is only in memory.

        Raises:
            CommandRejected: no such partition.
            PartitionReadOnly: the sync failed.
        """
        partition = self._partitions.at(address).partition(partition_id)
        await partition.settle()
        if fsync:
            await partition.sync()

    def target_of(self, address: TopicAddress, partitioning: Partitioning) -> StagingTarget:
        """Which partition messages would go to. Raises 3007 or 3008."""
        if not self._partitions.owns(*address):
            identity = self._remote_identity(address, partitioning)
        else:
            topic = self._partitions.at(address)
            identity = topic.partition(choose_partition(topic, partitioning)).log.identity
        return StagingTarget(*address, identity.topic_uuid, identity.partition_id, identity.incarnation)

    def _remote_identity(self, address: TopicAddress, partitioning: Partitioning) -> PartitionIdentity:
        """The identity of a partition of another process: only the catalog of its topic is known here."""
        topic = self._state.topic(*address)
        if topic is None:
            raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "the topic was deleted in the meantime")
        place = self._remote.get(address)
        if place is None:
            self._forget_deleted()
            place = self._remote[address] = OpenTopic(*address, topic.options)
        partition_id = choose_partition(place, partitioning, len(topic.partitions))
        if partition_id >= len(topic.partitions):
            reason = f"the topic has {len(topic.partitions)} partitions, and none with number {partition_id}"
            raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, reason)
        return identity_of(topic, topic.partitions[partition_id])

    def _forget_deleted(self) -> None:
        if len(self._remote) >= self._remote_count_max:
            known = self._remote.items()
            self._remote = {address: place for address, place in known if self._state.topic(*address) is not None}
            self._remote_count_max = max(2 * len(self._remote), _REMOTE_COUNT_MIN)

    async def with_key(self, batches: list[Batch], key: bytes) -> list[Batch]:
        """The batches with the key added to every message that has none; many or large ones on another thread."""

        def work() -> list[Batch]:
            return [with_key(batch, key) for batch in batches]

        count, size = sum(batch.count for batch in batches), sum(batch.size for batch in batches)
        if count <= _KEYED_COUNT_MAX and size <= DEFAULT_LIMITS.inline_size:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def take_room(self, topic: OpenTopic, limit: int, size: int) -> asyncio.Future[None] | None:
        """Count bytes against the limit of a topic. Raises 3009 if they do not fit and nothing may be deleted.

        Returns what should be waited for first, if the topic is far beyond its limit.
        """
        if topic.room < size:
            topic.room = max(limit - topic.size, 0)
        if topic.room >= size:
            topic.room -= size
        elif self._deletes_oldest:
            topic.room = limit // _LIMIT_SHARE
            cleaning = self._retention.hurry(topic)
            return cleaning if topic.size - limit > limit // _EXCESS_SHARE else None
        else:
            reason = f"the topic is full: {size} more bytes would exceed its limit of {limit} bytes"
            raise CommandRejected(ErrorCode.TOPIC_FULL, reason)
        return None


def _sent(topic: OpenTopic, partition_id: int, appended: Appended) -> Sent:
    return Sent(topic.stream_id, topic.topic_id, partition_id, appended.base_offset)


def _explain(partition: Partition, error: BaseException) -> Exception:
    """What a client is told of a send that was not acknowledged."""
    assert isinstance(error, Exception)
    if isinstance(error, PartitionReadOnly) and partition.is_deleted:
        reason = f"partition {partition.log.identity.partition_id} was deleted meanwhile"
        return CommandRejected(ErrorCode.PARTITION_NOT_FOUND, reason)
    return error


def choose_partition(topic: OpenTopic, partitioning: Partitioning, count: int | None = None) -> int:
    """The number of the partition. Raises 3008 if there is none to choose from.

    ``count`` is that of a topic whose partitions are open in another process.
    """
    if type(partitioning) is ToPartition:
        return partitioning.partition_id
    count = len(topic.partitions) if count is None else count
    if not count:
        raise CommandRejected(ErrorCode.NO_PARTITIONS, "the topic has no partitions")
    if type(partitioning) is ByKey:
        return partition_of_key(partitioning.key, count)
    turn = topic.turn % count
    topic.turn = turn + 1
    return turn
