"""The feed of metadata changes that SDK 0.10 reads: positions in it, its records, and items of the present state.

A record tells one change, and the deletion of a resource stands for everything in it. The number of a change is its op
in the journal and 1: 0 is before the first.
"""

from enum import IntEnum
from typing import Annotated, Any, TypeAlias

import msgspec

from courser.api.fields import U8, U32, U64, Active, Counted, Kind, MaybePermissions, MaybeU64, Name, Uuid
from courser.api.replies import Reply
from courser.model.topic_options import TopicOptions

LIMIT_DEFAULT, LIMIT_MAX = 100, 1000
"""Records or items of a page, as the SDK has them."""


class ChangeGroup(IntEnum):
    """What a change is about. Members of groups and sessions are not journaled, so they are never in the feed."""

    STREAMS = 1
    TOPICS = 2
    PARTITIONS = 3
    CONSUMER_GROUPS = 4
    CONSUMER_GROUP_MEMBERS = 5
    USERS = 6
    PERSONAL_ACCESS_TOKENS = 7
    SESSIONS = 8

    @property
    def bit(self) -> int:
        """In a set of groups."""
        return 1 << self - 1


ALL_GROUPS = sum(group.bit for group in ChangeGroup)


class ChangeKind(IntEnum):
    """What happened."""

    STREAM_CREATED = 1
    STREAM_UPDATED = 2
    STREAM_DELETED = 3
    TOPIC_CREATED = 10
    TOPIC_UPDATED = 11
    TOPIC_DELETED = 12
    PARTITIONS_CHANGED = 20
    CONSUMER_GROUP_CREATED = 30
    CONSUMER_GROUP_DELETED = 31
    USER_CREATED = 50
    USER_UPDATED = 51
    USER_DELETED = 52
    USER_PASSWORD_CHANGED = 53
    USER_PERMISSIONS_UPDATED = 54
    PERSONAL_ACCESS_TOKEN_CREATED = 60
    PERSONAL_ACCESS_TOKEN_DELETED = 61

    @property
    def group(self) -> ChangeGroup:
        """What it is about: each group has ten numbers."""
        return ChangeGroup(self // 10 + 1)


class ChangesStart(IntEnum):
    """Where a page starts. ``LATEST`` gives no records, only the position; ``CURRENT`` gives the present state."""

    EARLIEST = 0
    LATEST = 1
    AFTER = 2
    CURRENT = 3


class ChangesStatus(IntEnum):
    """Whether the position of a request is known. A single server is never behind one, which would be 1."""

    OK = 0
    EXPIRED = 2
    """There are changes after it that are no longer known."""
    RESET = 3
    """It is of another history."""


class Cursor(msgspec.Struct, frozen=True):
    """The position of the last record that a client has seen."""

    log_id: Uuid
    op: U64
    checksum: Uuid
    """Of the entry in the journal, which covers all entries before it."""
    ordinal: U32 = 0
    """Of the record in its change, which has only one."""


ItemKey: TypeAlias = tuple[int | str, ...]
"""The ids of an item, those of what it is in first. A token has its user's id and its name."""


class PageToken(msgspec.Struct, frozen=True):
    """Where to continue to read the present state."""

    anchor: Cursor
    """The position before the first page: with the changes after it, the pages make up one state."""
    head: U64
    """The newest change when the last page was made."""
    groups: U8
    """The set of groups that was asked for."""
    group: U8
    """Of the last item, like the key."""
    key: Annotated[ItemKey, Kind.ABSENT] = ()


_LEFT_OUT: Any = msgspec.UNSET


class ChangeBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a record or an item says, in the order on the wire and with the names of HTTP. No kind has all fields."""

    stream_id: U32 = _LEFT_OUT
    stream_created_op: U64 = _LEFT_OUT
    """0, like that of topics: it tells ids apart that are used again, and no id is used again here."""
    topic_id: U32 = _LEFT_OUT
    topic_created_op: U64 = _LEFT_OUT
    group_id: U32 = _LEFT_OUT
    user_id: U32 = _LEFT_OUT
    user_created_at: U64 = _LEFT_OUT
    created_at: U64 = _LEFT_OUT
    name: Name = _LEFT_OUT
    username: Name = _LEFT_OUT
    status: Active = _LEFT_OUT
    partitions_count: U32 = _LEFT_OUT
    consumer_groups_count: U32 = _LEFT_OUT
    """Of the topic, afterwards."""
    removed_partition_ids: Annotated[tuple[U32, ...], Counted()] = _LEFT_OUT
    requested_op: MaybeU64 = _LEFT_OUT
    """None: no deletion is put off."""
    permissions: MaybePermissions = _LEFT_OUT
    expiry: U64 = _LEFT_OUT
    """0: never."""
    reason: U8 = _LEFT_OUT
    """0 on request, 1 because a token had expired."""
    options: Annotated[TopicOptions | msgspec.UnsetType | None, Kind.ABSENT] = msgspec.UNSET
    """Those that were set for a topic. None: streams and users have none."""
    effective: Annotated[TopicOptions | None, Kind.ABSENT] = None
    """With the server's defaults, which the catalog does not know."""


class ChangeRecord(msgspec.Struct, frozen=True):
    """One change. Who made it is not known: the journal does not say."""

    op: int
    checksum: bytes
    timestamp: int
    kind: ChangeKind
    body: ChangeBody


class ChangeItem(msgspec.Struct, frozen=True):
    """A resource in the present state."""

    group: ChangeGroup
    body: ChangeBody


class MetadataChanges(Reply, frozen=True):
    """A page of the changes of the metadata, or of its present state."""

    status: ChangesStatus
    is_current: bool
    """Whether it has items instead of records."""
    log_id: bytes
    oldest_op: int
    """From which on all changes are known."""
    retained_since: int
    """The time after which all changes are known; 0 if all are."""
    head_op: int
    """The newest change."""
    next: Cursor | None = None
    has_more: bool = False
    records: tuple[ChangeRecord, ...] = ()
    items: tuple[ChangeItem, ...] = ()
    page_token: PageToken | None = None
