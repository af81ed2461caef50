"""The JSON of every reply, as types: replies are written from them, and the OpenAPI document describes them."""

from typing import Literal, get_type_hints
from uuid import UUID

import msgspec

from courser.api import replies as r
from courser.model.topic_options import TopicOptions
from courser.wire.rest_fields import JsonPermissions, Status
from courser.wire.vsr_options import describe_topic_options, option_kind

# --- streams and topics -------------------------------------------------------------------------------


class StreamView(msgspec.Struct):
    """A stream and its sizes."""

    id: int
    created_at: int
    """Microseconds since 1970."""
    name: str
    size: str
    """With a unit, exact: 1.5 KiB."""
    messages_count: int
    topics_count: int
    options: dict[str, str]
    """Streams have none."""


class OptionValueView(msgspec.Struct):
    """The value of an option of a topic."""

    value: str
    kind: str
    """How the binary protocols send it."""
    explicit: bool
    """Whether it was set for this topic."""


def options_of_topic(options: TopicOptions, effective: TopicOptions) -> dict[str, OptionValueView]:
    """The options of a topic: those that were set, and the defaults of the others."""
    return {
        key: OptionValueView(value, option_kind(key).name.lower(), is_set)
        for key, value, is_set in describe_topic_options(options, effective)
    }


class TopicView(msgspec.Struct):
    """A topic and its options."""

    id: int
    created_at: int
    name: str
    size: str
    message_expiry: int | None
    """Microseconds; 2^64 - 1: never."""
    compression_algorithm: Literal["none", "gzip"]
    max_topic_size: int | None
    """Bytes; 2^64 - 1: unlimited."""
    replication_factor: int | None
    messages_count: int
    partitions_count: int
    options: dict[str, OptionValueView]


class StreamDetailsView(StreamView):
    """A stream and its topics."""

    topics: list[TopicView]


class ContextView(msgspec.Struct):
    """Which history of a partition is meant. SDK 0.10 sends it back with its next requests."""

    incarnation: int
    """The change of the metadata that created the partition."""
    owner_generation: int
    """Always 0: HTTP has no members of groups as the SDKs know them."""
    metadata_op: int
    """The change since which it is so."""


def context_of(incarnation: int) -> ContextView:
    """The context of a partition that a change of the metadata created."""
    return ContextView(incarnation, 0, incarnation)


class PartitionView(msgspec.Struct):
    """A partition and its figures."""

    id: int
    created_at: int
    segments_count: int
    current_offset: int
    """Of the newest message."""
    size: str
    messages_count: int
    context: ContextView


class TopicDetailsView(TopicView):
    """A topic and its partitions."""

    partitions: list[PartitionView]


# --- groups -------------------------------------------------------------------------------------------


class GroupView(msgspec.Struct):
    """A consumer group and its size."""

    id: int
    name: str
    partitions_count: int
    members_count: int


class GroupMemberView(msgspec.Struct):
    """A member of a consumer group, on any transport."""

    id: int
    partitions_count: int
    partitions: list[int]


class GroupDetailsView(GroupView):
    """A consumer group and its members."""

    members: list[GroupMemberView]


# --- users and clients --------------------------------------------------------------------------------


class UserView(msgspec.Struct):
    """A user without permissions."""

    id: int
    created_at: int
    status: Status
    username: str
    options: dict[str, str]
    """Users have none."""


class UserDetailsView(UserView):
    """A user and the permissions, if any."""

    permissions: JsonPermissions | None


class TokenView(msgspec.Struct):
    """A personal access token."""

    name: str
    expiry_at: int | None
    """Microseconds since 1970; null: never."""


class AccessTokenView(msgspec.Struct):
    """An access token and its expiry."""

    token: str
    expiry: int
    """Seconds since 1970."""


class IdentityView(msgspec.Struct):
    """The reply to a login."""

    user_id: int
    access_token: AccessTokenView


class ClientView(msgspec.Struct):
    """A connection, or a member of a consumer group over HTTP."""

    client_id: int
    user_id: int | None
    address: str
    transport: Literal["tcp", "quic", "http", "ws"]
    consumer_groups_count: int


class ClientGroupView(msgspec.Struct):
    """A consumer group that a client is a member of."""

    stream_id: int
    topic_id: int
    group_id: int


class ClientDetailsView(ClientView):
    """A connection and its consumer groups."""

    consumer_groups: list[ClientGroupView]


# --- the server ---------------------------------------------------------------------------------------

STATS_NAMES = {
    "messages_size": "messages_size_bytes",
    "server_version": "iggy_server_version",
    "server_semver": "iggy_server_semver",
    "group_count": "consumer_groups_count",
    "open_file_count": "open_files_count",
    "open_file_limit": "open_files_limit",
} | {
    f"{noun}_count": f"{noun}s_count"
    for noun in ["stream", "topic", "partition", "segment", "message", "client", "thread"]
}
"""What HTTP calls some of the statistics."""
STATS_SIZES = frozenset(
    [
        "memory_usage",
        "total_memory",
        "available_memory",
        "read_bytes",
        "written_bytes",
        "messages_size",
        "free_disk_space",
        "total_disk_space",
    ]
)
"""Statistics that are sizes, written with a unit."""

StatsView = msgspec.defstruct(
    "StatsView",
    [
        *(
            (STATS_NAMES.get(name, name), str if name in STATS_SIZES else kind)
            for name, kind in get_type_hints(r.Stats).items()
            if name in r.Stats.__struct_fields__
        ),
        ("cache_metrics", dict[str, str]),
    ],
    namespace={"__doc__": "Statistics of the server and its machine."},
    kw_only=True,
)


class EndpointsView(msgspec.Struct):
    """The ports of a server; 0: disabled."""

    tcp: int
    quic: int
    http: int
    websocket: int


class NodeView(msgspec.Struct):
    """Where a server listens."""

    replica_id: int
    """For SDK 0.10; there is one."""
    name: str
    ip: str
    endpoints: EndpointsView
    role: Literal["leader"]
    status: Literal["healthy"]


class ClusterView(msgspec.Struct):
    """The servers of a cluster: one."""

    name: str
    nodes: list[NodeView]


class TopicBoundsView(msgspec.Struct):
    """First and next offset of every partition of a topic."""

    stream_id: int
    topic_id: int
    topic_uuid: UUID
    partitions: list[r.PartitionBounds]


class OptionView(msgspec.Struct):
    """An option that topics, streams or users can have."""

    key: str
    kind: str
    default_value: list[int]
    """Its bytes."""
    description: str


class ErrorView(msgspec.Struct):
    """A failure: number, name and reason."""

    id: int
    """The number of the error; 404 if something is simply missing."""
    code: str
    """Its name."""
    reason: str
    """What happened."""
    field: str | None
    """The field that is wrong."""
    first_offset: int | msgspec.UnsetType = msgspec.UNSET
    """Only if messages cannot be read: the first of them ..."""
    end_offset: int | msgspec.UnsetType = msgspec.UNSET
    """... and the first offset after them."""
