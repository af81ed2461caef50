"""The replies to commands. Codecs encode them.

There is no reply for something that does not exist: the handler raises, and a codec that has to reply "not found"
converts the error. Commands without a reply return None.
"""

from typing import Annotated, NamedTuple

import msgspec

from courser.api.fields import (
    U32,
    U64,
    Active,
    Counted,
    Flag,
    Id,
    Incarnation,
    OptionalU64,
    Text8,
    Text32,
    ToTheEnd,
    Uuid,
)
from courser.model.messaging import Transport
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Base class of all replies."""


# --- streams and topics -------------------------------------------------------------------------------


class StreamInfo(Reply, frozen=True):
    """A stream, with the sums over its topics."""

    stream_id: Id
    created_at: U64
    topic_count: U32
    size: U64
    message_count: U64
    name: Text8


class TopicInfo(Reply, frozen=True):
    """A topic, with the sums over its partitions."""

    topic_id: int
    created_at: int
    partition_count: int
    size: int
    message_count: int
    name: str
    options: TopicOptions
    """The options that were set; None is the server's default."""
    effective: TopicOptions
    """The effective options; no field is None."""


class PartitionInfo(Reply, frozen=True):
    """A partition and its figures."""

    partition_id: Id
    created_at: U64
    segment_count: U32
    current_offset: U64
    """Of the newest message; 0 if there was none."""
    size: U64
    message_count: U64
    incarnation: Incarnation = 0


class StreamDetails(Reply, frozen=True):
    """A stream and its topics, by id."""

    stream: StreamInfo
    topics: list[TopicInfo]


class StreamList(Reply, frozen=True):
    """All streams, ordered by id."""

    streams: list[StreamInfo]


class TopicDetails(Reply, frozen=True):
    """A topic and its partitions, by id."""

    topic: TopicInfo
    partitions: list[PartitionInfo]


class TopicList(Reply, frozen=True):
    """The topics of a stream, ordered by id."""

    topics: list[TopicInfo]


# --- messages -----------------------------------------------------------------------------------------


class Sent(Reply, frozen=True):
    """Where messages were stored."""

    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int


class Polled(Reply, frozen=True):
    """Messages as they are stored: batch records (256-byte wire header and frames), extension blanked."""

    partition_id: int
    current_offset: int
    message_count: int
    pieces: tuple[memoryview, ...]
    """Consecutive whole batch records, over all pieces."""
    size: int
    incarnation: int = 0
    """Of the partition."""


class ReadyPartitions(Reply, frozen=True):
    """Partitions that can be read now, or whose read fails now."""

    partition_ids: tuple[int, ...]


class FetchedPartition(NamedTuple):
    """What was read of one partition. There is nothing unless ``status`` is 0."""

    partition_id: int
    status: int
    """0, or the number of an error."""
    current_offset: int
    message_count: int
    incarnation: int
    next_offset: int
    """Where to read on."""
    size: int
    """Bytes of its batch records."""


class Fetched(Reply, frozen=True):
    """Messages of several partitions."""

    partitions: tuple[FetchedPartition, ...]
    """In the order of the request. Those that are left out were not read: the reply is full."""
    pieces: tuple[memoryview, ...]
    """The batch records of all of them, in this order."""
    size: int
    is_copied: bool
    """Whether they are copies of the messages that were read."""


class PartitionRoute(Reply, frozen=True):
    """Where the requests for a partition go: there is one server."""

    incarnation: int
    partition_count: int
    """Of the topic."""


class Arrivals(Reply, frozen=True):
    """Which partitions have something to read."""

    generation: U64
    """Of the group's assignment; 0 for single consumers."""
    partition_ids: Annotated[tuple[U32, ...], Counted()]


class ArrivalsInTopics(Reply, frozen=True):
    """Which partitions of several topics have something to read."""

    numbers: Annotated[tuple[U32, ...], Counted()]
    """Of the rows in the request, from 0."""


class FoundMessages(Reply, frozen=True):
    """A range that contains all messages that match, among those that were looked at; empty if none does."""

    first_offset: U64
    end_offset: U64
    """The offset after the last message that may match."""
    next_offset: U64
    """Where to continue; the offset of the request if there was nothing to look at."""


class StoredOffset(Reply, frozen=True):
    """The stored offset of a consumer."""

    partition_id: Id
    current_offset: U64
    stored_offset: U64


class PartitionBounds(Reply, frozen=True):
    """What a partition holds now: ``[first_offset, next_offset)``."""

    partition_id: U32
    first_offset: U64
    next_offset: U64
    size: U64
    message_count: U64


class TopicBounds(Reply, frozen=True):
    """The bounds of all partitions."""

    stream_id: U32
    topic_id: U32
    topic_uuid: Uuid
    partitions: Annotated[list[PartitionBounds], Counted()]


class TopicDurability(Reply, frozen=True):
    """The levels in effect, and the bounds of ``bounded``."""

    level: Text8
    """``written``, ``bounded`` or ``synced``."""
    message_count_max: OptionalU64
    """How many messages a power cut may lose per partition; like the next two, absent if there is no such bound."""
    size_max: OptionalU64
    """The same in bytes."""
    interval: OptionalU64
    """Microseconds from the first unsynced write to its sync."""
    offset_level: Text8
    """The level of stored offsets: ``written`` or ``synced``."""


LOCAL, REMOTE = "local", "remote"
"""Where a segment is."""


class SegmentInfo(Reply, frozen=True):
    """A segment of a partition."""

    first_offset: U64
    next_offset: U64
    size: U64
    message_count: U64
    first_timestamp: U64
    last_timestamp: U64
    is_sealed: Flag
    state: Text8
    """``active``, ``rolled``, ``expired`` (to be deleted by the cleaner) or ``archived``."""
    location: Text8
    """``local`` or ``remote``: on the server's disk, or in the archive alone."""


class SegmentList(Reply, frozen=True):
    """The segments of a partition, oldest first."""

    partition_id: U32
    directory: Text32
    """Relative to the data directory."""
    segments: Annotated[list[SegmentInfo], Counted()]


class Deletion(Reply, frozen=True):
    """Segments of a partition that were deleted together."""

    deleted_at: U64
    reason: Text8
    """``expired``, ``size`` (of the topic), ``requested``, ``purged`` or ``pressure`` (too little free disk space)."""
    partition_id: U32
    first_offset: U64
    next_offset: U64
    segment_count: U32
    message_count: U64
    size: U64


class Damage(Reply, frozen=True):
    """Messages of a partition that cannot be read, because their bytes on disk have changed."""

    partition_id: U32
    segment_offset: U64
    """The first offset of the segment, which is also the name of its file."""
    first_offset: U64
    next_offset: U64
    position: U64
    size: U64


class TopicMaintenance(Reply, frozen=True):
    """What was deleted from a topic, and what is damaged in it."""

    deletions: Annotated[list[Deletion], Counted()]
    """The last 100 since the server started, oldest first."""
    damages: Annotated[list[Damage], Counted()]
    """By partition and offset: found by starts, by reads and by the scrubber."""


# --- consumer groups ----------------------------------------------------------------------------------


class GroupInfo(Reply, frozen=True):
    """A consumer group and its size."""

    group_id: Id
    partition_count: U32
    member_count: U32
    name: Text8


class GroupMember(Reply, frozen=True):
    """A member and its partitions."""

    member_id: U32
    partition_ids: Annotated[tuple[Id, ...], Counted()]


class GroupDetails(Reply, frozen=True):
    """A group and its members, in the order in which they joined."""

    group: GroupInfo
    members: Annotated[list[GroupMember], ToTheEnd()]


class GroupList(Reply, frozen=True):
    """The consumer groups of a topic, ordered by id."""

    groups: Annotated[list[GroupInfo], ToTheEnd()]


class PartitionLag(Reply, frozen=True):
    """How far a consumer group is behind in one partition."""

    partition_id: U32
    stored_offset: OptionalU64
    """The offset that the group has committed; None if there is none."""
    next_offset: OptionalU64
    """The offset of the next message that is sent; None if the partition is offline, and nothing else is known."""
    message_count: OptionalU64
    """Messages that are not committed. Those that are deleted, and offsets that were never used, do not count."""
    age: OptionalU64
    """Microseconds since the oldest of these messages was stored; 0 if there are none, None if it cannot be read."""


class GroupLag(Reply, frozen=True):
    """The lag of a consumer group in each partition, by id."""

    partitions: Annotated[list[PartitionLag], Counted()]


class Assignment(Reply, frozen=True):
    """The partitions that are assigned to this member since ``generation``."""

    generation: U64
    partition_ids: Annotated[tuple[Id, ...], Counted()]


class ConfirmedAssignment(Assignment, frozen=True):
    """An assignment for a member that confirms. In a reply of Courser's own, all ids count from 0."""


# --- users and clients --------------------------------------------------------------------------------


class LoggedIn(Reply, frozen=True):
    """The user that has logged in."""

    user_id: int
    session: int
    """Increases with every login, and is never repeated."""
    frame_size_max: int | None = None
    """Maximum bytes of a request, for Courser's own client. None: the server does not say."""


class UserInfo(Reply, frozen=True):
    """A user without its permissions."""

    user_id: Id
    created_at: U64
    is_active: Active
    name: Text8


class UserDetails(Reply, frozen=True):
    """A user and their permissions."""

    user: UserInfo
    permissions: Permissions | None


class UserList(Reply, frozen=True):
    """All users, ordered by id."""

    users: list[UserInfo]


class TokenInfo(Reply, frozen=True):
    """A personal access token, without its secret."""

    name: Text8
    expires_at: U64
    """Microseconds since 1970; 0 is never."""


class TokenList(Reply, frozen=True):
    """The tokens of one user."""

    tokens: Annotated[list[TokenInfo], ToTheEnd()]


class NewToken(Reply, frozen=True):
    """The secret of a new token: shown once."""

    token: Text8


class ClientGroup(Reply, frozen=True):
    """A group that a client is a member of."""

    stream_id: Id
    topic_id: Id
    group_id: Id


class ClientInfo(Reply, frozen=True):
    """A connection and its user."""

    client_id: int
    user_id: int | None
    transport: Transport
    address: str
    group_count: int


class ClientDetails(Reply, frozen=True):
    """A connection and its groups."""

    client: ClientInfo
    groups: list[ClientGroup]


class ClientList(Reply, frozen=True):
    """All connections, ordered by id."""

    clients: list[ClientInfo]


# --- system -------------------------------------------------------------------------------------------


class Stats(Reply, frozen=True, kw_only=True):
    """Statistics of the server. Sizes are in bytes, times in microseconds."""

    process_id: int
    cpu_usage: float
    """Percent of one core, of this process."""
    total_cpu_usage: float
    """Percent of one core, averaged over all, of the machine."""
    memory_usage: int
    total_memory: int
    available_memory: int
    run_time: int
    start_time: int
    read_bytes: int
    written_bytes: int
    messages_size: int
    stream_count: int
    topic_count: int
    partition_count: int
    segment_count: int
    message_count: int
    client_count: int
    group_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    server_version: str
    server_semver: int
    """major * 1,000,000 + minor * 1,000 + patch."""
    thread_count: int
    free_disk_space: int
    total_disk_space: int
    open_file_count: int = 0
    """Of this process, with its connections."""
    open_file_limit: int = 0
    """How many it may have."""


class Node(Reply, frozen=True):
    """A server. There is one."""

    name: str
    ip: str
    tcp_port: int
    quic_port: int
    http_port: int
    websocket_port: int


class ClusterMetadata(Reply, frozen=True):
    """A cluster of one healthy leader."""

    name: str
    nodes: list[Node]


class MetricsText(Reply, frozen=True):
    """All metrics of the server."""

    text: Text32
    """In the text format of Prometheus, version 0.0.4."""


class SnapshotArchive(Reply, frozen=True):
    """The bytes of a ZIP file."""

    data: bytes


class OptionDescription(Reply, frozen=True):
    """An option that can be set."""

    key: str
    default: str | int | bool
    description: str


class OptionList(Reply, frozen=True):
    """In the order in which Iggy lists them."""

    options: list[OptionDescription]


# --- staged writes ------------------------------------------------------------------------------------


class StagedPart(Reply, frozen=True):
    """The contents of a part."""

    message_count: U64
    size: U64
    """Bytes of batch records."""


class Published(Reply, frozen=True):
    """A batch of a sink is in the logs."""

    is_repeated: Flag
    """Whether the batch had been published before: then nothing was appended."""
    message_count: U64
    """How many messages were appended."""
    size: U64


class SinkInfo(Reply, frozen=True):
    """The state of a sink."""

    batch: OptionalU64
    """The highest batch that is published."""
    is_open: Flag
    """Whether the last publish is decided but not finished: some messages are not yet in their logs, or not synced."""
    published_at: U64
    """Microseconds; 0 if never."""
    part_count: U32
    """Staged parts that are not published."""
    staged_size: U64
    """Bytes of their files."""


class SinkSummary(Reply, frozen=True):
    """A sink of a user, in a list: it has published something, has staged parts, or both."""

    name: Text8
    user_id: U32
    batch: OptionalU64
    """The highest batch that is published."""
    is_open: Flag
    published_at: U64
    expires_at: U64
    """When it is forgotten, in microseconds; 0 is never."""
    part_count: U32
    staged_size: U64


class SinkList(Reply, frozen=True):
    """All sinks, ordered by name and user."""

    sinks: Annotated[list[SinkSummary], Counted()]


class StagedPartInfo(Reply, frozen=True):
    """One attempt at one part."""

    user_id: U32
    batch: U64
    part: U32
    attempt: U64
    chunk_count: U32
    message_count: U64
    size: U64
    """Bytes of its file."""
    is_finished: Flag
    """Whether it is durable, and can be published."""
    touched_at: U64
    """When something was last added, or when the server found the part at its start. It expires some time later."""


class StagedPartList(Reply, frozen=True):
    """Staged parts, ordered by user, batch, part and attempt."""

    parts: Annotated[list[StagedPartInfo], Counted()]
