"""What commands are answered with. Codecs put them into bytes.

A thing that is not there is never a reply: the handler raises, and a codec that has to answer "nothing" turns the
error into that. Commands without an answer get None.
"""

import msgspec

from courser.model.messaging import Transport
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The root of all replies."""


# --- streams and topics -------------------------------------------------------------------------------


class StreamInfo(Reply, frozen=True):
    """A stream, with the sums over its topics."""

    stream_id: int
    created_at: int
    topic_count: int
    size: int
    message_count: int
    name: str


class TopicInfo(Reply, frozen=True):
    """A topic, with the sums over its partitions."""

    topic_id: int
    created_at: int
    partition_count: int
    size: int
    message_count: int
    name: str
    options: TopicOptions
    """What somebody set; None is the server's default."""
    effective: TopicOptions
    """What holds, no field None."""


class PartitionInfo(Reply, frozen=True):
    """A partition."""

    partition_id: int
    created_at: int
    segment_count: int
    current_offset: int
    """Of the newest message; 0 if there never was one."""
    size: int
    message_count: int


class StreamDetails(Reply, frozen=True):
    """A stream and its topics, by id."""

    stream: StreamInfo
    topics: list[TopicInfo]


class StreamList(Reply, frozen=True):
    """By id."""

    streams: list[StreamInfo]


class TopicDetails(Reply, frozen=True):
    """A topic and its partitions, by id."""

    topic: TopicInfo
    partitions: list[PartitionInfo]


class TopicList(Reply, frozen=True):
    """By id."""

    topics: list[TopicInfo]


# --- messages -----------------------------------------------------------------------------------------


class Sent(Reply, frozen=True):
    """Where messages were put."""

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
    """Whole batch records behind one another, over all pieces."""
    size: int


class Arrivals(Reply, frozen=True):
    """Which partitions have something to read."""

    generation: int
    """Of the group's assignment; 0 for single consumers."""
    partition_ids: tuple[int, ...]


class StoredOffset(Reply, frozen=True):
    """How far a consumer got."""

    partition_id: int
    current_offset: int
    stored_offset: int


class PartitionBounds(Reply, frozen=True):
    """What a partition holds now: ``[first_offset, next_offset)``."""

    partition_id: int
    first_offset: int
    next_offset: int
    size: int
    message_count: int


class TopicBounds(Reply, frozen=True):
    """The bounds of all partitions."""

    stream_id: int
    topic_id: int
    topic_uuid: bytes
    partitions: list[PartitionBounds]


class SegmentInfo(Reply, frozen=True):
    """A segment of a partition."""

    first_offset: int
    next_offset: int
    size: int
    message_count: int
    first_timestamp: int
    last_timestamp: int
    is_sealed: bool


class SegmentList(Reply, frozen=True):
    """Oldest first."""

    partition_id: int
    directory: str
    """Relative to the data directory."""
    segments: list[SegmentInfo]


# --- consumer groups ----------------------------------------------------------------------------------


class GroupInfo(Reply, frozen=True):
    """A consumer group."""

    group_id: int
    partition_count: int
    member_count: int
    name: str


class GroupMember(Reply, frozen=True):
    """A member and its partitions."""

    member_id: int
    partition_ids: tuple[int, ...]


class GroupDetails(Reply, frozen=True):
    """A group and its members, in the order in which they joined."""

    group: GroupInfo
    members: list[GroupMember]


class GroupList(Reply, frozen=True):
    """By id."""

    groups: list[GroupInfo]


class Assignment(Reply, frozen=True):
    """What belongs to this member since ``generation``."""

    generation: int
    partition_ids: tuple[int, ...]


# --- users and clients --------------------------------------------------------------------------------


class LoggedIn(Reply, frozen=True):
    """A successful login."""

    user_id: int
    session: int
    """Grows with every login."""


class UserInfo(Reply, frozen=True):
    """An account."""

    user_id: int
    created_at: int
    is_active: bool
    name: str


class UserDetails(Reply, frozen=True):
    """An account and what it may do."""

    user: UserInfo
    permissions: Permissions | None


class UserList(Reply, frozen=True):
    """By id."""

    users: list[UserInfo]


class TokenInfo(Reply, frozen=True):
    """A personal access token, without its secret."""

    name: str
    expires_at: int
    """Microseconds since 1970; 0 is never."""


class TokenList(Reply, frozen=True):
    """The tokens of one user."""

    tokens: list[TokenInfo]


class NewToken(Reply, frozen=True):
    """The secret of a new token: shown once."""

    token: str


class ClientGroup(Reply, frozen=True):
    """A group that a client is a member of."""

    stream_id: int
    topic_id: int
    group_id: int


class ClientInfo(Reply, frozen=True):
    """A connection."""

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
    """By id."""

    clients: list[ClientInfo]


# --- system -------------------------------------------------------------------------------------------


class Stats(Reply, frozen=True, kw_only=True):
    """Figures about the server. Sizes are bytes, times microseconds."""

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
    """What a part holds."""

    message_count: int
    size: int
    """Bytes of batch records."""


class Published(Reply, frozen=True):
    """A batch of a sink is in the logs."""

    is_repeated: bool
    """Whether it was published before: then nothing was appended."""
    message_count: int
    """What was appended now."""
    size: int


class SinkInfo(Reply, frozen=True):
    """A sink as the server knows it."""

    batch: int | None
    """The highest one that is published; None if there is none."""
    is_open: bool
    """Whether some of its messages are not in their logs yet, or not synced there: the server is at it, or a publish of
    the same batch goes on with it."""
    published_at: int
    """Microseconds; 0 if never."""
    part_count: int
    """Staged parts that are not published."""
    staged_size: int
    """Bytes of their files."""


class SinkSummary(Reply, frozen=True):
    """A sink of a user, in a list: it has published something, or something is staged for it, or both."""

    name: str
    user_id: int
    batch: int | None
    """As in ``SinkInfo``, and so are those below."""
    is_open: bool
    published_at: int
    expires_at: int
    """When it is forgotten, in microseconds; 0 is never."""
    part_count: int
    staged_size: int


class SinkList(Reply, frozen=True):
    """By name and user."""

    sinks: list[SinkSummary]


class StagedPartInfo(Reply, frozen=True):
    """One attempt at one part."""

    user_id: int
    batch: int
    part: int
    attempt: int
    chunk_count: int
    message_count: int
    size: int
    """Bytes of its file."""
    is_finished: bool
    """Whether it is durable, and can be published."""
    touched_at: int
    """When something was added to it, or when the server found it at its start: it expires by this."""


class StagedPartList(Reply, frozen=True):
    """By user, batch, part and attempt."""

    parts: list[StagedPartInfo]
