"""Every change that can be made to the catalog, as the journal stores it.

A change contains everything that is needed to apply it, except its op and its time: random numbers are drawn and
passwords are hashed before. A number is never reused for another kind; new fields are added at the end, with a default.
"""

import msgspec

from courser.catalog.entities import PublishedPart, PublishTarget, PurgedTopic
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions


class Change(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """Base class of all changes."""


class CreateStream(Change, frozen=True, tag=1):
    """Create a stream. ``stream_id`` is set only if the client chooses the id."""

    name: str
    uuid: bytes
    stream_id: int | None = None


class UpdateStream(Change, frozen=True, tag=2):
    """Rename a stream."""

    stream_id: int
    name: str


class DeleteStream(Change, frozen=True, tag=3):
    """Delete a stream and all its topics."""

    stream_id: int


class PurgeStream(Change, frozen=True, tag=4):
    """Delete the messages below the ends in ``topics``, in all topics of a stream."""

    stream_id: int
    topics: tuple[PurgedTopic, ...] = ()
    """Empty in entries written by earlier versions, see ``PurgeTopic``."""


class CreateTopic(Change, frozen=True, tag=5):
    """Create a topic. ``topic_id`` is set only if the client chooses the id."""

    stream_id: int
    name: str
    uuid: bytes
    partition_count: int
    options: TopicOptions
    topic_id: int | None = None


class UpdateTopic(Change, frozen=True, tag=6):
    """Replace a topic's name and all its options."""

    stream_id: int
    topic_id: int
    name: str
    options: TopicOptions


class DeleteTopic(Change, frozen=True, tag=7):
    """Delete a topic."""

    stream_id: int
    topic_id: int


class PurgeTopic(Change, frozen=True, tag=8):
    """Delete the messages of a topic below ``ends``."""

    stream_id: int
    topic_id: int
    count: int = 0
    """How often the topic has been purged, including this purge. 0 in entries written by earlier versions, which means
    one more than before."""
    ends: tuple[int, ...] = ()
    """The next offset of each partition when the entry was created. The purge deletes nothing from there on, however
    late it runs. Empty in entries written by earlier versions: a partition that missed such a purge keeps its messages.
    """


class CreatePartitions(Change, frozen=True, tag=9):
    """Add partitions after the last one."""

    stream_id: int
    topic_id: int
    count: int


class DeletePartitions(Change, frozen=True, tag=10):
    """Delete the last ``count`` partitions."""

    stream_id: int
    topic_id: int
    count: int


class CreateGroup(Change, frozen=True, tag=11):
    """Create a consumer group. ``group_id`` is set only if the client chooses the id."""

    stream_id: int
    topic_id: int
    name: str
    group_id: int | None = None


class DeleteGroup(Change, frozen=True, tag=12):
    """Delete a consumer group."""

    stream_id: int
    topic_id: int
    group_id: int


class CreateUser(Change, frozen=True, tag=13):
    """Create a user."""

    name: str
    password_hash: str
    is_active: bool = True
    permissions: Permissions | None = None


class UpdateUser(Change, frozen=True, tag=14):
    """Change a user's name or status; None leaves it unchanged."""

    user_id: int
    name: str | None = None
    is_active: bool | None = None


class DeleteUser(Change, frozen=True, tag=15):
    """Delete a user and their tokens."""

    user_id: int


class ChangePassword(Change, frozen=True, tag=16):
    """Set a new password."""

    user_id: int
    password_hash: str


class UpdatePermissions(Change, frozen=True, tag=17):
    """Replace all permissions of a user."""

    user_id: int
    permissions: Permissions | None


class CreateToken(Change, frozen=True, tag=18):
    """Create a personal access token. ``expires_at`` is 0 if it never expires."""

    user_id: int
    name: str
    token_hash: bytes
    expires_at: int = 0


class DeleteToken(Change, frozen=True, tag=19):
    """Delete a personal access token."""

    user_id: int
    name: str


class ForgetDeleted(Change, frozen=True, tag=20):
    """Forget deleted directories whose removal is synced."""

    paths: tuple[str, ...]


class BeginPublish(Change, frozen=True, tag=21):
    """Decide that a batch of a sink is published. After this entry a crash cannot undo the publish."""

    sink: str
    user_id: int
    batch: int
    nonce: bytes
    parts: tuple[PublishedPart, ...]
    targets: tuple[PublishTarget, ...]
    keep: int = 0
    """How long the sink is remembered after this, in microseconds; 0 is forever."""


class EndPublish(Change, frozen=True, tag=22):
    """End a publish: all its messages are in their logs and synced. ``op`` is that of its ``BeginPublish``."""

    sink: str
    op: int


class ForgetSink(Change, frozen=True, tag=23):
    """Forget a sink and its open publish, if any: its batches count as never published."""

    sink: str


AnyChange = (
    CreateStream
    | UpdateStream
    | DeleteStream
    | PurgeStream
    | CreateTopic
    | UpdateTopic
    | DeleteTopic
    | PurgeTopic
    | CreatePartitions
    | DeletePartitions
    | CreateGroup
    | DeleteGroup
    | CreateUser
    | UpdateUser
    | DeleteUser
    | ChangePassword
    | UpdatePermissions
    | CreateToken
    | DeleteToken
    | ForgetDeleted
    | BeginPublish
    | EndPublish
    | ForgetSink
)

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[AnyChange] = msgspec.msgpack.Decoder(AnyChange)


def change_number(change: Change) -> int:
    """The number of a change's kind, as stored in the journal."""
    number = type(change).__struct_config__.tag
    assert isinstance(number, int)
    return number


def makes_room(change: Change) -> bool:
    """Whether a change frees disk space. Such changes must work on a full disk."""
    return isinstance(change, _ROOM_MAKERS)


_ROOM_MAKERS = (
    DeleteStream,
    PurgeStream,
    DeleteTopic,
    PurgeTopic,
    DeletePartitions,
    ForgetDeleted,
    EndPublish,
    ForgetSink,
)


def encode_change(change: Change) -> bytes:
    """The body of a journal entry."""
    return _encode(change)


def decode_change(body: bytes) -> AnyChange:
    """Decode the body of a journal entry. Raises ``ValueError`` if this version cannot have written it."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a body that is not a change: {error}") from error
