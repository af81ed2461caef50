"""Consumer groups: the catalog remembers them, their members are connections."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.group_offsets import forget_group
from courser.broker.groups import GroupKey
from courser.broker.lookup import find_group, find_stream, find_topic
from courser.broker.sessions import Session
from courser.catalog import changes
from courser.catalog.entities import ConsumerGroup, Topic
from courser.model.identifiers import Identifier
from courser.model.permissions import Action


async def get_consumer_group(broker: Broker, session: Session, command: c.GetConsumerGroup) -> r.GroupDetails:
    """One group with its members."""
    topic, group, key = _find(broker, session, command.stream, command.topic, command.group)
    return _details(broker, topic, group, key)


async def get_consumer_groups(broker: Broker, session: Session, command: c.GetConsumerGroups) -> r.GroupList:
    """By id."""
    stream_id, topic = _find_topic(broker, session, command.stream, command.topic)
    groups = [topic.groups[group_id] for group_id in sorted(topic.groups)]
    return r.GroupList([_info(broker, topic, group, (stream_id, topic.topic_id, group.group_id)) for group in groups])


async def create_consumer_group(broker: Broker, session: Session, command: c.CreateConsumerGroup) -> r.GroupDetails:
    """Nobody is a member yet."""
    stream_id, topic = _find_topic(broker, session, command.stream, command.topic)
    change = changes.CreateGroup(stream_id, topic.topic_id, command.name, command.group_id)

    def make() -> changes.CreateGroup:
        broker.quotas.check_new_group(stream_id, topic.topic_id)
        return change

    group = await broker.catalog.submit_made(make)
    assert isinstance(group, ConsumerGroup), "creating a group makes one"
    return _details(broker, topic, group, (stream_id, topic.topic_id, group.group_id))


async def delete_consumer_group(broker: Broker, session: Session, command: c.DeleteConsumerGroup) -> None:
    """Its members are none any more; its stored offsets go with it."""
    _, _, key = _find(broker, session, command.stream, command.topic, command.group)
    await broker.catalog.submit(changes.DeleteGroup(*key))
    broker.groups.group_deleted(key)
    await forget_group(broker.partitions, key)


async def join_consumer_group(broker: Broker, session: Session, command: c.JoinConsumerGroup) -> None:
    """For as long as the connection lives."""
    _, _, key = _find(broker, session, command.stream, command.topic, command.group)
    broker.groups.join(session, key)


async def leave_consumer_group(broker: Broker, session: Session, command: c.LeaveConsumerGroup) -> None:
    """The partitions go to the others at once."""
    _, _, key = _find(broker, session, command.stream, command.topic, command.group)
    broker.groups.leave(session, key)


async def sync_consumer_group(broker: Broker, session: Session, command: c.SyncConsumerGroup) -> r.Assignment:
    """Which partitions are this member's now."""
    _, _, key = _find(broker, session, command.stream, command.topic, command.group)
    return broker.groups.assignment(session, key)


def _find_topic(broker: Broker, session: Session, stream: Identifier, topic: Identifier) -> tuple[int, Topic]:
    state = broker.catalog.state
    found_stream = find_stream(state, stream)
    found = find_topic(state, found_stream, topic)
    broker.access.require(session, Action.READ_TOPIC, found_stream.stream_id, found.topic_id)
    return found_stream.stream_id, found


def _find(
    broker: Broker, session: Session, stream: Identifier, topic: Identifier, group: Identifier
) -> tuple[Topic, ConsumerGroup, GroupKey]:
    """A group, and the permission to deal with it: existence comes first."""
    state = broker.catalog.state
    found_stream = find_stream(state, stream)
    found_topic = find_topic(state, found_stream, topic)
    found = find_group(found_topic, group)
    broker.access.require(session, Action.READ_TOPIC, found_stream.stream_id, found_topic.topic_id)
    return found_topic, found, (found_stream.stream_id, found_topic.topic_id, found.group_id)


def _info(broker: Broker, topic: Topic, group: ConsumerGroup, key: GroupKey) -> r.GroupInfo:
    return r.GroupInfo(group.group_id, len(topic.partitions), broker.groups.member_count(key), group.name)


def _details(broker: Broker, topic: Topic, group: ConsumerGroup, key: GroupKey) -> r.GroupDetails:
    return r.GroupDetails(_info(broker, topic, group, key), broker.groups.members(key))
