"""What can happen to the catalog: the changes that the journal holds.

A change carries everything that applying it needs besides its op and its time: random numbers are drawn and passwords
are hashed before it is made. Numbers are never used again for something else; new fields go to the end, with a default.
"""

import msgspec

from courser.catalog.entities import PublishedPart, PublishTarget, PurgedTopic
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions


class Change(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """The root of all changes."""


class CreateStream(Change, frozen=True, tag=1):
    """Make a stream. ``stream_id`` only if the client names it itself."""

    name: str
    uuid: bytes
    stream_id: int | None = None


class UpdateStream(Change, frozen=True, tag=2):
    """Give a stream another name."""

    stream_id: int
    name: str


class DeleteStream(Change, frozen=True, tag=3):
    """Remove a stream with all its topics."""

    stream_id: int


class PurgeStream(Change, frozen=True, tag=4):
    """Remove the messages of all topics of a stream that lie below the ends in ``topics``."""

    stream_id: int
    topics: tuple[PurgedTopic, ...] = ()
    """Empty in entries of earlier versions: see ``PurgeTopic``."""


class CreateTopic(Change, frozen=True, tag=5):
    """Make a topic. ``topic_id`` only if the client names it itself."""

    stream_id: int
    name: str
    uuid: bytes
    partition_count: int
    options: TopicOptions
    topic_id: int | None = None


class UpdateTopic(Change, frozen=True, tag=6):
    """Change a topic's name and options, all of them."""

    stream_id: int
    topic_id: int
    name: str
    options: TopicOptions


class DeleteTopic(Change, frozen=True, tag=7):
    """Remove a topic."""

    stream_id: int
    topic_id: int


class PurgeTopic(Change, frozen=True, tag=8):
    """Remove the messages of a topic that lie below ``ends``."""

    stream_id: int
    topic_id: int
    count: int = 0
    """The topic's number of purges, this one included; 0 in entries of earlier versions: one more than before."""
    ends: tuple[int, ...] = ()
    """The next offset of each partition when the entry was made: whenever the purge is carried out, it removes nothing
    from there on. Empty in entries of earlier versions: a partition that missed such a purge keeps its messages."""


class CreatePartitions(Change, frozen=True, tag=9):
    """Add partitions behind the last one."""

    stream_id: int
    topic_id: int
    count: int


class DeletePartitions(Change, frozen=True, tag=10):
    """Remove the last partitions."""

    stream_id: int
    topic_id: int
    count: int


class CreateGroup(Change, frozen=True, tag=11):
    """Make a consumer group. ``group_id`` only if the client names it itself."""

    stream_id: int
    topic_id: int
    name: str
    group_id: int | None = None


class DeleteGroup(Change, frozen=True, tag=12):
    """Remove a consumer group."""

    stream_id: int
    topic_id: int
    group_id: int


class CreateUser(Change, frozen=True, tag=13):
    """Make an account."""

    name: str
    password_hash: str
    is_active: bool = True
    permissions: Permissions | None = None


class UpdateUser(Change, frozen=True, tag=14):
    """Change name or status; None leaves it."""

    user_id: int
    name: str | None = None
    is_active: bool | None = None


class DeleteUser(Change, frozen=True, tag=15):
    """Remove an account with its tokens."""

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
    """Make a personal access token. ``expires_at`` 0 is never."""

    user_id: int
    name: str
    token_hash: bytes
    expires_at: int = 0


class DeleteToken(Change, frozen=True, tag=19):
    """Remove a personal access token."""

    user_id: int
    name: str


class ForgetDeleted(Change, frozen=True, tag=20):
    """These directories are gone for good: their removal is synced."""

    paths: tuple[str, ...]


class BeginPublish(Change, frozen=True, tag=21):
    """Decide that a batch of a sink is published: the point from which on a crash does not take it back."""

    sink: str
    user_id: int
    batch: int
    nonce: bytes
    parts: tuple[PublishedPart, ...]
    targets: tuple[PublishTarget, ...]
    keep: int = 0
    """Microseconds that the sink is remembered after this; 0 is for ever."""


class EndPublish(Change, frozen=True, tag=22):
    """All messages of a publish are in their logs, and synced. ``op`` is that of its beginning."""

    sink: str
    op: int


class ForgetSink(Change, frozen=True, tag=23):
    """Forget a sink, and the publish that may be open: its batches count as never published."""

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
    """The number of a change's kind, as in the journal."""
    number = type(change).__struct_config__.tag
    assert isinstance(number, int)
    return number


def makes_room(change: Change) -> bool:
    """Whether there is less on the disk after a change than before. These work on a disk that is full for others."""
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
    """A change from the body of a journal entry. Raises ``ValueError``: such a body was never written."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a body that is not a change: {error}") from error
