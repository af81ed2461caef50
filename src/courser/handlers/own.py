"""Commands of Courser's own clients: polls that wait and skip nothing, bounds and segments of partitions."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.lookup import find_open_topic
from courser.broker.partition import Partition
from courser.broker.sessions import Session
from courser.model.permissions import Action
from courser.storage.segment import Segment, SegmentState


async def wait_for_messages(broker: Broker, session: Session, command: c.WaitForMessages) -> r.Polled:
    """What is gone or damaged is an error that names the offsets."""
    poll = command.poll
    topic = find_open_topic(broker.catalog.state, broker.partitions, poll.stream, poll.topic)
    broker.polls.check_consumer(topic, poll.consumer)

    def check_access() -> None:
        broker.access.require(session, Action.POLL_MESSAGES, topic.stream_id, topic.topic_id)

    check_access()
    return await broker.polls.wait(session, topic, command, check_access)


async def wait_for_arrivals(broker: Broker, session: Session, command: c.WaitForArrivals) -> r.Arrivals:
    """Which of several partitions have something to read, once one has."""
    topic = find_open_topic(broker.catalog.state, broker.partitions, command.stream, command.topic)
    broker.polls.check_consumer(topic, command.consumer)
    broker.access.require(session, Action.POLL_MESSAGES, topic.stream_id, topic.topic_id)
    arrivals = await broker.polls.wait_for_arrivals(session, topic, command)
    # It may have waited for long, and the permission may have been taken away meanwhile.
    broker.access.require(session, Action.POLL_MESSAGES, topic.stream_id, topic.topic_id)
    return arrivals


async def get_partition_bounds(broker: Broker, session: Session, command: c.GetPartitionBounds) -> r.TopicBounds:
    """What can be read now."""
    topic = find_open_topic(broker.catalog.state, broker.partitions, command.stream, command.topic)
    # Writers that choose partitions by key themselves have to know how many there are.
    actions = Action.POLL_MESSAGES, Action.SEND_MESSAGES
    broker.access.require_any(session, actions, topic.stream_id, topic.topic_id)
    uuid = broker.catalog.state.streams[topic.stream_id].topics[topic.topic_id].uuid
    return r.TopicBounds(topic.stream_id, topic.topic_id, uuid, [_bounds(partition) for partition in topic.partitions])


def _bounds(partition: Partition) -> r.PartitionBounds:
    log = partition.log
    # Bounds of an empty partition would make a reader of the whole topic pass over it without a word.
    log.check_readable()
    return r.PartitionBounds(
        log.identity.partition_id, log.start_offset, max(log.visible_end, log.start_offset), log.size, log.message_count
    )


async def get_segments(broker: Broker, session: Session, command: c.GetSegments) -> r.SegmentList:
    """Oldest first, with where they lie."""
    topic = find_open_topic(broker.catalog.state, broker.partitions, command.stream, command.topic)
    broker.access.require(session, Action.READ_TOPIC, topic.stream_id, topic.topic_id)
    log = topic.partition(command.partition_id).log
    directory = log.directory.relative_to(broker.data.path)
    return r.SegmentList(command.partition_id, str(directory), [_segment(segment) for segment in log.segments])


def _segment(segment: Segment) -> r.SegmentInfo:
    return r.SegmentInfo(
        segment.base_offset,
        segment.end_offset,
        segment.size,
        segment.message_count,
        segment.first_timestamp,
        segment.last_timestamp,
        segment.state is SegmentState.SEALED,
    )
