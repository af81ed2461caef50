"""Bodies of SDK 0.9 replies, encoded by the server and decoded by Courser's own client.

Most are derived from their fields (``layouts``). By hand: replies with options, sends and polls, and the login. What
later releases write differently is in ``vsr_records``.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias, TypeVar

import msgspec

from courser.api import replies as r
from courser.api.commands import COMMANDS
from courser.api.table import SDK_0_10
from courser.model.topic_options import TopicOptions, compression_for_sdks
from courser.wire import shared_replies as shared
from courser.wire.layouts import layout_of
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_options import read_reported_options, write_topic_options
from courser.wire.writing import optional_permissions_of_reply, text8, u32

ReplyWriter: TypeAlias = Callable[[Any], bytes]
ReplyReader: TypeAlias = Callable[[Reader], Any]
Row = TypeVar("Row")

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
_NO_OPTIONS = bytes(4)
"""Streams and users have none."""

_stream, _partition, _user = layout_of(r.StreamInfo), layout_of(r.PartitionInfo), layout_of(r.UserInfo)


# --- streams and topics -------------------------------------------------------------------------------


def write_stream(row: r.StreamInfo) -> bytes:
    return _stream.write(row) + _NO_OPTIONS


def _read_stream(reader: Reader) -> r.StreamInfo:
    row = _stream.read(reader)
    reader.take(reader.u32())
    return row


def write_topic(row: r.TopicInfo) -> bytes:
    effective = row.effective
    head = _TOPIC.pack(
        row.topic_id,
        row.created_at,
        row.partition_count,
        effective.message_expiry,
        compression_for_sdks(effective.compression),
        effective.max_topic_size,
        row.size,
        row.message_count,
    )
    return head + text8(row.name) + write_topic_options(row.options, effective)


def _read_topic(reader: Reader) -> r.TopicInfo:
    head = _TOPIC.unpack(reader.take(_TOPIC.size))
    topic_id, created_at, partition_count, expiry, compression, size_max, size, message_count = head
    name = reader.text8()
    wanted, derived = read_reported_options(reader)
    merged = _merged(wanted, derived)
    effective = msgspec.structs.replace(
        merged, message_expiry=expiry, compression=merged.compression or compression, max_topic_size=size_max
    )
    return r.TopicInfo(topic_id, created_at, partition_count, size, message_count, name, wanted, effective)


def _merged(wanted: TopicOptions, derived: TopicOptions) -> TopicOptions:
    values = {
        name: getattr(derived, name) if (value := getattr(wanted, name)) is None else value
        for name in TopicOptions.__struct_fields__
    }
    return TopicOptions(**values)


def _read_stream_details(reader: Reader) -> r.StreamDetails:
    info = _read_stream(reader)
    return r.StreamDetails(info, [_read_topic(reader) for _ in range(info.topic_count)])


def _read_topic_details(reader: Reader) -> r.TopicDetails:
    info = _read_topic(reader)
    return r.TopicDetails(info, [_partition.read(reader) for _ in range(info.partition_count)])


def write_new_topic(reply: r.TopicDetails) -> bytes:
    """A new topic. Like the original server, it reports that the partitions have no segments yet."""
    partitions = [_NEW_PARTITION.pack(row.partition_id, row.created_at, 0) for row in reply.partitions]
    return write_topic(reply.topic) + b"".join(partitions)


def _read_topics(reader: Reader) -> r.TopicList:
    return r.TopicList([_read_topic(reader) for _ in range(reader.u32())])


# --- users --------------------------------------------------------------------------------------------


def _write_user(row: r.UserInfo) -> bytes:
    return _user.write(row) + _NO_OPTIONS


def _read_user(reader: Reader) -> r.UserInfo:
    row = _user.read(reader)
    reader.take(reader.u32())
    return row


def _read_user_details(reader: Reader) -> r.UserDetails:
    return r.UserDetails(_read_user(reader), reader.optional_permissions())


def write_logged_in(reply: r.LoggedIn, version: int, release: str) -> bytes:
    """The protocol version is that of the client; the release is the server's."""
    return _LOGIN.pack(reply.user_id, reply.session, version) + text8(release)


def _read_logged_in(reader: Reader) -> r.LoggedIn:
    user_id, session = reader.u32(), reader.u64()
    if not reader.remaining:
        return r.LoggedIn(user_id, session)
    reader.u32()
    reader.text8()
    # Only Courser's own servers continue.
    return r.LoggedIn(user_id, session, reader.u64() if reader.remaining else None)


# --- messages, read by the client ---------------------------------------------------------------------


def _read_sent(reader: Reader) -> r.Sent:
    if reader.u32() != 1:
        raise Malformed("a send is confirmed for more than one batch")
    return r.Sent(reader.u32(), reader.u32(), reader.u32(), reader.u64())


def _read_polled(reader: Reader) -> r.Polled:
    partition_id, current_offset, count = reader.u32(), reader.u64(), reader.u32()
    records = reader.rest()
    return r.Polled(partition_id, current_offset, count, (records,) if len(records) else (), len(records))


def _read_all(reader: Reader, read: Callable[[Reader], Row]) -> list[Row]:
    """Rows up to the end."""
    rows = []
    while reader.remaining:
        rows.append(read(reader))
    return rows


# --- the tables ---------------------------------------------------------------------------------------


def record_writers(
    *,
    stream: Callable[[r.StreamInfo], bytes],
    topic: Callable[[r.TopicInfo], bytes],
    partition: Callable[[r.PartitionInfo], bytes],
    user: Callable[[r.UserInfo], bytes],
) -> dict[type[r.Reply], ReplyWriter]:
    """The writers of all replies that are made of these records."""
    return {
        r.StreamInfo: stream,
        r.StreamDetails: lambda reply: stream(reply.stream) + b"".join(map(topic, reply.topics)),
        r.StreamList: lambda reply: b"".join(map(stream, reply.streams)),
        r.TopicDetails: lambda reply: topic(reply.topic) + b"".join(map(partition, reply.partitions)),
        r.TopicList: lambda reply: u32(len(reply.topics)) + b"".join(map(topic, reply.topics)),
        r.UserDetails: lambda reply: user(reply.user) + optional_permissions_of_reply(reply.permissions),
        r.UserList: lambda reply: b"".join(map(user, reply.users)),
    }


_WRITTEN_BY_HAND: dict[type[r.Reply], ReplyWriter] = {
    r.Stats: shared.write_stats,
    r.SnapshotArchive: lambda reply: reply.data,
    r.ClusterMetadata: shared.write_cluster,
    r.OptionList: shared.write_options,
    r.ClientDetails: shared.write_client_details,
    r.ClientList: lambda reply: b"".join(map(shared.write_client, reply.clients)),
    **record_writers(stream=write_stream, topic=write_topic, partition=_partition.write, user=_write_user),
}
_READ_BY_HAND: dict[type[r.Reply], ReplyReader] = {
    r.Stats: shared.read_stats,
    r.SnapshotArchive: lambda reader: r.SnapshotArchive(bytes(reader.rest())),
    r.ClusterMetadata: shared.read_cluster,
    r.OptionList: shared.read_options,
    r.ClientDetails: shared.read_client_details,
    r.ClientList: shared.read_clients,
    r.UserDetails: _read_user_details,
    r.UserList: lambda reader: r.UserList(_read_all(reader, _read_user)),
    r.LoggedIn: _read_logged_in,
    r.StreamInfo: _read_stream,
    r.StreamDetails: _read_stream_details,
    r.StreamList: lambda reader: r.StreamList(_read_all(reader, _read_stream)),
    r.TopicDetails: _read_topic_details,
    r.TopicList: _read_topics,
    r.Sent: _read_sent,
    r.Polled: _read_polled,
}
_REPLIES = {row.reply for row in COMMANDS if row.reply is not None and row.since < SDK_0_10}

WRITERS: dict[type[r.Reply], ReplyWriter] = {
    reply: _WRITTEN_BY_HAND.get(reply) or layout_of(reply).write for reply in _REPLIES - {r.Sent, r.Polled, r.LoggedIn}
}
"""For the server: all except sends, polls and logins, which have their own functions."""
READERS: dict[type[r.Reply], ReplyReader] = {
    reply: _READ_BY_HAND.get(reply) or layout_of(reply).read for reply in _REPLIES
}
"""For Courser's own client."""
MAY_BE_EMPTY = frozenset({r.StreamList, r.UserList, r.TokenList, r.ClientList, r.GroupList})
"""Lists without a count. For any other reply, an empty body means "not found"."""
