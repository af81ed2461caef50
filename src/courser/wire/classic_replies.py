"""Replies to SDKs 0.5 to 0.8, except polled messages: reply objects to payloads.

Most are derived from their fields (``layouts``). ``first_id`` is 1 for SDK 0.5, which counts ids from 1.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from courser.api import replies as r
from courser.api.commands import COMMANDS
from courser.api.table import SDK_0_10
from courser.model.topic_options import compression_for_sdks
from courser.wire import shared_replies as shared
from courser.wire.layouts import layout_of
from courser.wire.writing import optional_permissions_of_reply, shifted, text8, u32

ReplyWriter: TypeAlias = Callable[[Any, int], bytes]

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
_write_stream = layout_of(r.StreamInfo).write
_write_partition = layout_of(r.PartitionInfo).write
_write_user = layout_of(r.UserInfo).write


def _write_topic(row: r.TopicInfo, first_id: int) -> bytes:
    options = row.effective
    head = _TOPIC.pack(
        shifted(row.topic_id, first_id),
        row.created_at,
        row.partition_count,
        options.message_expiry,
        compression_for_sdks(options.compression),
        options.max_topic_size,
        options.replication_factor,
        row.size,
        row.message_count,
    )
    return head + text8(row.name)


def _write_topic_details(reply: r.TopicDetails, first_id: int) -> bytes:
    partitions = [_write_partition(row, first_id) for row in reply.partitions]
    return _write_topic(reply.topic, first_id) + b"".join(partitions)


def _write_stream_details(reply: r.StreamDetails, first_id: int) -> bytes:
    return _write_stream(reply.stream, first_id) + b"".join(_write_topic(row, first_id) for row in reply.topics)


def _write_user_details(reply: r.UserDetails, first_id: int) -> bytes:
    return _write_user(reply.user, first_id) + optional_permissions_of_reply(reply.permissions, first_id)


def _nobody(first_id: int) -> int:
    return 0 if first_id else shared.NOBODY


_WRITTEN_BY_HAND: dict[type[r.Reply], ReplyWriter] = {
    r.LoggedIn: lambda reply, first_id: u32(shifted(reply.user_id, first_id)),
    r.Stats: lambda reply, _: shared.write_stats(reply),
    r.SnapshotArchive: lambda reply, _: reply.data,
    r.ClusterMetadata: lambda reply, _: shared.write_cluster(reply),
    r.OptionList: lambda reply, _: shared.write_options(reply),
    r.ClientDetails: lambda reply, first_id: shared.write_client_details(reply, first_id, _nobody(first_id)),
    r.ClientList: lambda reply, first_id: b"".join(
        shared.write_client(row, first_id, _nobody(first_id)) for row in reply.clients
    ),
    r.UserDetails: _write_user_details,
    r.UserList: lambda reply, first_id: b"".join(_write_user(row, first_id) for row in reply.users),
    r.StreamDetails: _write_stream_details,
    r.StreamList: lambda reply, first_id: b"".join(_write_stream(row, first_id) for row in reply.streams),
    r.TopicDetails: _write_topic_details,
    r.TopicList: lambda reply, first_id: b"".join(_write_topic(row, first_id) for row in reply.topics),
}
_MESSAGES = (r.Sent, r.Polled)

REPLY_WRITERS: dict[type[r.Reply], tuple[ReplyWriter, bool]] = {
    row.reply: (_WRITTEN_BY_HAND.get(row.reply) or layout_of(row.reply).write, row.is_private)
    for row in COMMANDS
    if row.reply is not None and row.reply not in _MESSAGES and row.since < SDK_0_10
}
"""By the type of the reply: its payload, and whether its ids count from 0 in all dialects."""


def encode_payload(reply: r.Reply, first_id: int) -> bytes:
    """The payload of any reply except polled messages."""
    write, is_private = REPLY_WRITERS[type(reply)]
    return write(reply, 0 if is_private else first_id)
