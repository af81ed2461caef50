"""Topics, their partitions and segments."""

import uuid

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.partition.topic_settings import describe_durability, merged_options, stored_options
from courser.broker.upkeep.retention_forecast import planned_deletions
from courser.catalog import changes
from courser.catalog.entities import Topic
from courser.catalog.rules import PARTITION_COUNT_MAX, ROOT_USER_ID
from courser.errors import CommandRejected, ErrorCode
from courser.model.permissions import Action


async def get_topic(broker: Broker, session: Session, command: c.GetTopic) -> r.TopicDetails:
    """One topic with its partitions."""
    stream, topic = broker.finder.topic(session, command)
    return await broker.figures.topic_details(stream, topic)


async def get_topics(broker: Broker, session: Session, command: c.GetTopics) -> r.TopicList:
    """The topics of a stream, by id."""
    return r.TopicList(await broker.figures.topics(broker.finder.stream(session, command)))


async def create_topic(broker: Broker, session: Session, command: c.CreateTopic) -> r.TopicDetails:
    """Its partitions exist, durably, before the reply."""
    stream = broker.finder.stream(session, command)
    options = stored_options(command.options)
    topic = await broker.catalog.submit(
        changes.TopicCreation(
            stream.stream_id, command.name, uuid.uuid4().bytes, command.partition_count, options, command.topic_id
        )
    )
    assert isinstance(topic, Topic), "creating a topic makes one"
    return broker.figures.new_topic_details(topic)


async def update_topic(broker: Broker, session: Session, command: c.UpdateTopic) -> None:
    """New options apply to open partitions too."""
    stream, topic = broker.finder.topic(session, command)

    def make() -> changes.TopicUpdate:
        # Of two updates at the same time, the second changes what the first has left.
        options = merged_options(topic.options, command.options, command.reset, is_patch=command.is_patch)
        return changes.TopicUpdate(stream.stream_id, topic.topic_id, command.name or topic.name, options)

    await broker.catalog.submit(make)


async def delete_topic(broker: Broker, session: Session, command: c.DeleteTopic) -> None:
    """Its messages are deleted with it."""
    stream, topic = broker.finder.topic(session, command)
    await broker.catalog.submit(changes.TopicDeletion(stream.stream_id, topic.topic_id))


async def purge_topic(broker: Broker, session: Session, command: c.PurgeTopic) -> None:
    """Delete all messages and stored offsets; numbering continues."""
    stream, topic = broker.finder.topic(session, command)
    await broker.purge(changes.TopicPurge(stream.stream_id, topic.topic_id))


# --- partitions and segments ---


async def create_partitions(broker: Broker, session: Session, command: c.CreatePartitions) -> None:
    """Add partitions after the last one."""
    _check_count(command.count)
    stream, topic = broker.finder.topic(session, command)
    await broker.catalog.submit(changes.PartitionCreation(stream.stream_id, topic.topic_id, command.count))


async def delete_partitions(broker: Broker, session: Session, command: c.DeletePartitions) -> None:
    """Delete the last partitions, with their messages. More than the topic has: 2019."""
    _check_count(min(command.count, PARTITION_COUNT_MAX))
    stream, topic = broker.finder.topic(session, command)
    if command.count > len(topic.partitions):
        reason = f"the topic has {len(topic.partitions)} partitions; cannot delete {command.count}"
        raise CommandRejected(ErrorCode.INVALID_PARTITIONS_COUNT, reason)
    await broker.catalog.submit(changes.PartitionDeletion(stream.stream_id, topic.topic_id, command.count))


async def delete_segments(broker: Broker, session: Session, command: c.DeleteSegments) -> None:
    """Delete the oldest sealed segments that no stored offset still needs."""
    address = broker.finder.address(session, command)
    await broker.retention.delete_segments(address, command.partition_id, command.count)


async def get_segments(broker: Broker, session: Session, command: c.GetSegments) -> r.SegmentList:
    """The segments of a partition, oldest first, and where their files are."""
    return await broker.figures.segments(broker.finder.address(session, command), command.partition_id)


async def get_topic_maintenance(broker: Broker, session: Session, command: c.GetTopicMaintenance) -> r.TopicMaintenance:
    """What was deleted, and what is damaged."""
    return await broker.figures.maintenance(broker.finder.address(session, command))


async def verify_segment(broker: Broker, session: Session, command: c.VerifySegment) -> o.VerifiedSegment:
    """Damage that is found is known to readers from now on."""
    address = broker.finder.address(session, command)
    return await broker.scrubber.verify_segment(address, command.partition_id, command.first_offset)


async def get_retention_plan(broker: Broker, session: Session, command: c.GetRetentionPlan) -> o.RetentionPlan:
    """Topics that the user may not view are left out."""
    user = broker.access.user(session)

    def is_visible(stream_id: int, topic_id: int) -> bool:
        if user.user_id == ROOT_USER_ID:
            return True
        return broker.access.allows(user.permissions, Action.READ_TOPIC, stream_id, topic_id)

    rows = await planned_deletions(broker.retention, broker.partitions, command.until, is_visible)
    return o.RetentionPlan(command.until, broker.settings.cleaner_enabled, rows)


async def get_offsets_at_time(broker: Broker, session: Session, command: c.GetOffsetsAtTime) -> o.OffsetsAtTime:
    """Where to read from a time on."""
    return await broker.figures.offsets_at_time(broker.finder.address(session, command), command.timestamp)


async def get_partition_bounds(broker: Broker, session: Session, command: c.GetPartitionBounds) -> r.TopicBounds:
    """What can be read now. Producers that choose partitions by key need to know how many there are."""
    address = broker.finder.address(session, command)
    topic = broker.catalog.state.streams[address.stream_id].topics[address.topic_id]
    return await broker.figures.bounds(address, topic.uuid)


async def get_topic_durability(broker: Broker, session: Session, command: c.GetTopicDurability) -> r.TopicDurability:
    """What is in effect here, whatever the client that created the topic asked for."""
    _, topic = broker.finder.topic(session, command)
    return describe_durability(topic.options, broker.settings)


def _check_count(count: int) -> None:
    """Raise 2015 before anything is looked up, as observed."""
    if not 1 <= count <= PARTITION_COUNT_MAX:
        reason = f"one to {PARTITION_COUNT_MAX} partitions at a time, not {count}"
        raise CommandRejected(ErrorCode.TOO_MANY_PARTITIONS, reason)
