"""What a command does to the catalog: deterministic, total, without I/O.

Applying needs the command, its op and its time, and nothing else: no clock, no random numbers, no files. A command that
the rules forbid changes nothing, so replaying any journal gives one result.
"""

from pathlib import Path

import msgspec

from courser.catalog import commands as c
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
"""What a command made, if it made something."""

_HERE = Path()


def apply(state: CatalogState, command: c.AnyCommand, op: int, timestamp: int) -> Created | CommandRejected:
    """Change the state. Return what was made, or why nothing was changed."""
    try:
        check(state, command)
    except CommandRejected as rejection:
        return rejection
    match command:
        case c.CreateStream() | c.UpdateStream() | c.DeleteStream() | c.PurgeStream():
            return _apply_to_streams(state, command, timestamp)
        case c.CreateTopic() | c.UpdateTopic() | c.DeleteTopic() | c.PurgeTopic():
            return _apply_to_topics(state, command, op, timestamp)
        case c.CreatePartitions() | c.DeletePartitions():
            return _apply_to_partitions(state, command, op, timestamp)
        case c.CreateGroup() | c.DeleteGroup():
            return _apply_to_groups(state, command, timestamp)
        case c.CreateToken() | c.DeleteToken():
            return _apply_to_tokens(state, command, timestamp)
        case c.ForgetDeleted():
            for path in command.paths:
                state.deleted.pop(path, None)
            return None
        case c.BeginPublish() | c.EndPublish() | c.ForgetSink():
            return _apply_to_sinks(state, command, op, timestamp)
        case _:
            return _apply_to_users(state, command, timestamp)


def undo_of(state: CatalogState, command: c.AnyCommand | None) -> c.AnyCommand | None:
    """The command that takes back what the last one made; None if it made no directory.

    For a creation that the disk has no room for, and that was never acknowledged.
    """
    match command:
        case c.CreateStream():
            return c.DeleteStream(state.stream_by_name[command.name])
        case c.CreateTopic():
            return c.DeleteTopic(command.stream_id, state.topic_by_name[command.stream_id, command.name])
        case c.CreatePartitions():
            return c.DeletePartitions(command.stream_id, command.topic_id, command.count)
        case _:
            return None


# --- streams ---


def _apply_to_streams(
    state: CatalogState,
    command: c.CreateStream | c.UpdateStream | c.DeleteStream | c.PurgeStream,
    timestamp: int,
) -> Created:
    match command:
        case c.CreateStream():
            stream_id = state.stream_ids.use(command.stream_id)
            stream = Stream(stream_id, command.uuid, command.name, timestamp, {}, UsedIds())
            state.streams[stream_id] = stream
            state.stream_by_name[command.name] = stream_id
            return stream
        case c.UpdateStream():
            stream = state.streams[command.stream_id]
            del state.stream_by_name[stream.name]
            stream.name = command.name
            state.stream_by_name[command.name] = stream.stream_id
        case c.DeleteStream():
            stream = state.streams.pop(command.stream_id)
            del state.stream_by_name[stream.name]
            for topic in stream.topics.values():
                del state.topic_by_name[stream.stream_id, topic.name]
                state.purge_ends.pop(topic.uuid, None)
            _note_deleted(state, str(stream_directory(_HERE, stream.stream_id)), stream.uuid)
        case c.PurgeStream():
            purged = {row.topic_id: row for row in command.topics}
            for topic in state.streams[command.stream_id].topics.values():
                row = purged.get(topic.topic_id)
                _purge(state, topic, row.count if row is not None else 0, row.ends if row is not None else ())
    return None


# --- topics and partitions ---


def _apply_to_topics(
    state: CatalogState,
    command: c.CreateTopic | c.UpdateTopic | c.DeleteTopic | c.PurgeTopic,
    op: int,
    timestamp: int,
) -> Created:
    stream = state.streams[command.stream_id]
    match command:
        case c.CreateTopic():
            topic_id = stream.topic_ids.use(command.topic_id)
            partitions = _new_partitions(0, command.partition_count, op, timestamp)
            topic = Topic(
                topic_id, command.uuid, command.name, timestamp, command.options, partitions, {}, UsedIds(), 0
            )
            stream.topics[topic_id] = topic
            state.topic_by_name[stream.stream_id, command.name] = topic_id
            return topic
        case c.UpdateTopic():
            topic = stream.topics[command.topic_id]
            del state.topic_by_name[stream.stream_id, topic.name]
            topic.name, topic.options = command.name, command.options
            state.topic_by_name[stream.stream_id, command.name] = topic.topic_id
        case c.DeleteTopic():
            topic = stream.topics.pop(command.topic_id)
            del state.topic_by_name[stream.stream_id, topic.name]
            state.purge_ends.pop(topic.uuid, None)
            path = topic_directory(_HERE, stream.stream_id, topic.topic_id)
            _note_deleted(state, str(path), topic.uuid)
        case c.PurgeTopic():
            _purge(state, stream.topics[command.topic_id], command.count, command.ends)
    return None


def _purge(state: CatalogState, topic: Topic, count: int, ends: tuple[int, ...]) -> None:
    """Count a purge. The ends of the last one hold for every partition that is behind, by one purge or by several."""
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
    state: CatalogState, command: c.CreatePartitions | c.DeletePartitions, op: int, timestamp: int
) -> Created:
    topic = state.streams[command.stream_id].topics[command.topic_id]
    if isinstance(command, c.CreatePartitions):
        topic.partitions.extend(_new_partitions(len(topic.partitions), command.count, op, timestamp))
        return topic
    kept = len(topic.partitions) - command.count
    for partition in topic.partitions[kept:]:
        path = partition_directory(
            _HERE, command.stream_id, topic.topic_id, partition.partition_id, partition.incarnation
        )
        _note_deleted(state, str(path), topic.uuid)
    del topic.partitions[kept:]
    if topic.uuid in state.purge_ends:
        # A partition that gets the same number later has missed nothing.
        state.purge_ends[topic.uuid] = state.purge_ends[topic.uuid][:kept]
    return None


def _note_deleted(state: CatalogState, path: str, uuid: bytes) -> None:
    """Remember a directory to be removed; what was to be removed inside it goes with it."""
    state.deleted = {known: entry for known, entry in state.deleted.items() if not known.startswith(f"{path}/")}
    state.deleted[path] = DeletedDirectory(path, uuid)


# --- consumer groups ---


def _apply_to_groups(state: CatalogState, command: c.CreateGroup | c.DeleteGroup, timestamp: int) -> Created:
    topic = state.streams[command.stream_id].topics[command.topic_id]
    if isinstance(command, c.DeleteGroup):
        del topic.groups[command.group_id]
        return None
    group_id = topic.group_ids.use(command.group_id)
    group = ConsumerGroup(group_id, command.name, timestamp)
    topic.groups[group_id] = group
    return group


# --- users ---


def _apply_to_users(
    state: CatalogState,
    command: c.CreateUser | c.UpdateUser | c.DeleteUser | c.ChangePassword | c.UpdatePermissions,
    timestamp: int,
) -> Created:
    if isinstance(command, c.CreateUser):
        user_id = state.user_ids.use(None)
        user = User(user_id, command.name, command.password_hash, command.is_active, timestamp, command.permissions, {})
        state.users[user_id] = user
        state.user_by_name[command.name] = user_id
        return user
    user = state.users[command.user_id]
    match command:
        case c.UpdateUser():
            if command.name is not None:
                del state.user_by_name[user.name]
                user.name = command.name
                state.user_by_name[command.name] = user.user_id
            if command.is_active is not None:
                user.is_active = command.is_active
        case c.DeleteUser():
            del state.users[user.user_id]
            del state.user_by_name[user.name]
        case c.ChangePassword():
            user.password_hash = command.password_hash
        case c.UpdatePermissions():
            user.permissions = command.permissions
    return None


def _apply_to_tokens(state: CatalogState, command: c.CreateToken | c.DeleteToken, timestamp: int) -> Created:
    tokens = state.users[command.user_id].tokens
    if isinstance(command, c.DeleteToken):
        del tokens[command.name]
        return None
    token = Token(command.name, command.token_hash, timestamp, command.expires_at)
    tokens[command.name] = token
    return token


# --- sinks ---


def _apply_to_sinks(
    state: CatalogState, command: c.BeginPublish | c.EndPublish | c.ForgetSink, op: int, timestamp: int
) -> Created:
    match command:
        case c.BeginPublish():
            _forget_expired(state, timestamp)
            publish = Publish(op, command.nonce, command.parts, command.targets) if command.parts else None
            expires_at = timestamp + command.keep if command.keep else 0
            sink = Sink(command.sink, command.user_id, command.batch, timestamp, expires_at, publish)
            state.sinks[command.sink] = sink
            return sink
        case c.EndPublish():
            state.sinks[command.sink].open = None
        case c.ForgetSink():
            del state.sinks[command.sink]
    return None


def _forget_expired(state: CatalogState, timestamp: int) -> None:
    """Forget sinks of jobs that nobody will repeat any more. The time is that of the entry: a replay does the same."""
    expired = [name for name, sink in state.sinks.items() if sink.open is None and 0 < sink.expires_at <= timestamp]
    for name in expired:
        del state.sinks[name]
