"""Every change that can be made to the catalog, as the journal stores it.

A change contains everything that is needed to apply it, except its op and its time: random numbers are drawn and
passwords are hashed before. A number is never reused for another kind; new fields are added at the end, with a default.
"""

import msgspec

from courser.catalog.entities import PublishedPart, PublishTarget, PurgedTopic, options_as_written
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions


class Change(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """Base class of all changes."""


class StreamCreation(Change, frozen=True, tag=1):
    """Creates a stream. ``stream_id`` is set only if the client chooses the id."""

    name: str
    uuid: bytes
    stream_id: int | None = None


class StreamUpdate(Change, frozen=True, tag=2):
    """Gives a stream another name."""

    stream_id: int
    name: str


class StreamDeletion(Change, frozen=True, tag=3):
    """Deletes a stream and all its topics."""

    stream_id: int


class StreamPurge(Change, frozen=True, tag=4):
    """Deletes the messages below the ends in ``topics``, in all topics of a stream."""

    stream_id: int
    topics: tuple[PurgedTopic, ...] = ()
    """Empty in entries written by earlier versions, see ``TopicPurge``."""


class TopicCreation(Change, frozen=True, tag=5):
    """Creates a topic. ``topic_id`` is set only if the client chooses the id."""

    stream_id: int
    name: str
    uuid: bytes
    partition_count: int
    options: TopicOptions
    topic_id: int | None = None


class TopicUpdate(Change, frozen=True, tag=6):
    """Replaces a topic's name and all its options."""

    stream_id: int
    topic_id: int
    name: str
    options: TopicOptions


class TopicDeletion(Change, frozen=True, tag=7):
    """Deletes a topic with its partitions."""

    stream_id: int
    topic_id: int


class TopicPurge(Change, frozen=True, tag=8):
    """Deletes the messages of a topic below ``ends``."""

    stream_id: int
    topic_id: int
    count: int = 0
    """How often the topic has been purged, including this purge. 0 in entries written by earlier versions, which means
    one more than before."""
    ends: tuple[int, ...] = ()
    """The next offset of each partition when the entry was created. The purge deletes nothing from there on, however
    late it runs. Empty in entries written by earlier versions: a partition that missed such a purge keeps its messages.
    """


class PartitionCreation(Change, frozen=True, tag=9):
    """Adds partitions after the last one."""

    stream_id: int
    topic_id: int
    count: int


class PartitionDeletion(Change, frozen=True, tag=10):
    """Deletes the last ``count`` partitions."""

    stream_id: int
    topic_id: int
    count: int


class GroupCreation(Change, frozen=True, tag=11):
    """Creates a consumer group. ``group_id`` is set only if the client chooses the id."""

    stream_id: int
    topic_id: int
    name: str
    group_id: int | None = None


class GroupDeletion(Change, frozen=True, tag=12):
    """Deletes a consumer group."""

    stream_id: int
    topic_id: int
    group_id: int


class UserCreation(Change, frozen=True, tag=13):
    """Creates a user with a password and permissions."""

    name: str
    password_hash: str
    is_active: bool = True
    permissions: Permissions | None = None


class UserUpdate(Change, frozen=True, tag=14):
    """Changes a user's name or status; None leaves it unchanged."""

    user_id: int
    name: str | None = None
    is_active: bool | None = None


class UserDeletion(Change, frozen=True, tag=15):
    """Deletes a user and their tokens."""

    user_id: int


class PasswordChange(Change, frozen=True, tag=16):
    """Sets a new password."""

    user_id: int
    password_hash: str


class PermissionUpdate(Change, frozen=True, tag=17):
    """Replaces all permissions of a user."""

    user_id: int
    permissions: Permissions | None


class TokenCreation(Change, frozen=True, tag=18):
    """Creates a personal access token. ``expires_at`` is 0 if it never expires."""

    user_id: int
    name: str
    token_hash: bytes
    expires_at: int = 0


class TokenDeletion(Change, frozen=True, tag=19):
    """Deletes a personal access token."""

    user_id: int
    name: str


class DirectoryRemoval(Change, frozen=True, tag=20):
    """Forgets deleted directories whose removal is synced."""

    paths: tuple[str, ...]


class PublishStart(Change, frozen=True, tag=21):
    """Decides that a batch of a sink is published. After this entry a crash cannot undo the publish."""

    sink: str
    user_id: int
    batch: int
    nonce: bytes
    parts: tuple[PublishedPart, ...]
    targets: tuple[PublishTarget, ...]
    keep: int = 0
    """How long the sink is remembered after this, in microseconds; 0 is forever."""


class PublishEnd(Change, frozen=True, tag=22):
    """Ends a publish: all its messages are in their logs and synced. ``op`` is that of its ``PublishStart``."""

    sink: str
    op: int


class SinkRemoval(Change, frozen=True, tag=23):
    """Forgets a sink and its open publish, if any: its batches count as never published."""

    sink: str


AnyChange = (
    StreamCreation
    | StreamUpdate
    | StreamDeletion
    | StreamPurge
    | TopicCreation
    | TopicUpdate
    | TopicDeletion
    | TopicPurge
    | PartitionCreation
    | PartitionDeletion
    | GroupCreation
    | GroupDeletion
    | UserCreation
    | UserUpdate
    | UserDeletion
    | PasswordChange
    | PermissionUpdate
    | TokenCreation
    | TokenDeletion
    | DirectoryRemoval
    | PublishStart
    | PublishEnd
    | SinkRemoval
)

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[AnyChange] = msgspec.msgpack.Decoder(AnyChange)


def change_number(change: Change) -> int:
    """The number of a change's kind, as stored in the journal."""
    number = type(change).__struct_config__.tag
    assert isinstance(number, int)
    return number


ROOM_MAKERS = (
    StreamDeletion,
    StreamPurge,
    TopicDeletion,
    TopicPurge,
    PartitionDeletion,
    DirectoryRemoval,
    PublishEnd,
    SinkRemoval,
)
"""Changes that free disk space. They must work on a full disk."""


def encode_change(change: Change) -> bytes:
    """The body of a journal entry."""
    if isinstance(change, TopicCreation | TopicUpdate):
        change = msgspec.structs.replace(change, options=options_as_written(change.options))
    return _encode(change)


def decode_change(body: bytes) -> AnyChange:
    """Decode the body of a journal entry. Raises ``ValueError`` if this version cannot have written it."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"an invalid change: {error}") from error
