"""Topics, their partitions and segments."""

import uuid

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.figures import topic_details, topic_info
from courser.broker.lookup import find_open_topic, find_stream, find_topic
from courser.broker.sessions import Session
from courser.broker.topic_settings import check_options, merged_options, stored_options
from courser.catalog import commands as changes
from courser.catalog.entities import Stream, Topic
from courser.catalog.rules import PARTITION_COUNT_MAX
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Identifier
from courser.model.permissions import Action


async def get_topic(broker: Broker, session: Session, command: c.GetTopic) -> r.TopicDetails:
    """One topic with its partitions."""
    stream, topic = _find(broker, session, command.stream, command.topic, Action.READ_TOPIC)
    return topic_details(stream, topic, broker.partitions, broker.settings.topic_defaults)


async def get_topics(broker: Broker, session: Session, command: c.GetTopics) -> r.TopicList:
    """By id."""
    stream = find_stream(broker.catalog.state, command.stream)
    broker.access.require(session, Action.LIST_TOPICS, stream.stream_id)
    defaults = broker.settings.topic_defaults
    topics = [stream.topics[topic_id] for topic_id in sorted(stream.topics)]
    return r.TopicList([topic_info(stream, topic, broker.partitions, defaults) for topic in topics])


async def create_topic(broker: Broker, session: Session, command: c.CreateTopic) -> r.TopicDetails:
    """Its partitions are there, and safe, before the answer."""
    stream = find_stream(broker.catalog.state, command.stream)
    broker.access.require(session, Action.CREATE_TOPIC, stream.stream_id)
    options = stored_options(command.options)
    check_options(options)
    change = changes.CreateTopic(
        stream.stream_id, command.name, uuid.uuid4().bytes, command.partition_count, options, command.topic_id
    )

    def make() -> changes.CreateTopic:
        broker.quotas.check_new_topic(stream.stream_id)
        return change

    topic = await broker.catalog.submit_made(make)
    assert isinstance(topic, Topic), "creating a topic makes one"
    return topic_details(stream, topic, broker.partitions, broker.settings.topic_defaults, is_new=True)


async def update_topic(broker: Broker, session: Session, command: c.UpdateTopic) -> None:
    """New options hold for open partitions too."""
    stream, topic = _find(broker, session, command.stream, command.topic, Action.MANAGE_TOPIC)

    def make() -> changes.UpdateTopic:
        # Of two updates at the same time, the second changes what the first has left.
        options = merged_options(topic.options, command.options, is_patch=command.is_patch)
        check_options(options)
        return changes.UpdateTopic(stream.stream_id, topic.topic_id, command.name, options)

    await broker.catalog.submit_made(make)


async def delete_topic(broker: Broker, session: Session, command: c.DeleteTopic) -> None:
    """Its messages go with it."""
    stream, topic = _find(broker, session, command.stream, command.topic, Action.MANAGE_TOPIC)
    await broker.catalog.submit(changes.DeleteTopic(stream.stream_id, topic.topic_id))


async def purge_topic(broker: Broker, session: Session, command: c.PurgeTopic) -> None:
    """Messages and stored offsets go; numbering goes on."""
    stream, topic = _find(broker, session, command.stream, command.topic, Action.MANAGE_TOPIC)
    await broker.catalog.submit(changes.PurgeTopic(stream.stream_id, topic.topic_id))


# --- partitions and segments ---


async def create_partitions(broker: Broker, session: Session, command: c.CreatePartitions) -> None:
    """Behind the last one."""
    _check_count(command.count)
    stream, topic = _find(broker, session, command.stream, command.topic, Action.MANAGE_TOPIC)

    def make() -> changes.CreatePartitions:
        broker.quotas.check_new_partitions(stream.stream_id, topic.topic_id, command.count)
        return changes.CreatePartitions(stream.stream_id, topic.topic_id, command.count)

    await broker.catalog.submit_made(make)


async def delete_partitions(broker: Broker, session: Session, command: c.DeletePartitions) -> None:
    """The last ones, with their messages. More than there are is 2019, however many."""
    _check_count(min(command.count, PARTITION_COUNT_MAX))
    stream, topic = _find(broker, session, command.stream, command.topic, Action.MANAGE_TOPIC)
    if command.count > len(topic.partitions):
        reason = f"the topic has {len(topic.partitions)} partitions, {command.count} cannot be deleted"
        raise CommandRejected(ErrorCode.INVALID_PARTITIONS_COUNT, reason)
    await broker.catalog.submit(changes.DeletePartitions(stream.stream_id, topic.topic_id, command.count))


async def delete_segments(broker: Broker, session: Session, command: c.DeleteSegments) -> None:
    """The oldest sealed ones that no stored offset still needs."""
    topic = find_open_topic(broker.catalog.state, broker.partitions, command.stream, command.topic)
    partition = topic.partition(command.partition_id)
    broker.access.require(session, Action.MANAGE_TOPIC, topic.stream_id, topic.topic_id)
    await broker.retention.delete_segments(topic, partition, command.count)


def _check_count(count: int) -> None:
    """Raise 2015 before anything is looked up, as observed."""
    if not 1 <= count <= PARTITION_COUNT_MAX:
        reason = f"one to {PARTITION_COUNT_MAX} partitions at a time, not {count}"
        raise CommandRejected(ErrorCode.TOO_MANY_PARTITIONS, reason)


def _find(
    broker: Broker, session: Session, stream: Identifier, topic: Identifier, action: Action
) -> tuple[Stream, Topic]:
    """A topic, and the permission to deal with it: existence comes first."""
    state = broker.catalog.state
    found_stream = find_stream(state, stream)
    found = find_topic(state, found_stream, topic)
    broker.access.require(session, action, found_stream.stream_id, found.topic_id)
    return found_stream, found
