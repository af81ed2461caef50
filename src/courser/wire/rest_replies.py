"""Replies to JSON, field by field as Iggy writes them: 0.8, and what 0.9 adds."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from courser.api import replies as r
from courser.model.messaging import Transport
from courser.model.topic_options import COMPRESSION_NAMES, NO_COMPRESSION
from courser.wire.rest_fields import permissions_to_json
from courser.wire.vsr_options import describe_topic_options, option_bytes, option_kind

_UNITS = [
    (f"{prefix}{suffix}", base**power)
    for power, prefix in reversed(list(enumerate("KMGTPE", start=1)))
    for suffix, base in (("iB", 1024), ("B", 1000))
]
_THOUSANDTHS = 1000
_TRANSPORTS = {Transport.TCP: "tcp", Transport.QUIC: "quic", Transport.HTTP: "http", Transport.WEBSOCKET: "ws"}
_NO_OPTIONS: dict[str, str] = {}
"""Streams and users have none."""


def size_text(size: int) -> str:
    """A size as Iggy writes it: in the largest unit that needs at most three decimal places, so nothing is lost."""
    for unit, bytes_per_unit in _UNITS:
        thousandths, rest = divmod(size * _THOUSANDTHS, bytes_per_unit)
        if size >= bytes_per_unit and not rest:
            whole, fraction = divmod(thousandths, _THOUSANDTHS)
            return f"{whole}.{fraction:03d}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"


def encode_reply(reply: r.Reply) -> bytes:
    """The JSON of a reply."""
    return msgspec.json.encode(_WRITERS[type(reply)](reply))


# --- streams and topics -------------------------------------------------------------------------------


def _stream(stream: r.StreamInfo) -> dict[str, Any]:
    return {
        "id": stream.stream_id,
        "created_at": stream.created_at,
        "name": stream.name,
        "size": size_text(stream.size),
        "messages_count": stream.message_count,
        "topics_count": stream.topic_count,
        "options": _NO_OPTIONS,
    }


def _new_stream(stream: r.StreamInfo) -> dict[str, Any]:
    return _stream(stream) | {"topics": []}


def _stream_details(details: r.StreamDetails) -> dict[str, Any]:
    return _stream(details.stream) | {"topics": [_topic(topic) for topic in details.topics]}


def _topic(topic: r.TopicInfo) -> dict[str, Any]:
    effective = topic.effective
    return {
        "id": topic.topic_id,
        "created_at": topic.created_at,
        "name": topic.name,
        "size": size_text(topic.size),
        "message_expiry": effective.message_expiry,
        "compression_algorithm": COMPRESSION_NAMES[effective.compression or NO_COMPRESSION],
        "max_topic_size": effective.max_topic_size,
        "replication_factor": effective.replication_factor,
        "messages_count": topic.message_count,
        "partitions_count": topic.partition_count,
        "options": {
            key: {"value": value, "explicit": is_set}
            for key, value, is_set in describe_topic_options(topic.options, effective)
        },
    }


def _topic_details(details: r.TopicDetails) -> dict[str, Any]:
    return _topic(details.topic) | {"partitions": [_partition(partition) for partition in details.partitions]}


def _partition(partition: r.PartitionInfo) -> dict[str, Any]:
    return {
        "id": partition.partition_id,
        "created_at": partition.created_at,
        "segments_count": partition.segment_count,
        "current_offset": partition.current_offset,
        "size": size_text(partition.size),
        "messages_count": partition.message_count,
    }


# --- groups and offsets -------------------------------------------------------------------------------


def _group(group: r.GroupInfo) -> dict[str, Any]:
    return {
        "id": group.group_id,
        "name": group.name,
        "partitions_count": group.partition_count,
        "members_count": group.member_count,
    }


def _group_details(details: r.GroupDetails) -> dict[str, Any]:
    members = [
        {"id": member.member_id, "partitions_count": len(member.partition_ids), "partitions": member.partition_ids}
        for member in details.members
    ]
    return _group(details.group) | {"members": members}


# --- users and clients --------------------------------------------------------------------------------


def _user(user: r.UserInfo) -> dict[str, Any]:
    return {
        "id": user.user_id,
        "created_at": user.created_at,
        "status": "active" if user.is_active else "inactive",
        "username": user.name,
        "options": _NO_OPTIONS,
    }


def _user_details(details: r.UserDetails) -> dict[str, Any]:
    return _user(details.user) | {"permissions": permissions_to_json(details.permissions)}


def _token(token: r.TokenInfo) -> dict[str, Any]:
    return {"name": token.name, "expiry_at": token.expires_at or None}


def _tokens(reply: r.TokenList) -> list[dict[str, Any]]:
    return [_token(token) for token in sorted(reply.tokens, key=lambda token: token.name)]


def _client(client: r.ClientInfo) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "user_id": client.user_id,
        "address": client.address,
        "transport": _TRANSPORTS[client.transport],
        "consumer_groups_count": client.group_count,
    }


def _client_details(details: r.ClientDetails) -> dict[str, Any]:
    return _client(details.client) | {"consumer_groups": [msgspec.structs.asdict(group) for group in details.groups]}


# --- the server ---------------------------------------------------------------------------------------

_STATS_NAMES = {
    "messages_size": "messages_size_bytes",
    "server_version": "iggy_server_version",
    "server_semver": "iggy_server_semver",
    "group_count": "consumer_groups_count",
} | {
    f"{noun}_count": f"{noun}s_count"
    for noun in ["stream", "topic", "partition", "segment", "message", "client", "thread"]
}
_STATS_SIZES = frozenset(
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


def _stats(stats: r.Stats) -> dict[str, Any]:
    values = {
        _STATS_NAMES.get(name, name): size_text(value) if name in _STATS_SIZES else value
        for name, value in msgspec.structs.asdict(stats).items()
    }
    return values | {"cache_metrics": {}}


def _cluster(metadata: r.ClusterMetadata) -> dict[str, Any]:
    return {"name": metadata.name, "nodes": [_node(node) for node in metadata.nodes]}


def _node(node: r.Node) -> dict[str, Any]:
    endpoints = {
        "tcp": node.tcp_port,
        "quic": node.quic_port,
        "http": node.http_port,
        "websocket": node.websocket_port,
    }
    return {"name": node.name, "ip": node.ip, "endpoints": endpoints, "role": "leader", "status": "healthy"}


def _option(option: r.OptionDescription) -> dict[str, Any]:
    return {
        "key": option.key,
        "kind": option_kind(option.key).name.lower(),
        "default_value": list(option_bytes(option.key, option.default)),
        "description": option.description,
    }


_WRITERS: Mapping[type[r.Reply], Callable[[Any], Any]] = {
    r.StreamInfo: _new_stream,
    r.StreamDetails: _stream_details,
    r.StreamList: lambda reply: [_stream(stream) for stream in reply.streams],
    r.TopicDetails: _topic_details,
    r.TopicList: lambda reply: [_topic(topic) for topic in reply.topics],
    r.StoredOffset: msgspec.structs.asdict,
    r.GroupDetails: _group_details,
    r.GroupList: lambda reply: [_group(group) for group in reply.groups],
    r.UserDetails: _user_details,
    r.UserList: lambda reply: [_user(user) for user in reply.users],
    r.TokenList: _tokens,
    r.NewToken: msgspec.structs.asdict,
    r.ClientDetails: _client_details,
    r.ClientList: lambda reply: [_client(client) for client in reply.clients],
    r.Stats: _stats,
    r.ClusterMetadata: _cluster,
    r.OptionList: lambda reply: [_option(option) for option in reply.options],
}


def identity(user_id: int, token: str, expires_at: int) -> bytes:
    """The reply to a login. The expiry is in seconds."""
    return msgspec.json.encode({"user_id": user_id, "access_token": {"token": token, "expiry": expires_at}})
