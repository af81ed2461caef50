"""Finding what a client names, by number or by name. What is not there is a ``CommandRejected`` with its own number."""

from courser.broker.partition_registry import OpenTopic, PartitionRegistry
from courser.catalog.entities import ConsumerGroup, Stream, Topic, User
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Identifier


def find_stream(state: CatalogState, identifier: Identifier) -> Stream:
    """A stream. Raises 1009."""
    stream_id = state.stream_by_name.get(identifier) if isinstance(identifier, str) else identifier
    stream = state.streams.get(stream_id) if stream_id is not None else None
    if stream is None:
        raise CommandRejected(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {identifier!r}")
    return stream


def find_topic(state: CatalogState, stream: Stream, identifier: Identifier) -> Topic:
    """A topic of a stream. Raises 2010."""
    topic_id: int | None
    if isinstance(identifier, str):
        topic_id = state.topic_by_name.get((stream.stream_id, identifier))
    else:
        topic_id = identifier
    topic = stream.topics.get(topic_id) if topic_id is not None else None
    if topic is None:
        raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, f"stream {stream.name!r} has no topic {identifier!r}")
    return topic


def find_open_topic(
    state: CatalogState, partitions: PartitionRegistry, stream: Identifier, topic: Identifier
) -> OpenTopic:
    """The partitions of a topic, for sends and polls. Raises 1009 or 2010."""
    found_stream = find_stream(state, stream)
    found = find_topic(state, found_stream, topic)
    opened = partitions.topics.get((found_stream.stream_id, found.topic_id))
    if opened is None:
        # Its creation is not acknowledged yet, or the disk refused to make its directories.
        raise CommandRejected(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic!r} is being made, and not ready yet")
    return opened


def find_group(topic: Topic, identifier: Identifier) -> ConsumerGroup:
    """A consumer group of a topic. Raises 5000."""
    if isinstance(identifier, str):
        group = next((group for group in topic.groups.values() if group.name == identifier), None)
    else:
        group = topic.groups.get(identifier)
    if group is None:
        raise CommandRejected(ErrorCode.GROUP_NOT_FOUND, f"topic {topic.name!r} has no consumer group {identifier!r}")
    return group


def find_user(state: CatalogState, identifier: Identifier) -> User:
    """A user. Raises 20."""
    user_id = state.user_by_name.get(identifier) if isinstance(identifier, str) else identifier
    user = state.users.get(user_id) if user_id is not None else None
    if user is None:
        raise CommandRejected(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {identifier!r}")
    return user
