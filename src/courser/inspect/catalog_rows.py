"""The contents of a snapshot or a descriptor as rows: streams, topics and their parts, users and their tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

from courser.catalog.entities import Topic, UsedIds, User
from courser.catalog.state import CatalogState
from courser.inspect.masking import password_text, readable, readable_fields


@dataclass(frozen=True, slots=True)
class UsedIdsRow:
    """The ids of a kind that were ever assigned."""

    owner: str
    """``streams`` or ``users``; ids of topics and groups are in the rows of streams and topics."""
    next_id: int
    holes: object
    """Ranges below ``next_id`` that were never used."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream."""

    stream_id: int
    uuid: str
    name: str
    created_at: int
    topic_count: int | None
    """None in a descriptor, which does not contain it."""
    topic_ids: object


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic."""

    stream_id: int
    topic_id: int
    uuid: str
    name: str
    created_at: int
    options: dict[str, object]
    """None means the server's default."""
    partition_count: int
    group_count: int
    group_ids: object
    purge_count: int


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition."""

    stream_id: int
    topic_id: int
    partition_id: int
    incarnation: int
    created_at: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group."""

    stream_id: int
    topic_id: int
    group_id: int
    name: str
    created_at: int


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user."""

    user_id: int
    name: str
    password_hash: str
    """Algorithm and parameters only."""
    is_active: bool
    created_at: int
    permissions: object
    token_count: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A personal access token, without its hash."""

    user_id: int
    name: str
    created_at: int
    expires_at: int
    """0 means never."""


@dataclass(frozen=True, slots=True)
class DeletedDirectoryRow:
    """A directory whose removal may not be durable yet."""

    directory: str
    uuid: str


CatalogRow = UsedIdsRow | StreamRow | TopicRow | PartitionRow | GroupRow | UserRow | TokenRow | DeletedDirectoryRow


def rows_of_state(state: CatalogState) -> Iterator[CatalogRow]:
    """All rows; each thing is followed by its parts."""
    for stream_id in sorted(state.streams):
        stream = state.streams[stream_id]
        ids, count = readable(stream.topic_ids), len(stream.topics)
        yield StreamRow(stream.stream_id, stream.uuid.hex(), stream.name, stream.created_at, count, ids)
        for topic_id in sorted(stream.topics):
            yield from rows_of_topic(stream_id, stream.topics[topic_id])
    for user_id in sorted(state.users):
        yield from _rows_of_user(state.users[user_id])
    yield _used_ids_row("streams", state.stream_ids)
    yield _used_ids_row("users", state.user_ids)
    for path in sorted(state.deleted):
        deleted = state.deleted[path]
        yield DeletedDirectoryRow(deleted.path, deleted.uuid.hex())


def rows_of_topic(stream_id: int, topic: Topic) -> Iterator[CatalogRow]:
    """A topic with its partitions and groups."""
    yield TopicRow(
        stream_id,
        topic.topic_id,
        topic.uuid.hex(),
        topic.name,
        topic.created_at,
        readable_fields(topic.options),
        len(topic.partitions),
        len(topic.groups),
        readable(topic.group_ids),
        topic.purge_count,
    )
    for found in topic.partitions:
        yield PartitionRow(stream_id, topic.topic_id, found.partition_id, found.incarnation, found.created_at)
    for _, group in sorted(topic.groups.items()):
        yield GroupRow(stream_id, topic.topic_id, group.group_id, group.name, group.created_at)


def _rows_of_user(user: User) -> Iterator[CatalogRow]:
    yield UserRow(
        user.user_id,
        user.name,
        password_text(user.password_hash),
        user.is_active,
        user.created_at,
        readable(user.permissions),
        len(user.tokens),
    )
    for _, token in sorted(user.tokens.items()):
        yield TokenRow(user.user_id, token.name, token.created_at, token.expires_at)


def _used_ids_row(owner: str, ids: UsedIds) -> UsedIdsRow:
    return UsedIdsRow(owner, ids.next_id, readable(ids.holes))
