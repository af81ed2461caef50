"""Bodies of SDK 0.9 replies into reply structures: the way back of ``vsr_replies``, for our own client."""

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias, TypeVar

import msgspec

from courser.api import commands as c
from courser.api import replies as r
from courser.model.messaging import Transport
from courser.model.topic_options import TopicOptions
from courser.wire import private_commands
from courser.wire.reading import Malformed, Reader
from courser.wire.rows import NOBODY
from courser.wire.vsr_options import read_reported_options

Decoder: TypeAlias = Callable[[Reader], Any]
Row = TypeVar("Row")

_STATS_FIGURES = Struct("<IffQQQQQQQQIIIIQII")
_STATS_NAMES = r.Stats.__struct_fields__
_CACHE_ROW_SIZE = 4 + 4 + 4 + 8 + 8 + 4
_TRANSPORTS = {int(transport): transport for transport in Transport}


# --- streams and topics -------------------------------------------------------------------------------


def _stream(reader: Reader) -> r.StreamInfo:
    row = r.StreamInfo(reader.u32(), reader.u64(), reader.u32(), reader.u64(), reader.u64(), reader.text8())
    reader.take(reader.u32())
    return row


def _topic(reader: Reader) -> r.TopicInfo:
    topic_id, created_at, partition_count = reader.u32(), reader.u64(), reader.u32()
    expiry, compression, size_max = reader.u64(), reader.u8(), reader.u64()
    size, message_count, name = reader.u64(), reader.u64(), reader.text8()
    wanted, derived = read_reported_options(reader)
    effective = msgspec.structs.replace(
        _merged(wanted, derived), message_expiry=expiry, compression=compression, max_topic_size=size_max
    )
    return r.TopicInfo(topic_id, created_at, partition_count, size, message_count, name, wanted, effective)


def _merged(wanted: TopicOptions, derived: TopicOptions) -> TopicOptions:
    values = {
        name: getattr(derived, name) if (value := getattr(wanted, name)) is None else value
        for name in TopicOptions.__struct_fields__
    }
    return TopicOptions(**values)


def _partition(reader: Reader) -> r.PartitionInfo:
    return r.PartitionInfo(reader.u32(), reader.u64(), reader.u32(), reader.u64(), reader.u64(), reader.u64())


def _stream_details(reader: Reader) -> r.StreamDetails:
    info = _stream(reader)
    return r.StreamDetails(info, [_topic(reader) for _ in range(info.topic_count)])


def _topic_details(reader: Reader) -> r.TopicDetails:
    info = _topic(reader)
    return r.TopicDetails(info, [_partition(reader) for _ in range(info.partition_count)])


def _topics(reader: Reader) -> r.TopicList:
    return r.TopicList([_topic(reader) for _ in range(reader.u32())])


# --- messages -----------------------------------------------------------------------------------------


def _sent(reader: Reader) -> r.Sent:
    if reader.u32() != 1:
        raise Malformed("a send is confirmed for more than one batch")
    return r.Sent(reader.u32(), reader.u32(), reader.u32(), reader.u64())


def _polled(reader: Reader) -> r.Polled:
    partition_id, current_offset, count = reader.u32(), reader.u64(), reader.u32()
    records = reader.rest()
    return r.Polled(partition_id, current_offset, count, (records,) if len(records) else (), len(records))


def _stored_offset(reader: Reader) -> r.StoredOffset:
    return r.StoredOffset(reader.u32(), reader.u64(), reader.u64())


# --- groups, users, clients ---------------------------------------------------------------------------


def _numbers(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.u32() for _ in range(reader.u32()))


def _group(reader: Reader) -> r.GroupInfo:
    return r.GroupInfo(reader.u32(), reader.u32(), reader.u32(), reader.text8())


def _group_details(reader: Reader) -> r.GroupDetails:
    info = _group(reader)
    return r.GroupDetails(info, [r.GroupMember(reader.u32(), _numbers(reader)) for _ in range(info.member_count)])


def _assignment(reader: Reader) -> r.Assignment:
    return r.Assignment(reader.u64(), _numbers(reader))


def _logged_in(reader: Reader) -> r.LoggedIn:
    return r.LoggedIn(reader.u32(), reader.u64())


def _user(reader: Reader) -> r.UserInfo:
    row = r.UserInfo(reader.u32(), reader.u64(), reader.u8() == 1, reader.text8())
    reader.take(reader.u32())
    return row


def _user_details(reader: Reader) -> r.UserDetails:
    return r.UserDetails(_user(reader), reader.optional_permissions())


def _token(reader: Reader) -> r.TokenInfo:
    return r.TokenInfo(reader.text8(), reader.u64())


def _client(reader: Reader) -> r.ClientInfo:
    client_id, user_id, transport = reader.u32(), reader.u32(), _TRANSPORTS.get(reader.u8(), Transport.TCP)
    return r.ClientInfo(client_id, None if user_id == NOBODY else user_id, transport, reader.text32(), reader.u32())


def _client_details(reader: Reader) -> r.ClientDetails:
    info = _client(reader)
    groups = [r.ClientGroup(reader.u32(), reader.u32(), reader.u32()) for _ in range(info.group_count)]
    return r.ClientDetails(info, groups)


# --- system -------------------------------------------------------------------------------------------


def _stats(reader: Reader) -> r.Stats:
    figures = _STATS_FIGURES.unpack(reader.take(_STATS_FIGURES.size))
    texts = [reader.text32() for _ in range(5)]
    semver = reader.u32()
    reader.take(reader.u32() * _CACHE_ROW_SIZE)
    values = (*figures, *texts, semver, reader.u32(), reader.u64(), reader.u64())
    return r.Stats(**dict(zip(_STATS_NAMES, values, strict=True)))


def _cluster(reader: Reader) -> r.ClusterMetadata:
    name = reader.text32()
    nodes = []
    for _ in range(reader.u32()):
        nodes.append(r.Node(reader.text32(), reader.text32(), reader.u16(), reader.u16(), reader.u16(), reader.u16()))
        reader.take(2)  # role and state: there is one node, and it is well
    return r.ClusterMetadata(name, nodes)


def _options(reader: Reader) -> r.OptionList:
    rows = []
    for _ in range(reader.u32()):
        key, kind, data = reader.text8(), reader.u8(), bytes(reader.take(reader.u32()))
        default: str | int | bool = data.decode(errors="replace") if kind == 2 else int.from_bytes(data, "little")
        rows.append(r.OptionDescription(key, bool(default) if kind == 3 else default, reader.text32()))
    return r.OptionList(rows)


def _all(reader: Reader, row: Callable[[Reader], Row]) -> list[Row]:
    """Rows up to the end."""
    rows = []
    while reader.remaining:
        rows.append(row(reader))
    return rows


DECODERS: dict[type[c.Command], Decoder] = {
    c.GetStats: _stats,
    c.GetSnapshot: lambda reader: r.SnapshotArchive(bytes(reader.rest())),
    c.GetClusterMetadata: _cluster,
    c.DescribeOptions: _options,
    c.GetMe: _client_details,
    c.GetClient: _client_details,
    c.GetClients: lambda reader: r.ClientList(_all(reader, _client)),
    c.GetUser: _user_details,
    c.GetUsers: lambda reader: r.UserList(_all(reader, _user)),
    c.CreateUser: _user_details,
    c.LoginUser: _logged_in,
    c.LoginWithToken: _logged_in,
    c.GetTokens: lambda reader: r.TokenList(_all(reader, _token)),
    c.CreateToken: lambda reader: r.NewToken(reader.text8()),
    c.GetStream: _stream_details,
    c.GetStreams: lambda reader: r.StreamList(_all(reader, _stream)),
    c.CreateStream: _stream,
    c.GetTopic: _topic_details,
    c.GetTopics: _topics,
    c.CreateTopic: _topic_details,
    c.SendMessages: _sent,
    c.PollMessages: _polled,
    c.WaitForMessages: _polled,
    c.GetConsumerOffset: _stored_offset,
    c.GetConsumerGroup: _group_details,
    c.GetConsumerGroups: lambda reader: r.GroupList(_all(reader, _group)),
    c.CreateConsumerGroup: _group_details,
    c.SyncConsumerGroup: _assignment,
    c.GetPartitionBounds: private_commands.read_bounds,
    c.GetSegments: private_commands.read_segments,
    c.WaitForArrivals: private_commands.read_arrivals,
    c.FinishStage: private_commands.read_staged_part,
    c.PublishStaged: private_commands.read_published,
    c.GetSink: private_commands.read_sink_info,
    c.GetSinks: private_commands.read_sinks,
    c.GetStagedParts: private_commands.read_staged_parts,
}
"""By command; what is not here is answered without words."""
