"""Bodies of the real server's replies into reply objects: the way back of the encoders under test."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from courser.api import commands as c
from courser.api import replies as r
from courser.model.messaging import Transport
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions
from courser.wire.reading import Reader

_COMPRESSIONS = {"none": 1, "gzip": 2}


def _options(reader: Reader) -> TopicOptions:
    end = reader.u32() + reader.position
    values: dict[str, Any] = {}
    while reader.position < end:
        reader.u8()
        key = reader.text32()
        kind = reader.u8()
        data = bytes(reader.take(reader.u32()))
        if kind == 2:
            value: str | int | bool = data.decode()
        elif kind == 3:
            value = bool(data[0])
        else:
            assert (kind, len(data)) in ((11, 4), (12, 8))
            value = int.from_bytes(data, "little")
        if key == "compression_algorithm":
            key, value = "compression", _COMPRESSIONS[str(value)]
        values[key] = value
    return TopicOptions(**values)


def _merged(explicit: TopicOptions, derived: TopicOptions) -> TopicOptions:
    pairs = {
        name: value if (value := getattr(explicit, name)) is not None else getattr(derived, name)
        for name in TopicOptions.__struct_fields__
    }
    return TopicOptions(**pairs)


def stream(reader: Reader) -> r.StreamInfo:
    row = r.StreamInfo(reader.u32(), reader.u64(), reader.u32(), reader.u64(), reader.u64(), reader.name())
    assert reader.u32() == 0
    return row


def topic(reader: Reader) -> r.TopicInfo:
    topic_id, created_at, partition_count = reader.u32(), reader.u64(), reader.u32()
    expiry, compression, size_max = reader.u64(), reader.u8(), reader.u64()
    size, message_count, name = reader.u64(), reader.u64(), reader.name()
    explicit = _options(reader)
    effective = _merged(explicit, _options(reader))
    # The original reports an expiry or size of 0 that somebody "set" while another value holds.
    effective = msgspec.structs.replace(
        effective, message_expiry=expiry, compression=compression, max_topic_size=size_max
    )
    return r.TopicInfo(topic_id, created_at, partition_count, size, message_count, name, explicit, effective)


def partition(reader: Reader) -> r.PartitionInfo:
    return r.PartitionInfo(reader.u32(), reader.u64(), reader.u32(), reader.u64(), reader.u64(), reader.u64())


def stream_details(reader: Reader) -> r.Reply:
    info = stream(reader)
    return r.StreamDetails(info, [topic(reader) for _ in range(info.topic_count)])


def topic_details(reader: Reader) -> r.Reply:
    info = topic(reader)
    return r.TopicDetails(info, [partition(reader) for _ in range(info.partition_count)])


def group(reader: Reader) -> r.GroupInfo:
    return r.GroupInfo(reader.u32(), reader.u32(), reader.u32(), reader.name())


def group_details(reader: Reader) -> r.Reply:
    info = group(reader)
    members = [r.GroupMember(reader.u32(), _numbers(reader)) for _ in range(info.member_count)]
    return r.GroupDetails(info, members)


def _numbers(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.u32() for _ in range(reader.u32()))


def user(reader: Reader) -> r.UserInfo:
    row = r.UserInfo(reader.u32(), reader.u64(), reader.u8() == 1, reader.name())
    assert reader.u32() == 0
    return row


def user_details(reader: Reader) -> r.Reply:
    info = user(reader)
    permissions: Permissions | None = None
    if reader.u8():
        reader.u32()
        permissions = reader.permissions()
    else:
        reader.take(3)
    return r.UserDetails(info, permissions)


def client(reader: Reader) -> r.ClientInfo:
    client_id, user_id = reader.u32(), reader.u32()
    transport = Transport(reader.u8())
    return r.ClientInfo(client_id, None if user_id == 2**32 - 1 else user_id, transport, reader.text32(), reader.u32())


def client_details(reader: Reader) -> r.Reply:
    info = client(reader)
    groups = [r.ClientGroup(reader.u32(), reader.u32(), reader.u32()) for _ in range(info.group_count)]
    return r.ClientDetails(info, groups)


def stats(reader: Reader) -> r.Reply:
    figures = struct.unpack("<IffQQQQQQQQIIIIQII", reader.take(108))
    texts = [reader.text32() for _ in range(5)]
    semver, caches = reader.u32(), reader.u32()
    assert caches == 0
    names = [name for name in r.Stats.__struct_fields__ if name not in _STATS_TAIL]
    values = dict(zip(names, (*figures, *texts), strict=True))
    return r.Stats(
        **values,
        server_semver=semver,
        thread_count=reader.u32(),
        free_disk_space=reader.u64(),
        total_disk_space=reader.u64(),
    )


_STATS_TAIL = (
    *("server_semver", "thread_count", "free_disk_space", "total_disk_space"),
    *("open_file_count", "open_file_limit"),
)


def cluster(reader: Reader) -> r.Reply:
    name = reader.text32()
    nodes = []
    for _ in range(reader.u32()):
        node = r.Node(reader.text32(), reader.text32(), reader.u16(), reader.u16(), reader.u16(), reader.u16())
        assert (reader.u8(), reader.u8()) == (0, 0)
        nodes.append(node)
    return r.ClusterMetadata(name, nodes)


def options(reader: Reader) -> r.Reply:
    rows = []
    for _ in range(reader.u32()):
        key, kind, data = reader.name(), reader.u8(), bytes(reader.take(reader.u32()))
        default: str | int | bool = data.decode() if kind == 2 else int.from_bytes(data, "little")
        rows.append(r.OptionDescription(key, bool(default) if kind == 3 else default, reader.text32()))
    return r.OptionList(rows)


def _all(reader: Reader, row: Callable[[Reader], Any]) -> list[Any]:
    rows = []
    while reader.remaining:
        rows.append(row(reader))
    return rows


def sent(reader: Reader) -> r.Reply:
    assert reader.u32() == 1
    return r.Sent(reader.u32(), reader.u32(), reader.u32(), reader.u64())


def polled(reader: Reader) -> r.Reply:
    partition_id, current_offset, count = reader.u32(), reader.u64(), reader.u32()
    records = reader.rest()
    # In pieces, as storage hands them out.
    pieces = tuple(piece for piece in (records[:300], records[300:]) if piece)
    return r.Polled(partition_id, current_offset, count, pieces, len(records))


def logged_in(reader: Reader) -> r.Reply:
    reply = r.LoggedIn(reader.u32(), reader.u64())
    reader.rest()
    return reply


def assignment(reader: Reader) -> r.Reply:
    return r.Assignment(reader.u64(), _numbers(reader))


def token(reader: Reader) -> r.TokenInfo:
    return r.TokenInfo(reader.name(), reader.u64())


READERS: dict[type[c.Command], Callable[[Reader], r.Reply]] = {
    c.GetStats: stats,
    c.GetSnapshot: lambda reader: r.SnapshotArchive(bytes(reader.rest())),
    c.GetClusterMetadata: cluster,
    c.DescribeOptions: options,
    c.GetMe: client_details,
    c.GetClient: client_details,
    c.GetClients: lambda reader: r.ClientList(_all(reader, client)),
    c.GetUser: user_details,
    c.GetUsers: lambda reader: r.UserList(_all(reader, user)),
    c.CreateUser: user_details,
    c.LoginUser: logged_in,
    c.LoginWithToken: logged_in,
    c.GetTokens: lambda reader: r.TokenList(_all(reader, token)),
    c.CreateToken: lambda reader: r.NewToken(reader.name()),
    c.GetStream: stream_details,
    c.GetStreams: lambda reader: r.StreamList(_all(reader, stream)),
    c.CreateStream: stream,
    c.GetTopic: topic_details,
    c.GetTopics: lambda reader: r.TopicList([topic(reader) for _ in range(reader.u32())]),
    c.CreateTopic: topic_details,
    c.SendMessages: sent,
    c.PollMessages: polled,
    c.GetConsumerOffset: lambda reader: r.StoredOffset(reader.u32(), reader.u64(), reader.u64()),
    c.GetConsumerGroup: group_details,
    c.GetConsumerGroups: lambda reader: r.GroupList(_all(reader, group)),
    c.CreateConsumerGroup: group_details,
    c.SyncConsumerGroup: assignment,
}


def read_reply(command: c.Command, payload: bytes) -> r.Reply | None:
    """What a handler must have returned for this payload."""
    reader = Reader(memoryview(payload))
    parse = READERS.get(type(command))
    reply = None if parse is None else parse(reader)
    assert reader.remaining == 0, f"{reader.remaining} bytes behind the reply to {command}"
    return reply
