"""Replies to SDKs 0.5 to 0.8, all but polled messages: reply objects to payloads.

``first_id`` is 1 for SDK 0.5, which numbers everything from 1 and knows no other nobody than user 0.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from courser.api import replies as r
from courser.wire import private_commands, rows
from courser.wire.writing import optional_permissions_of_reply, shifted, text8

_STREAM = Struct(
    "<"
    "I"  # id
    "Q"  # created_at
    "I"  # topics_count
    "Q"  # size
    "Q"  # messages_count
)
_TOPIC = Struct(
    "<"
    "I"  # id
    "Q"  # created_at
    "I"  # partitions_count
    "Q"  # message_expiry
    "B"  # compression
    "Q"  # max_topic_size
    "B"  # replication_factor
    "Q"  # size
    "Q"  # messages_count
)
_U32 = Struct("<I")


def _stream(row: r.StreamInfo, first_id: int) -> bytes:
    stream_id = shifted(row.stream_id, first_id)
    return _STREAM.pack(stream_id, row.created_at, row.topic_count, row.size, row.message_count) + text8(row.name)


def _topic(row: r.TopicInfo, first_id: int) -> bytes:
    options = row.effective
    head = _TOPIC.pack(
        shifted(row.topic_id, first_id),
        row.created_at,
        row.partition_count,
        options.message_expiry,
        options.compression,
        options.max_topic_size,
        options.replication_factor,
        row.size,
        row.message_count,
    )
    return head + text8(row.name)


def _topic_details(reply: r.TopicDetails, first_id: int) -> bytes:
    partitions = [rows.partition(row, first_id) for row in reply.partitions]
    return _topic(reply.topic, first_id) + b"".join(partitions)


def _stream_details(reply: r.StreamDetails, first_id: int) -> bytes:
    return _stream(reply.stream, first_id) + b"".join(_topic(row, first_id) for row in reply.topics)


def _user_details(reply: r.UserDetails, first_id: int) -> bytes:
    return rows.user(reply.user, first_id) + optional_permissions_of_reply(reply.permissions, first_id)


def _nobody(first_id: int) -> int:
    return 0 if first_id else rows.NOBODY


REPLY_ENCODERS: dict[type[r.Reply], Callable[[Any, int], bytes]] = {
    r.LoggedIn: lambda reply, first_id: _U32.pack(shifted(reply.user_id, first_id)),
    r.Stats: lambda reply, _: rows.stats(reply),
    r.SnapshotArchive: lambda reply, _: reply.data,
    r.ClusterMetadata: lambda reply, _: rows.cluster(reply),
    r.OptionList: lambda reply, _: rows.options(reply),
    r.ClientDetails: lambda reply, first_id: rows.client_details(reply, first_id, _nobody(first_id)),
    r.ClientList: lambda reply, first_id: b"".join(
        rows.client(row, first_id, _nobody(first_id)) for row in reply.clients
    ),
    r.UserDetails: _user_details,
    r.UserList: lambda reply, first_id: b"".join(rows.user(row, first_id) for row in reply.users),
    r.TokenList: lambda reply, _: b"".join(rows.token(row) for row in reply.tokens),
    r.NewToken: lambda reply, _: text8(reply.token),
    r.StoredOffset: rows.stored_offset,
    r.StreamInfo: _stream,
    r.StreamDetails: _stream_details,
    r.StreamList: lambda reply, first_id: b"".join(_stream(row, first_id) for row in reply.streams),
    r.TopicDetails: _topic_details,
    r.TopicList: lambda reply, first_id: b"".join(_topic(row, first_id) for row in reply.topics),
    r.GroupDetails: rows.group_details,
    r.GroupList: lambda reply, first_id: b"".join(rows.group(row, first_id) for row in reply.groups),
    r.Assignment: rows.assignment,
    r.TopicBounds: lambda reply, _: private_commands.bounds(reply),
    r.SegmentList: lambda reply, _: private_commands.segments(reply),
    r.Arrivals: lambda reply, _: private_commands.arrivals(reply),
    r.StagedPart: lambda reply, _: private_commands.staged_part(reply),
    r.Published: lambda reply, _: private_commands.published(reply),
    r.SinkInfo: lambda reply, _: private_commands.sink_info(reply),
    r.SinkList: lambda reply, _: private_commands.sinks(reply),
    r.StagedPartList: lambda reply, _: private_commands.staged_parts(reply),
}
"""By the type of the reply: its payload."""


def encode_payload(reply: r.Reply, first_id: int) -> bytes:
    """The payload of any reply but polled messages."""
    return REPLY_ENCODERS[type(reply)](reply, first_id)
