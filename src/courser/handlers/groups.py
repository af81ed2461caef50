"""Consumer groups: the catalog remembers them, their members are connections."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.groups.groups import GroupKey
from courser.catalog import changes
from courser.catalog.entities import ConsumerGroup, Topic


async def get_consumer_group(broker: Broker, session: Session, command: c.GetConsumerGroup) -> r.GroupDetails:
    """One group with its members."""
    topic, group, key = broker.finder.group(session, command)
    return _details(broker, topic, group, key)


async def get_consumer_groups(broker: Broker, session: Session, command: c.GetConsumerGroups) -> r.GroupList:
    """The groups of a topic, by id."""
    stream, topic = broker.finder.topic(session, command)
    groups = [topic.groups[group_id] for group_id in sorted(topic.groups)]
    return r.GroupList(
        [_info(broker, topic, group, (stream.stream_id, topic.topic_id, group.group_id)) for group in groups]
    )


async def create_consumer_group(broker: Broker, session: Session, command: c.CreateConsumerGroup) -> r.GroupDetails:
    """Create a group without members."""
    stream, topic = broker.finder.topic(session, command)
    change = changes.GroupCreation(stream.stream_id, topic.topic_id, command.name, command.group_id)
    group = await broker.catalog.submit(change)
    assert isinstance(group, ConsumerGroup), "creating a group makes one"
    return _details(broker, topic, group, (stream.stream_id, topic.topic_id, group.group_id))


async def delete_consumer_group(broker: Broker, session: Session, command: c.DeleteConsumerGroup) -> None:
    """Its members leave; its stored offsets are deleted with it."""
    _, _, key = broker.finder.group(session, command)
    await broker.catalog.submit(changes.GroupDeletion(*key))
    broker.groups.remove_members(key)
    await broker.offsets.forget_group(key)


async def join_consumer_group(broker: Broker, session: Session, command: c.JoinConsumerGroup) -> None:
    """Become a member until the connection ends."""
    _, _, key = broker.finder.group(session, command)
    broker.groups.join(session, key)


async def leave_consumer_group(broker: Broker, session: Session, command: c.LeaveConsumerGroup) -> None:
    """The other members get the partitions at once."""
    _, _, key = broker.finder.group(session, command)
    broker.groups.leave(session, key)


async def sync_consumer_group(broker: Broker, session: Session, command: c.SyncConsumerGroup) -> r.Assignment:
    """Which partitions this member owns now."""
    _, _, key = broker.finder.group(session, command)
    return broker.groups.assignment(session, key)


async def confirm_assignment(broker: Broker, session: Session, command: c.ConfirmAssignment) -> r.ConfirmedAssignment:
    """Describe the assignment of a member that has given up what it lost."""
    _, _, key = broker.finder.group(session, command)
    return broker.groups.confirm(session, key, command.generation)


async def get_group_lag(broker: Broker, session: Session, command: c.GetGroupLag) -> r.GroupLag:
    """Anyone who may read the topic may see it, member or not."""
    _, _, key = broker.finder.group(session, command)
    return await broker.operating.lags.of_group(key)


async def reset_group_offsets(broker: Broker, session: Session, command: c.ResetGroupOffsets) -> None:
    """Members keep positions of their own, so they must not be there."""
    _, _, key = broker.finder.group(session, command)
    await broker.offsets.reset_group(key, command)


def _info(broker: Broker, topic: Topic, group: ConsumerGroup, key: GroupKey) -> r.GroupInfo:
    return r.GroupInfo(group.group_id, len(topic.partitions), broker.groups.member_count(key), group.name)


def _details(broker: Broker, topic: Topic, group: ConsumerGroup, key: GroupKey) -> r.GroupDetails:
    return r.GroupDetails(_info(broker, topic, group, key), broker.groups.members(key))
