"""Replies into the bodies of SDK 0.9."""

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from courser.api import commands as c
from courser.api import replies as r
from courser.wire import private_commands, rows
from courser.wire.vsr_headers import PROTOCOL_VERSION
from courser.wire.vsr_options import write_topic_options
from courser.wire.writing import optional_permissions_of_reply, text8

SERVER_VERSION = "0.9.0"
"""The release whose protocol this is: what the login reply says."""

Encoder: TypeAlias = Callable[[Any], bytes]

_STREAM = Struct("<IQIQQ")
"""id, created_at, topics_count, size, messages_count"""
_TOPIC = Struct(
    "<"
    "I"  # id
    "Q"  # created_at
    "I"  # partitions_count
    "Q"  # message_expiry
    "B"  # compression
    "Q"  # max_topic_size
    "Q"  # size
    "Q"  # messages_count
)
_NEW_PARTITION = Struct("<IQI24x")
"""id, created_at, segments_count"""
_LOGIN = Struct("<IQI")
"""user_id, session, protocol version"""
_U32 = Struct("<I")

_NO_OPTIONS = bytes(4)
"""Streams and users have none."""


def stream(row: r.StreamInfo) -> bytes:
    """A stream."""
    head = _STREAM.pack(row.stream_id, row.created_at, row.topic_count, row.size, row.message_count)
    return head + text8(row.name) + _NO_OPTIONS


def topic(row: r.TopicInfo) -> bytes:
    """A topic."""
    effective = row.effective
    head = _TOPIC.pack(
        row.topic_id,
        row.created_at,
        row.partition_count,
        effective.message_expiry,
        effective.compression,
        effective.max_topic_size,
        row.size,
        row.message_count,
    )
    return head + text8(row.name) + write_topic_options(row.options, effective)


def _stream_details(reply: r.StreamDetails) -> bytes:
    return stream(reply.stream) + b"".join(map(topic, reply.topics))


def _streams(reply: r.StreamList) -> bytes:
    return b"".join(map(stream, reply.streams))


def _topic_details(reply: r.TopicDetails) -> bytes:
    return topic(reply.topic) + b"".join(map(rows.partition, reply.partitions))


def _new_topic(reply: r.TopicDetails) -> bytes:
    # Clients are told that new partitions have no segments yet, as by the original.
    partitions = [_NEW_PARTITION.pack(row.partition_id, row.created_at, 0) for row in reply.partitions]
    return topic(reply.topic) + b"".join(partitions)


def _topics(reply: r.TopicList) -> bytes:
    return _U32.pack(len(reply.topics)) + b"".join(map(topic, reply.topics))


def _groups(reply: r.GroupList) -> bytes:
    return b"".join(map(rows.group, reply.groups))


def _user(row: r.UserInfo) -> bytes:
    return rows.user(row) + _NO_OPTIONS


def _user_details(reply: r.UserDetails) -> bytes:
    return _user(reply.user) + optional_permissions_of_reply(reply.permissions)


def _users(reply: r.UserList) -> bytes:
    return b"".join(map(_user, reply.users))


def _tokens(reply: r.TokenList) -> bytes:
    return b"".join(map(rows.token, reply.tokens))


def _new_token(reply: r.NewToken) -> bytes:
    return text8(reply.token)


def _clients(reply: r.ClientList) -> bytes:
    return b"".join(map(rows.client, reply.clients))


def _logged_in(reply: r.LoggedIn) -> bytes:
    return _LOGIN.pack(reply.user_id, reply.session, PROTOCOL_VERSION) + text8(SERVER_VERSION)


def _snapshot(reply: r.SnapshotArchive) -> bytes:
    return reply.data


ENCODERS: dict[type[c.Command], Encoder] = {
    c.GetStats: rows.stats,
    c.GetSnapshot: _snapshot,
    c.GetClusterMetadata: rows.cluster,
    c.DescribeOptions: rows.options,
    c.GetMe: rows.client_details,
    c.GetClient: rows.client_details,
    c.GetClients: _clients,
    c.GetUser: _user_details,
    c.GetUsers: _users,
    c.CreateUser: _user_details,
    c.LoginUser: _logged_in,
    c.LoginWithToken: _logged_in,
    c.GetTokens: _tokens,
    c.CreateToken: _new_token,
    c.GetStream: _stream_details,
    c.GetStreams: _streams,
    c.CreateStream: stream,
    c.GetTopic: _topic_details,
    c.GetTopics: _topics,
    c.CreateTopic: _new_topic,
    c.GetConsumerOffset: rows.stored_offset,
    c.GetConsumerGroup: rows.group_details,
    c.GetConsumerGroups: _groups,
    c.CreateConsumerGroup: rows.group_details,
    c.SyncConsumerGroup: rows.assignment,
    c.GetPartitionBounds: private_commands.bounds,
    c.GetSegments: private_commands.segments,
    c.WaitForArrivals: private_commands.arrivals,
    c.FinishStage: private_commands.staged_part,
    c.PublishStaged: private_commands.published,
    c.GetSink: private_commands.sink_info,
    c.GetSinks: private_commands.sinks,
    c.GetStagedParts: private_commands.staged_parts,
}
"""By command; what is not here is answered without words, but for sends and polls, which have a way of their own."""
