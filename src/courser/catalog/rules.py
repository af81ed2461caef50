"""Which changes are allowed: checked before a change is journaled, and once more when a start applies it.

Permissions are not checked here, but in access control. The error numbers are those of Iggy.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from courser.catalog import changes
from courser.catalog.entities import ID_MAX, Stream, Topic, UsedIds, User
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode
from courser.model.topic_options import FIXED

ROOT_USER_ID = 0
"""The first user. It cannot be deleted, and its permissions cannot be changed."""

NAME_SIZE_MAX = 255
"""Maximum size of the name of a stream, topic, group or token in bytes: its length is sent as one byte."""
USER_NAME_SIZE_MIN, USER_NAME_SIZE_MAX = 3, 50
"""Size of a user's name in bytes; every SDK checks the same limits."""
PARTITION_COUNT_MAX = 1000
"""Partitions created or deleted by one change: each is a directory that has to be synced."""
TOKEN_COUNT_MAX = 1000
"""Tokens of one user: the maximum that an operator can configure."""
USER_COUNT_MAX = 100_000
"""Limits the size of a snapshot."""
SINK_COUNT_MAX = 100_000
"""Limits the size of a snapshot. Sinks of batch jobs are forgotten after a week."""
PUBLISHED_PART_COUNT_MAX = 100_000
"""Parts of one publish, one per task of a job: limits a journal entry to some megabytes."""
PUBLISH_TARGET_COUNT_MAX = 100_000
"""Partitions of one publish: also limits a journal entry."""
BATCH_NUMBER_MAX = 2**63 - 1
"""Batch numbers come from Spark, where they are signed 64-bit integers."""
NONCE_SIZE = 8
UUID_SIZE = 16
TOKEN_HASH_SIZE = 32


def check(state: CatalogState, change: changes.AnyChange) -> None:
    """Raise ``CommandRejected`` if the state does not allow the change. Changes nothing."""
    rule = _RULES.get(type(change))
    if rule is not None:
        rule(state, change)


def _refuse(code: ErrorCode, reason: str) -> NoReturn:
    raise CommandRejected(code, reason)


# --- finding ---


def _stream(state: CatalogState, stream_id: int) -> Stream:
    stream = state.streams.get(stream_id)
    return stream if stream is not None else _refuse(ErrorCode.STREAM_NOT_FOUND, f"stream {stream_id} does not exist")


def _topic(state: CatalogState, stream_id: int, topic_id: int) -> Topic:
    topic = _stream(state, stream_id).topics.get(topic_id)
    if topic is None:
        _refuse(ErrorCode.TOPIC_NOT_FOUND, f"stream {stream_id} has no topic {topic_id}")
    return topic


def _user(state: CatalogState, user_id: int) -> User:
    user = state.users.get(user_id)
    return user if user is not None else _refuse(ErrorCode.RESOURCE_NOT_FOUND, f"user {user_id} does not exist")


def _size(text: str, code: ErrorCode) -> int:
    """The size of a text in bytes, as stored."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        # Half a surrogate pair, which JSON allows.
        _refuse(code, "the text is not valid Unicode")


def _check_name(name: str, what: str) -> None:
    size = _size(name, ErrorCode.INVALID_FORMAT)
    if not 1 <= size <= NAME_SIZE_MAX:
        _refuse(ErrorCode.INVALID_FORMAT, f"the name of a {what} must have 1 to {NAME_SIZE_MAX} bytes, not {size}")


def _check_uuid(uuid: bytes) -> None:
    if len(uuid) != UUID_SIZE:
        _refuse(ErrorCode.INVALID_COMMAND, f"a UUID must have {UUID_SIZE} bytes, not {len(uuid)}")


def _check_id(number: int | None, ids: UsedIds, what: str, used: ErrorCode) -> None:
    """The id of something new; None if the catalog chooses it."""
    if number is None:
        if ids.next_id > ID_MAX and not ids.holes:
            _refuse(ErrorCode.INVALID_COMMAND, f"all ids up to {ID_MAX} have been used")
    elif not 0 <= number <= ID_MAX:
        _refuse(ErrorCode.INVALID_COMMAND, f"an id must be between 0 and {ID_MAX}, not {number}")
    elif ids.is_used(number):
        _refuse(used, f"{what} id {number} has already been used")


# --- streams and topics ---


def _create_stream(state: CatalogState, change: changes.StreamCreation) -> None:
    _check_name(change.name, "stream")
    _check_uuid(change.uuid)
    _check_id(change.stream_id, state.stream_ids, "stream", ErrorCode.STREAM_ID_ALREADY_EXISTS)
    if change.name in state.stream_by_name:
        _refuse(ErrorCode.STREAM_NAME_ALREADY_EXISTS, f"stream {change.name!r} already exists")


def _update_stream(state: CatalogState, change: changes.StreamUpdate) -> None:
    _stream(state, change.stream_id)
    _check_name(change.name, "stream")
    if state.stream_by_name.get(change.name, change.stream_id) != change.stream_id:
        _refuse(ErrorCode.STREAM_NAME_ALREADY_EXISTS, f"stream {change.name!r} already exists")


def _existing_stream(state: CatalogState, change: changes.StreamDeletion | changes.StreamPurge) -> None:
    _stream(state, change.stream_id)


def _create_topic(state: CatalogState, change: changes.TopicCreation) -> None:
    stream = _stream(state, change.stream_id)
    _check_name(change.name, "topic")
    _check_uuid(change.uuid)
    if not 0 <= change.partition_count <= PARTITION_COUNT_MAX:
        _refuse(
            ErrorCode.TOO_MANY_PARTITIONS,
            f"a topic must be created with 0 to {PARTITION_COUNT_MAX} partitions, not {change.partition_count}",
        )
    _check_id(change.topic_id, stream.topic_ids, "topic", ErrorCode.TOPIC_ID_ALREADY_EXISTS)
    if (change.stream_id, change.name) in state.topic_by_name:
        _refuse(ErrorCode.TOPIC_NAME_ALREADY_EXISTS, f"topic {change.name!r} already exists in this stream")


def _update_topic(state: CatalogState, change: changes.TopicUpdate) -> None:
    _topic(state, change.stream_id, change.topic_id)
    _check_name(change.name, "topic")
    if state.topic_by_name.get((change.stream_id, change.name), change.topic_id) != change.topic_id:
        _refuse(ErrorCode.TOPIC_NAME_ALREADY_EXISTS, f"topic {change.name!r} already exists in this stream")


def _existing_topic(state: CatalogState, change: changes.TopicDeletion | changes.TopicPurge) -> None:
    _topic(state, change.stream_id, change.topic_id)


def _check_count(count: int) -> None:
    if not 1 <= count <= PARTITION_COUNT_MAX:
        _refuse(
            ErrorCode.TOO_MANY_PARTITIONS,
            f"1 to {PARTITION_COUNT_MAX} partitions can be added or removed at a time, not {count}",
        )


def _check_resizable(topic: Topic) -> None:
    if topic.options.partition_resize_policy == FIXED:
        _refuse(ErrorCode.PARTITION_RESIZE_DISABLED, "the number of partitions of this topic is fixed")


def _create_partitions(state: CatalogState, change: changes.PartitionCreation) -> None:
    _check_count(change.count)
    _check_resizable(_topic(state, change.stream_id, change.topic_id))


def _delete_partitions(state: CatalogState, change: changes.PartitionDeletion) -> None:
    _check_count(change.count)
    topic = _topic(state, change.stream_id, change.topic_id)
    _check_resizable(topic)
    if change.count > len(topic.partitions):
        _refuse(
            ErrorCode.INVALID_PARTITIONS_COUNT,
            f"cannot remove {change.count} partitions: the topic has {len(topic.partitions)}",
        )


# --- consumer groups ---


def _create_group(state: CatalogState, change: changes.GroupCreation) -> None:
    topic = _topic(state, change.stream_id, change.topic_id)
    _check_name(change.name, "consumer group")
    _check_id(change.group_id, topic.group_ids, "consumer group", ErrorCode.GROUP_ID_ALREADY_EXISTS)
    if any(group.name == change.name for group in topic.groups.values()):
        _refuse(ErrorCode.GROUP_NAME_ALREADY_EXISTS, f"consumer group {change.name!r} already exists in this topic")


def _delete_group(state: CatalogState, change: changes.GroupDeletion) -> None:
    topic = _topic(state, change.stream_id, change.topic_id)
    if change.group_id not in topic.groups:
        _refuse(ErrorCode.GROUP_NOT_FOUND, f"the topic has no consumer group {change.group_id}")


# --- users and tokens ---


def _check_user_name(name: str) -> None:
    size = _size(name, ErrorCode.INVALID_USERNAME)
    if not USER_NAME_SIZE_MIN <= size <= USER_NAME_SIZE_MAX:
        bounds = f"{USER_NAME_SIZE_MIN} to {USER_NAME_SIZE_MAX}"
        _refuse(ErrorCode.INVALID_USERNAME, f"a user name must have {bounds} bytes, not {size}")


def _check_password_hash(password_hash: str) -> None:
    if not password_hash.startswith("$argon2id$"):
        # A plain password must never be written to a file, even because of a defect elsewhere.
        _refuse(ErrorCode.INVALID_PASSWORD, "a password must be stored as an argon2id hash")


def _create_user(state: CatalogState, change: changes.UserCreation) -> None:
    _check_user_name(change.name)
    _check_password_hash(change.password_hash)
    if change.name in state.user_by_name:
        _refuse(ErrorCode.USER_ALREADY_EXISTS, f"user {change.name!r} already exists")
    if len(state.users) >= USER_COUNT_MAX:
        _refuse(ErrorCode.TOO_MANY_USERS, f"the limit of {USER_COUNT_MAX} users is reached")


def _update_user(state: CatalogState, change: changes.UserUpdate) -> None:
    user = _user(state, change.user_id)
    if change.name is not None:
        _check_user_name(change.name)
        if state.user_by_name.get(change.name, change.user_id) != change.user_id:
            _refuse(ErrorCode.USER_ALREADY_EXISTS, f"user {change.name!r} already exists")
    if user.user_id == ROOT_USER_ID and change.is_active is False:
        _refuse(ErrorCode.CANNOT_CHANGE_PERMISSIONS, "the root user cannot be deactivated")


def _delete_user(state: CatalogState, change: changes.UserDeletion) -> None:
    if _user(state, change.user_id).user_id == ROOT_USER_ID:
        _refuse(ErrorCode.CANNOT_DELETE_USER, "the root user cannot be deleted")


def _change_password(state: CatalogState, change: changes.PasswordChange) -> None:
    _user(state, change.user_id)
    _check_password_hash(change.password_hash)


def _update_permissions(state: CatalogState, change: changes.PermissionUpdate) -> None:
    if _user(state, change.user_id).user_id == ROOT_USER_ID:
        _refuse(ErrorCode.CANNOT_CHANGE_PERMISSIONS, "the permissions of the root user cannot be changed")


def _create_token(state: CatalogState, change: changes.TokenCreation) -> None:
    user = _user(state, change.user_id)
    if not 1 <= _size(change.name, ErrorCode.INVALID_TOKEN_NAME) <= NAME_SIZE_MAX:
        _refuse(ErrorCode.INVALID_TOKEN_NAME, f"the name of a token must have 1 to {NAME_SIZE_MAX} bytes")
    if len(change.token_hash) != TOKEN_HASH_SIZE:
        # A plain token must never be written to a file either.
        _refuse(ErrorCode.INVALID_COMMAND, f"a token must be stored as a hash of {TOKEN_HASH_SIZE} bytes")
    if change.name in user.tokens:
        _refuse(ErrorCode.TOKEN_ALREADY_EXISTS, f"token {change.name!r} already exists for this user")
    if len(user.tokens) >= TOKEN_COUNT_MAX:
        _refuse(ErrorCode.TOO_MANY_TOKENS, f"a user can have at most {TOKEN_COUNT_MAX} tokens")


def _delete_token(state: CatalogState, change: changes.TokenDeletion) -> None:
    if change.name not in _user(state, change.user_id).tokens:
        _refuse(ErrorCode.RESOURCE_NOT_FOUND, f"the user has no token called {change.name!r}")


# --- sinks ---


def _begin_publish(state: CatalogState, change: changes.PublishStart) -> None:
    _check_name(change.sink, "sink")
    if not 0 <= change.batch <= BATCH_NUMBER_MAX or change.keep < 0 or len(change.nonce) != NONCE_SIZE:
        _refuse(ErrorCode.INVALID_COMMAND, f"invalid numbers in the publish of batch {change.batch}")
    if len(change.parts) > PUBLISHED_PART_COUNT_MAX or len(change.targets) > PUBLISH_TARGET_COUNT_MAX:
        _refuse(
            ErrorCode.INVALID_COMMAND,
            f"a publish can have at most {PUBLISHED_PART_COUNT_MAX} parts and {PUBLISH_TARGET_COUNT_MAX} partitions, "
            f"not {len(change.parts)} and {len(change.targets)}",
        )
    sink = state.sinks.get(change.sink)
    if sink is None:
        if len(state.sinks) >= SINK_COUNT_MAX:
            _refuse(ErrorCode.TOO_MANY_SINKS, f"the limit of {SINK_COUNT_MAX} sinks is reached; forget one first")
        return
    if sink.open is not None:
        _refuse(ErrorCode.PUBLISH_UNFINISHED, f"batch {sink.batch} of sink {sink.name!r} is not finished yet")
    if change.batch <= sink.batch:
        reason = f"sink {sink.name!r} has already published batch {sink.batch}; batch {change.batch} is too late"
        _refuse(ErrorCode.BATCH_ALREADY_PUBLISHED, reason)


def _end_publish(state: CatalogState, change: changes.PublishEnd) -> None:
    sink = state.sinks.get(change.sink)
    if sink is None or sink.open is None or sink.open.op != change.op:
        _refuse(ErrorCode.SINK_NOT_FOUND, f"sink {change.sink!r} has no open publish {change.op}")


def _forget_sink(state: CatalogState, change: changes.SinkRemoval) -> None:
    if change.sink not in state.sinks:
        _refuse(ErrorCode.SINK_NOT_FOUND, f"sink {change.sink!r} does not exist")


# Each rule takes the type that is its key, which the type of a dict cannot express.
_RULES: dict[type[changes.Change], Callable[[CatalogState, Any], None]] = {
    changes.StreamCreation: _create_stream,
    changes.StreamUpdate: _update_stream,
    changes.StreamDeletion: _existing_stream,
    changes.StreamPurge: _existing_stream,
    changes.TopicCreation: _create_topic,
    changes.TopicUpdate: _update_topic,
    changes.TopicDeletion: _existing_topic,
    changes.TopicPurge: _existing_topic,
    changes.PartitionCreation: _create_partitions,
    changes.PartitionDeletion: _delete_partitions,
    changes.GroupCreation: _create_group,
    changes.GroupDeletion: _delete_group,
    changes.UserCreation: _create_user,
    changes.UserUpdate: _update_user,
    changes.UserDeletion: _delete_user,
    changes.PasswordChange: _change_password,
    changes.PermissionUpdate: _update_permissions,
    changes.TokenCreation: _create_token,
    changes.TokenDeletion: _delete_token,
    changes.PublishStart: _begin_publish,
    changes.PublishEnd: _end_publish,
    changes.SinkRemoval: _forget_sink,
}
