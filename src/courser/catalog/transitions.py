"""How a change is applied to the catalog: deterministic, total, without I/O.

Applying needs only the change, its op and its time: no clock, no random numbers, no files. A change that the rules
forbid changes nothing, so replaying a journal always gives the same result.
"""

from pathlib import Path

import msgspec

from courser.catalog import changes
from courser.catalog.entities import (
    ConsumerGroup,
    DeletedDirectory,
    Partition,
    Publish,
    Sink,
    Stream,
    Token,
    Topic,
    UsedIds,
    User,
)
from courser.catalog.rules import check
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected
from courser.storage.paths import partition_directory, stream_directory, topic_directory

Created = Stream | Topic | ConsumerGroup | User | Token | Sink | None
"""What a change created, if anything."""

_HERE = Path()


def apply(state: CatalogState, change: changes.AnyChange, op: int, timestamp: int) -> Created | CommandRejected:
    """Apply a change to the state, if the rules allow it. Return what was created, or why nothing was changed."""
    try:
        check(state, change)
    except CommandRejected as rejection:
        return rejection
    return apply_checked(state, change, op, timestamp)


def apply_checked(state: CatalogState, change: changes.AnyChange, op: int, timestamp: int) -> Created:
    """Apply a change that this state allows. Return what was created."""
    match change:
        case changes.StreamCreation() | changes.StreamUpdate() | changes.StreamDeletion() | changes.StreamPurge():
            return _apply_to_streams(state, change, timestamp)
        case changes.TopicCreation() | changes.TopicUpdate() | changes.TopicDeletion() | changes.TopicPurge():
            return _apply_to_topics(state, change, op, timestamp)
        case changes.PartitionCreation() | changes.PartitionDeletion():
            return _apply_to_partitions(state, change, op, timestamp)
        case changes.GroupCreation() | changes.GroupDeletion():
            return _apply_to_groups(state, change, timestamp)
        case changes.TokenCreation() | changes.TokenDeletion():
            return _apply_to_tokens(state, change, timestamp)
        case changes.DirectoryRemoval():
            for path in change.paths:
                state.deleted.discard(path)
            return None
        case changes.PublishStart() | changes.PublishEnd() | changes.SinkRemoval():
            return _apply_to_sinks(state, change, op, timestamp)
        case _:
            return _apply_to_users(state, change, timestamp)


def undo_of(state: CatalogState, change: changes.AnyChange | None) -> changes.AnyChange | None:
    """The change that undoes the last one; None if that created no directory.

    For a creation that was never acknowledged because the disk has no room for it.
    """
    match change:
        case changes.StreamCreation():
            return changes.StreamDeletion(state.stream_by_name[change.name])
        case changes.TopicCreation():
            return changes.TopicDeletion(change.stream_id, state.topic_by_name[change.stream_id, change.name])
        case changes.PartitionCreation():
            return changes.PartitionDeletion(change.stream_id, change.topic_id, change.count)
        case _:
            return None


# --- streams ---


def _apply_to_streams(
    state: CatalogState,
    change: changes.StreamCreation | changes.StreamUpdate | changes.StreamDeletion | changes.StreamPurge,
    timestamp: int,
) -> Created:
    match change:
        case changes.StreamCreation():
            stream_id = state.stream_ids.use(change.stream_id)
            stream = Stream(stream_id, change.uuid, change.name, timestamp, {}, UsedIds())
            state.streams[stream_id] = stream
            state.stream_by_name[change.name] = stream_id
            return stream
        case changes.StreamUpdate():
            stream = state.streams[change.stream_id]
            del state.stream_by_name[stream.name]
            stream.name = change.name
            state.stream_by_name[change.name] = stream.stream_id
        case changes.StreamDeletion():
            stream = state.streams.pop(change.stream_id)
            del state.stream_by_name[stream.name]
            for topic in stream.topics.values():
                del state.topic_by_name[stream.stream_id, topic.name]
                state.purge_ends.pop(topic.uuid, None)
            path = stream_directory(_HERE, stream.stream_id)
            state.deleted.add(DeletedDirectory(str(path), stream.uuid))
        case changes.StreamPurge():
            purged = {row.topic_id: row for row in change.topics}
            for topic in state.streams[change.stream_id].topics.values():
                row = purged.get(topic.topic_id)
                _purge(state, topic, row.count if row is not None else 0, row.ends if row is not None else ())
    return None


# --- topics and partitions ---


def _apply_to_topics(
    state: CatalogState,
    change: changes.TopicCreation | changes.TopicUpdate | changes.TopicDeletion | changes.TopicPurge,
    op: int,
    timestamp: int,
) -> Created:
    stream = state.streams[change.stream_id]
    match change:
        case changes.TopicCreation():
            topic_id = stream.topic_ids.use(change.topic_id)
            partitions = _new_partitions(0, change.partition_count, op, timestamp)
            topic = Topic(topic_id, change.uuid, change.name, timestamp, change.options, partitions, {}, UsedIds(), 0)
            stream.topics[topic_id] = topic
            state.topic_by_name[stream.stream_id, change.name] = topic_id
            return topic
        case changes.TopicUpdate():
            topic = stream.topics[change.topic_id]
            del state.topic_by_name[stream.stream_id, topic.name]
            topic.name, topic.options = change.name, change.options
            state.topic_by_name[stream.stream_id, change.name] = topic.topic_id
        case changes.TopicDeletion():
            topic = stream.topics.pop(change.topic_id)
            del state.topic_by_name[stream.stream_id, topic.name]
            state.purge_ends.pop(topic.uuid, None)
            path = topic_directory(_HERE, stream.stream_id, topic.topic_id)
            state.deleted.add(DeletedDirectory(str(path), topic.uuid))
        case changes.TopicPurge():
            _purge(state, stream.topics[change.topic_id], change.count, change.ends)
    return None


def _purge(state: CatalogState, topic: Topic, count: int, ends: tuple[int, ...]) -> None:
    """Count a purge. Its ends hold for every partition that is behind, by one purge or by several."""
    topic.purge_count = max(topic.purge_count + 1, count)
    if ends:
        state.purge_ends[topic.uuid] = ends[: len(topic.partitions)]
    for sink in state.sinks.values():
        # An open publish was decided before the purge, so the purge takes all of its messages in this topic, also
        # those that are not in the log yet. Without its targets no redo brings them back.
        if sink.open is not None and any(target.topic_uuid == topic.uuid for target in sink.open.targets):
            kept = tuple(target for target in sink.open.targets if target.topic_uuid != topic.uuid)
            sink.open = msgspec.structs.replace(sink.open, targets=kept)


def _new_partitions(first: int, count: int, op: int, timestamp: int) -> list[Partition]:
    return [Partition(partition_id, op, timestamp) for partition_id in range(first, first + count)]


def _apply_to_partitions(
    state: CatalogState, change: changes.PartitionCreation | changes.PartitionDeletion, op: int, timestamp: int
) -> Created:
    topic = state.streams[change.stream_id].topics[change.topic_id]
    if isinstance(change, changes.PartitionCreation):
        topic.partitions.extend(_new_partitions(len(topic.partitions), change.count, op, timestamp))
        return topic
    kept = len(topic.partitions) - change.count
    for partition in topic.partitions[kept:]:
        path = partition_directory(
            _HERE, change.stream_id, topic.topic_id, partition.partition_id, partition.incarnation
        )
        state.deleted.add(DeletedDirectory(str(path), topic.uuid))
    del topic.partitions[kept:]
    if topic.uuid in state.purge_ends:
        # A partition that gets the same number later missed nothing.
        state.purge_ends[topic.uuid] = state.purge_ends[topic.uuid][:kept]
    return None


# --- consumer groups ---


def _apply_to_groups(
    state: CatalogState, change: changes.GroupCreation | changes.GroupDeletion, timestamp: int
) -> Created:
    topic = state.streams[change.stream_id].topics[change.topic_id]
    if isinstance(change, changes.GroupDeletion):
        del topic.groups[change.group_id]
        return None
    group_id = topic.group_ids.use(change.group_id)
    group = ConsumerGroup(group_id, change.name, timestamp)
    topic.groups[group_id] = group
    return group


# --- users ---


def _apply_to_users(
    state: CatalogState,
    change: changes.UserCreation
    | changes.UserUpdate
    | changes.UserDeletion
    | changes.PasswordChange
    | changes.PermissionUpdate,
    timestamp: int,
) -> Created:
    if isinstance(change, changes.UserCreation):
        user_id = state.user_ids.use(None)
        user = User(user_id, change.name, change.password_hash, change.is_active, timestamp, change.permissions, {})
        state.users[user_id] = user
        state.user_by_name[change.name] = user_id
        return user
    user = state.users[change.user_id]
    match change:
        case changes.UserUpdate():
            if change.name is not None:
                del state.user_by_name[user.name]
                user.name = change.name
                state.user_by_name[change.name] = user.user_id
            if change.is_active is not None:
                user.is_active = change.is_active
        case changes.UserDeletion():
            del state.users[user.user_id]
            del state.user_by_name[user.name]
        case changes.PasswordChange():
            user.password_hash = change.password_hash
        case changes.PermissionUpdate():
            user.permissions = change.permissions
    return None


def _apply_to_tokens(
    state: CatalogState, change: changes.TokenCreation | changes.TokenDeletion, timestamp: int
) -> Created:
    tokens = state.users[change.user_id].tokens
    if isinstance(change, changes.TokenDeletion):
        del tokens[change.name]
        return None
    token = Token(change.name, change.token_hash, timestamp, change.expires_at)
    tokens[change.name] = token
    return token


# --- sinks ---


def _apply_to_sinks(
    state: CatalogState,
    change: changes.PublishStart | changes.PublishEnd | changes.SinkRemoval,
    op: int,
    timestamp: int,
) -> Created:
    match change:
        case changes.PublishStart():
            _forget_expired(state, timestamp)
            publish = Publish(op, change.nonce, change.parts, change.targets) if change.parts else None
            expires_at = timestamp + change.keep if change.keep else 0
            sink = Sink(change.sink, change.user_id, change.batch, timestamp, expires_at, publish)
            state.sinks[change.sink] = sink
            return sink
        case changes.PublishEnd():
            state.sinks[change.sink].open = None
        case changes.SinkRemoval():
            del state.sinks[change.sink]
    return None


def _forget_expired(state: CatalogState, timestamp: int) -> None:
    """Forget sinks that have expired. The time is that of the entry, so that a replay does the same."""
    expired = [name for name, sink in state.sinks.items() if sink.open is None and 0 < sink.expires_at <= timestamp]
    for name in expired:
        del state.sinks[name]
