"""Stored offsets, by address: how far consumers and groups got, partition by partition."""

import asyncio
import logging

from courser.api.commands import DeleteConsumerOffset, GetConsumerOffset, ResetGroupOffsets, StoreConsumerOffset
from courser.api.replies import StoredOffset
from courser.broker.access.sessions import Session
from courser.broker.groups.groups import ConsumerGroups, GroupKey
from courser.broker.messages.consuming import Polls, consumer_key, current_offset, group_key
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry, check_incarnation
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ConsumerOffsetNotFound, CourserError, ErrorCode, InvalidOffset
from courser.model.identifiers import ConsumerKind, Identifier, TopicAddress
from courser.storage.offset_table import ConsumerKey

_log = logging.getLogger(__name__)


class StoredOffsets:
    """What consumers have stored."""

    def __init__(self, partitions: PartitionRegistry, groups: ConsumerGroups, polls: Polls) -> None:
        self._partitions = partitions
        self._groups = groups
        self._polls = polls

    def get(self, address: TopicAddress, command: GetConsumerOffset) -> StoredOffset:
        """How far a consumer got. That of a group may be read by anyone who may poll, member or not.

        Raises:
            ConsumerOffsetNotFound: nothing is stored.
            CommandRejected: there is no such group or partition.
        """
        topic = self._partitions.at(address)
        consumer = command.consumer
        if consumer.kind is ConsumerKind.GROUP:
            key = group_key(self._group_id(topic, consumer.identifier))
        else:
            key = consumer_key(consumer.identifier)
        partition = topic.partition(command.partition_id or 0)
        check_incarnation(partition, command.incarnation)
        stored = partition.log.offsets.get(key)
        if stored is None:
            partition.log.check_readable()
            raise ConsumerOffsetNotFound
        return StoredOffset(partition.log.identity.partition_id, current_offset(partition), stored)

    async def store(self, session: Session, address: TopicAddress, command: StoreConsumerOffset) -> None:
        """Remember how far a consumer got. It may move back, but not beyond the newest message (4100)."""
        topic = self._partitions.at(address)
        partition, key = self._target(session, topic, command)
        await partition.store_offset(key, command.offset, persisted=topic.persists_offsets)

    async def delete(self, session: Session, address: TopicAddress, command: DeleteConsumerOffset) -> None:
        """Forget how far a consumer got. Raises 3021 if nothing is stored."""
        partition, key = self._target(session, self._partitions.at(address), command)
        await partition.delete_offset(key)

    async def reset_group(self, group: GroupKey, command: ResetGroupOffsets) -> None:
        """Set where a group continues to read. Nothing is changed if one of the partitions or offsets is invalid.

        Raises:
            CommandRejected: the group has members (20034), or there is no such partition (3007).
            InvalidOffset: an offset is beyond the end of its partition.
        """
        topic = self._partitions.at(TopicAddress(*group[:2]))
        wanted = {topic.partition(partition_id): offset for partition_id, offset in command.offsets}
        for partition, offset in wanted.items():
            partition.log.check_readable()
            if offset > partition.log.visible_end:
                raise InvalidOffset(offset=offset, next_offset=partition.log.visible_end)
        member_count = self._groups.member_count(group)
        if member_count and not command.is_forced:
            reason = f"consumer group {command.group!r} has {member_count} active members, which would undo the reset"
            raise CommandRejected(ErrorCode.GROUP_HAS_MEMBERS, reason)
        self._groups.remove_members(group)
        key = group_key(group[2])
        await asyncio.gather(*(_reset(partition, key, offset) for partition, offset in wanted.items()))

    def _target(
        self, session: Session, topic: OpenTopic, command: StoreConsumerOffset | DeleteConsumerOffset
    ) -> tuple[Partition, ConsumerKey]:
        """Only the member that owns a partition may change what its group has stored there."""
        consumer = command.consumer
        if consumer.kind is ConsumerKind.GROUP:
            group = self._polls.group_of(topic, consumer.identifier)
            partition_id = self._groups.partition_for_commit(session, group, command.partition_id)
            partition, key = topic.partition(partition_id), group_key(group[2])
        else:
            partition, key = topic.partition(command.partition_id or 0), consumer_key(consumer.identifier)
        check_incarnation(partition, command.incarnation)
        return partition, key

    def _group_id(self, topic: OpenTopic, identifier: Identifier) -> int:
        return self._polls.group_of(topic, identifier)[2]

    # --- groups that are deleted ---

    async def forget_group(self, group: GroupKey) -> None:
        """Delete what a group has stored, durably, in every partition of its topic.

        The id of a group is never used again: an offset that a failing disk keeps is never read.
        """
        stream_id, topic_id, group_id = group
        topic = self._partitions.topics.get(TopicAddress(stream_id, topic_id))
        if topic is None:
            return
        consumer = group_key(group_id)
        holders = [partition for partition in topic.partitions if partition.log.offsets.get(consumer) is not None]
        await asyncio.gather(*(_forget(partition, consumer) for partition in holders))

    async def forget_unknown_groups(self, state: CatalogState) -> None:
        """At a start: delete what deleted groups have stored. A crash may have come between the two deletions."""
        left: list[tuple[Partition, ConsumerKey]] = []
        for topic in self._partitions:
            known = _known_groups(state, topic)
            left += [
                (partition, consumer)
                for partition in topic.partitions
                for consumer, _ in partition.log.offsets.items()
                if consumer.kind is ConsumerKind.GROUP and consumer not in known
            ]
        await asyncio.gather(*(_forget(partition, consumer) for partition, consumer in left))


def _known_groups(state: CatalogState, topic: OpenTopic) -> set[ConsumerKey]:
    found = state.streams[topic.stream_id].topics[topic.topic_id]
    return {group_key(group_id) for group_id in found.groups}


async def _reset(partition: Partition, consumer: ConsumerKey, next_offset: int) -> None:
    """Continue at ``next_offset``. What is stored is the offset before it, so nothing can be stored for offset 0."""
    if next_offset:
        # Synced, so that a power cut does not undo a reset that was reported.
        await partition.store_offset(consumer, next_offset - 1, persisted=True)
    elif partition.log.offsets.get(consumer) is not None:
        await partition.delete_offset(consumer)


async def _forget(partition: Partition, consumer: ConsumerKey) -> None:
    try:
        await partition.delete_offset(consumer)
    except ConsumerOffsetNotFound:
        # A purge came first.
        return
    except CourserError as error:
        _log.warning(
            "could not delete the offset of a deleted group partition=%s reason=%s", partition.log.directory, error
        )
