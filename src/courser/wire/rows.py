"""The rows that replies are made of, as far as both protocol generations write them alike.

``first_id`` is what the client calls the first stream, topic, partition, group or user: 1 for SDK 0.5, else 0.
"""

from struct import Struct

from courser.api import replies as r
from courser.wire.writing import shifted, text8, text32

_PARTITION = Struct(
    "<"
    "I"  # id
    "Q"  # created_at
    "I"  # segments_count
    "Q"  # current_offset
    "Q"  # size
    "Q"  # messages_count
)
_GROUP = Struct("<III")
"""id, partitions_count, members_count"""
_GROUP_MEMBER = Struct("<II")
"""id, partitions_count"""
_USER = Struct("<IQB")
"""id, created_at, status"""
_CLIENT = Struct("<IIB")
"""id, user_id, transport"""
_CLIENT_GROUP = Struct("<III")
"""stream_id, topic_id, group_id"""
_STORED_OFFSET = Struct("<IQQ")
"""partition_id, current_offset, stored_offset"""
_STATS_FIGURES = Struct(
    "<"
    "I"  # process_id
    "f"  # cpu_usage
    "f"  # total_cpu_usage
    "Q"  # memory_usage
    "Q"  # total_memory
    "Q"  # available_memory
    "Q"  # run_time
    "Q"  # start_time
    "Q"  # read_bytes
    "Q"  # written_bytes
    "Q"  # messages_size
    "I"  # streams_count
    "I"  # topics_count
    "I"  # partitions_count
    "I"  # segments_count
    "Q"  # messages_count
    "I"  # clients_count
    "I"  # groups_count
)
assert _STATS_FIGURES.size == 108
_STATS_TAIL = Struct(
    "<"
    "I"  # server_semver
    "I"  # cache_count: there is no cache whose hits could be counted
    "I"  # threads_count
    "Q"  # free_disk_space
    "Q"  # total_disk_space
)
_NODE_PORTS = Struct("<HHHHBB")
"""tcp, quic, http, websocket, role, status"""
_LEADER, _HEALTHY = 0, 0
_U8, _U32, _U64 = Struct("<B"), Struct("<I"), Struct("<Q")

NOBODY = 2**32 - 1
"""The user of a connection without a login, from SDK 0.6 on."""

_TEXT_KIND, _BOOL_KIND, _U32_KIND, _U64_KIND = 2, 3, 11, 12
_U32_OPTIONS = frozenset({"messages_required_to_save"})
"""Options whose number has four bytes; the others have eight."""


def partition(row: r.PartitionInfo, first_id: int = 0) -> bytes:
    """A partition of a topic."""
    return _PARTITION.pack(
        shifted(row.partition_id, first_id),
        row.created_at,
        row.segment_count,
        row.current_offset,
        row.size,
        row.message_count,
    )


def group(row: r.GroupInfo, first_id: int = 0) -> bytes:
    """A consumer group."""
    return _GROUP.pack(shifted(row.group_id, first_id), row.partition_count, row.member_count) + text8(row.name)


def group_details(reply: r.GroupDetails, first_id: int = 0) -> bytes:
    """A consumer group and its members. Members are numbered from 0 for everybody."""
    parts = [group(reply.group, first_id)]
    for member in reply.members:
        parts.append(_GROUP_MEMBER.pack(member.member_id, len(member.partition_ids)))
        parts += [_U32.pack(shifted(partition_id, first_id)) for partition_id in member.partition_ids]
    return b"".join(parts)


def assignment(reply: r.Assignment, first_id: int = 0) -> bytes:
    """The partitions of a member."""
    partition_ids = [_U32.pack(shifted(partition_id, first_id)) for partition_id in reply.partition_ids]
    return _U64.pack(reply.generation) + _U32.pack(len(partition_ids)) + b"".join(partition_ids)


def user(row: r.UserInfo, first_id: int = 0) -> bytes:
    """An account."""
    status = 1 if row.is_active else 2
    return _USER.pack(shifted(row.user_id, first_id), row.created_at, status) + text8(row.name)


def client(row: r.ClientInfo, first_id: int = 0, nobody: int = NOBODY) -> bytes:
    """A connection."""
    user_id = nobody if row.user_id is None else shifted(row.user_id, first_id)
    head = _CLIENT.pack(row.client_id, user_id, row.transport)
    return head + text32(row.address) + _U32.pack(row.group_count)


def client_details(reply: r.ClientDetails, first_id: int = 0, nobody: int = NOBODY) -> bytes:
    """A connection and its groups."""
    rows = [
        _CLIENT_GROUP.pack(
            shifted(row.stream_id, first_id), shifted(row.topic_id, first_id), shifted(row.group_id, first_id)
        )
        for row in reply.groups
    ]
    return client(reply.client, first_id, nobody) + b"".join(rows)


def token(row: r.TokenInfo) -> bytes:
    """A personal access token."""
    return text8(row.name) + _U64.pack(row.expires_at)


def stored_offset(reply: r.StoredOffset, first_id: int = 0) -> bytes:
    """How far a consumer got."""
    return _STORED_OFFSET.pack(shifted(reply.partition_id, first_id), reply.current_offset, reply.stored_offset)


def stats(reply: r.Stats) -> bytes:
    """Figures about the server."""
    figures = _STATS_FIGURES.pack(
        reply.process_id,
        reply.cpu_usage,
        reply.total_cpu_usage,
        reply.memory_usage,
        reply.total_memory,
        reply.available_memory,
        reply.run_time,
        reply.start_time,
        reply.read_bytes,
        reply.written_bytes,
        reply.messages_size,
        reply.stream_count,
        reply.topic_count,
        reply.partition_count,
        reply.segment_count,
        reply.message_count,
        reply.client_count,
        reply.group_count,
    )
    texts = (reply.hostname, reply.os_name, reply.os_version, reply.kernel_version, reply.server_version)
    tail = _STATS_TAIL.pack(reply.server_semver, 0, reply.thread_count, reply.free_disk_space, reply.total_disk_space)
    return b"".join((figures, *map(text32, texts), tail))


def cluster(reply: r.ClusterMetadata) -> bytes:
    """All nodes, each a healthy leader."""
    parts = [text32(reply.name), _U32.pack(len(reply.nodes))]
    for node in reply.nodes:
        ports = (node.tcp_port, node.quic_port, node.http_port, node.websocket_port)
        parts += (text32(node.name), text32(node.ip), _NODE_PORTS.pack(*ports, _LEADER, _HEALTHY))
    return b"".join(parts)


def options(reply: r.OptionList) -> bytes:
    """Options that can be set."""
    parts = [_U32.pack(len(reply.options))]
    for option in reply.options:
        kind, default = _option_value(option.key, option.default)
        parts += (text8(option.key), _U8.pack(kind), _U32.pack(len(default)), default, text32(option.description))
    return b"".join(parts)


def _option_value(key: str, value: str | int | bool) -> tuple[int, bytes]:
    """The kind of a value and its bytes."""
    if isinstance(value, str):
        return _TEXT_KIND, value.encode()
    if isinstance(value, bool):
        return _BOOL_KIND, bytes((value,))
    if key in _U32_OPTIONS:
        return _U32_KIND, _U32.pack(value)
    return _U64_KIND, _U64.pack(value)
