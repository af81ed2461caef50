"""Stored offsets: how far consumers and groups got, partition by partition."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.consuming import consumer_key, current_offset, group_key
from courser.broker.lookup import find_open_topic
from courser.broker.partition import Partition
from courser.broker.partition_registry import OpenTopic
from courser.broker.sessions import Session
from courser.errors import ConsumerOffsetNotFound
from courser.model.consumers import ConsumerKind
from courser.model.permissions import Action
from courser.storage.offset_table import ConsumerKey


async def get_consumer_offset(broker: Broker, session: Session, command: c.GetConsumerOffset) -> r.StoredOffset:
    """Of a group: to be read by anybody who may poll, member or not."""
    topic = _find_topic(broker, session, command)
    consumer = command.consumer
    is_group = consumer.kind is ConsumerKind.GROUP
    key = (
        group_key(broker.polls.group_of(topic, consumer.identifier)[2])
        if is_group
        else consumer_key(consumer.identifier)
    )
    partition = topic.partition(command.partition_id or 0)
    stored = partition.log.offsets.get(key)
    if stored is None:
        partition.log.check_readable()
        raise ConsumerOffsetNotFound
    return r.StoredOffset(partition.log.identity.partition_id, current_offset(partition), stored)


async def store_consumer_offset(broker: Broker, session: Session, command: c.StoreConsumerOffset) -> None:
    """It may move back, but not beyond the newest message (4100)."""
    topic = _find_topic(broker, session, command)
    partition, key = _target(broker, session, topic, command)
    await partition.store_offset(key, command.offset, persisted=topic.persists_offsets)


async def delete_consumer_offset(broker: Broker, session: Session, command: c.DeleteConsumerOffset) -> None:
    """3021 if nothing is stored."""
    topic = _find_topic(broker, session, command)
    partition, key = _target(broker, session, topic, command)
    await partition.delete_offset(key)


_OffsetCommand = c.GetConsumerOffset | c.StoreConsumerOffset | c.DeleteConsumerOffset


def _find_topic(broker: Broker, session: Session, command: _OffsetCommand) -> OpenTopic:
    topic = find_open_topic(broker.catalog.state, broker.partitions, command.stream, command.topic)
    broker.polls.check_consumer(topic, command.consumer)
    broker.access.require(session, Action.POLL_MESSAGES, topic.stream_id, topic.topic_id)
    return topic


def _target(
    broker: Broker, session: Session, topic: OpenTopic, command: c.StoreConsumerOffset | c.DeleteConsumerOffset
) -> tuple[Partition, ConsumerKey]:
    """Only the member that has a partition may change what its group stored there."""
    consumer = command.consumer
    if consumer.kind is ConsumerKind.GROUP:
        group = broker.polls.group_of(topic, consumer.identifier)
        partition_id = broker.groups.partition_for_commit(session, group, command.partition_id)
        return topic.partition(partition_id), group_key(group[2])
    return topic.partition(command.partition_id or 0), consumer_key(consumer.identifier)
