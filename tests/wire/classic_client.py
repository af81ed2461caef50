"""The client's side of the classic protocol, in plain code: commands to requests, replies to objects.

Written from the protocol, not from the codec: the tests hold the two against each other.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.api.commands import ROW_BY_CODE
from courser.model.messaging import Transport
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.records.classic import Dialect
from courser.wire import writing as w
from tests.wire.operating_parsers import OPERATING_PARSERS
from tests.wire.reply_cursor import Cursor

VERSIONS = {
    Dialect.SDK_0_5: "0.7.0",
    Dialect.SDK_0_6: "0.8.0",
    Dialect.SDK_0_7: "0.9.0",
    Dialect.SDK_0_8: "0.10.0",
}
"""What the Python and Rust clients call themselves."""


_HEAD = struct.Struct("<II")
"""Of a request: the size of what follows the size, and the code. Of a reply: the status and the size of its payload."""
REPLY_HEAD_SIZE = _HEAD.size


def frame(code: int, payload: bytes = b"") -> bytes:
    """A whole request."""
    return _HEAD.pack(4 + len(payload), code) + payload


def reply_head(data: bytes) -> tuple[int, int]:
    """The status of a reply, and how many bytes of payload follow its head."""
    status, size = _HEAD.unpack(data)
    return status, size


def first_id_of(dialect: Dialect) -> int:
    return 1 if dialect is Dialect.SDK_0_5 else 0


# --- requests -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """One message of a send or a poll."""

    payload: bytes = b"hello"
    message_id: bytes = b"\x07".ljust(16, b"\0")
    origin: int = 1_700_000_000_000_000
    user_headers: bytes = b""
    offset: int = 0
    timestamp: int = 0
    checksum: int = 0

    def encoded(self, dialect: Dialect) -> bytes:
        header = struct.pack(
            "<Q16sQQQII",
            self.checksum,
            self.message_id,
            self.offset,
            self.timestamp,
            self.origin,
            len(self.user_headers),
            len(self.payload),
        )
        return header + bytes(dialect.header_size - 56) + self.payload + self.user_headers


def send_payload(command: c.SendMessages, messages: Sequence[Message], dialect: Dialect) -> bytes:
    """A send of these messages to where the command says."""
    first_id = first_id_of(dialect)
    metadata = (
        w.identifier(command.stream, first_id)
        + w.identifier(command.topic, first_id)
        + w.partitioning(command.partitioning, first_id)
        + struct.pack("<I", len(messages))
    )
    encoded = [message.encoded(dialect) for message in messages]
    index, end = b"", 0
    for message in encoded:
        end += len(message)
        index += struct.pack("<IIQ", 0, end, 0)
    return struct.pack("<I", len(metadata)) + metadata + index + b"".join(encoded)


def request(command: c.Command, dialect: Dialect = Dialect.SDK_0_8, messages: Sequence[Message] = ()) -> bytes:
    """The frame in which a client of this dialect sends a command."""
    return frame(command.row.code, payload_of(command, dialect, messages))


def payload_of(command: c.Command, dialect: Dialect, messages: Sequence[Message] = ()) -> bytes:  # noqa: C901
    is_own = command.row.is_private
    first_id = 0 if is_own else first_id_of(dialect)

    def wanted(identity: int | None) -> bytes:
        # The id in front of what SDK 0.5 creates.
        return struct.pack("<I", 0 if identity is None else identity + 1) if first_id else b""

    def partition(partition_id: int | None) -> bytes:
        return wanted(partition_id) if first_id else w.optional_partition(partition_id)

    def place(command: c.GetConsumerOffset | c.StoreConsumerOffset | c.DeleteConsumerOffset | c.PollMessages) -> bytes:
        identifiers = w.identifier(command.stream, first_id) + w.identifier(command.topic, first_id)
        return w.consumer(command.consumer, first_id) + identifiers + partition(command.partition_id)

    def identifiers(command: object, *fields: str) -> bytes:
        return b"".join(w.identifier(getattr(command, field), first_id) for field in fields)

    match command:
        case c.LoginUser():
            texts = w.text32(command.version) + w.text32(command.context)
            return w.text8(command.name) + w.text8(command.password) + texts
        case c.LoginWithToken():
            return w.text8(command.token)
        case c.CreateToken():
            return w.text8(command.name) + struct.pack("<Q", command.expiry)
        case c.DeleteToken():
            return w.text8(command.name)
        case c.GetSnapshot():
            return bytes((command.compression, len(command.kinds), *command.kinds))
        case c.DescribeOptions():
            return bytes((command.scope,))
        case c.ReportPipeline():
            heads = [command.name, command.state, command.consumer, command.host]
            fields = ("started_at", "batch_count", "rows", "rows_per_second", "lag", "lost", "bad_rows", "restarts")
            tails = [command.source, command.sink, command.error, command.definition]
            numbers = struct.pack("<QQQQQQQI", *(getattr(command, name) for name in fields))
            return b"".join(map(w.text8, heads)) + numbers + b"".join(map(w.text32, tails))
        case c.EndSession():
            return struct.pack("<I", command.client_id)
        case c.GetAccess():
            ids = (command.stream_id, command.topic_id)
            return b"".join(struct.pack("<BQ", one is not None, one or 0) for one in ids)
        case c.GetHistory():
            return struct.pack("<Q", command.since)
        case c.GetLogLines():
            return struct.pack("<Q", command.after)
        case c.GetClient():
            return struct.pack("<I", command.client_id)
        case c.CreateUser():
            head = w.text8(command.name) + w.text8(command.password) + (b"\1" if command.is_active else b"\2")
            return head + w.optional_permissions_of_request(command.permissions, first_id)
        case c.UpdateUser():
            name = b"\0" if command.name is None else b"\1" + w.text8(command.name)
            status = b"\0" if command.is_active is None else b"\1" + (b"\1" if command.is_active else b"\2")
            return identifiers(command, "user") + name + status
        case c.UpdatePermissions():
            permissions = w.optional_permissions_of_request(command.permissions, first_id)
            return identifiers(command, "user") + permissions
        case c.ChangePassword():
            return identifiers(command, "user") + w.text8(command.current_password) + w.text8(command.new_password)
        case c.GetUser() | c.DeleteUser():
            return identifiers(command, "user")
        case c.CreateStream():
            return wanted(command.stream_id) + w.text8(command.name)
        case c.UpdateStream():
            return identifiers(command, "stream") + w.text8(command.name)
        case c.GetStream() | c.DeleteStream() | c.PurgeStream() | c.GetTopics():
            return identifiers(command, "stream")
        case c.CreateTopic():
            count = struct.pack("<I", command.partition_count)
            head = identifiers(command, "stream") + wanted(command.topic_id) + count
            return head + topic_options(command.options) + w.text8(command.name)
        case c.UpdateTopic():
            return identifiers(command, "stream", "topic") + topic_options(command.options) + w.text8(command.name)
        case c.GetTopic() | c.DeleteTopic() | c.PurgeTopic() | c.GetConsumerGroups() | c.GetPartitionBounds():
            return identifiers(command, "stream", "topic")
        case c.GetTopicDurability() | c.GetTopicMaintenance():
            return identifiers(command, "stream", "topic")
        case c.CreatePartitions() | c.DeletePartitions():
            return identifiers(command, "stream", "topic") + struct.pack("<I", command.count)
        case c.DeleteSegments():
            numbers = struct.pack("<II", command.partition_id + first_id, command.count)
            return identifiers(command, "stream", "topic") + numbers
        case c.ConfirmAssignment():
            return identifiers(command, "stream", "topic", "group") + struct.pack("<Q", command.generation)
        case c.GetSegments():
            return identifiers(command, "stream", "topic") + struct.pack("<I", command.partition_id)
        case c.VerifySegment():
            place_of_segment = struct.pack("<IQ", command.partition_id, command.first_offset)
            return identifiers(command, "stream", "topic") + place_of_segment
        case c.GetOffsetsAtTime():
            return identifiers(command, "stream", "topic") + struct.pack("<Q", command.timestamp)
        case c.GetRetentionPlan():
            return struct.pack("<Q", command.until)
        case c.FindMessages():
            numbers = struct.pack("<IQI", command.partition_id, command.offset, len(command.conditions))
            encoded = [condition.encode() for condition in command.conditions]
            rows = b"".join(struct.pack("<I", len(condition)) + condition for condition in encoded)
            return identifiers(command, "stream", "topic") + numbers + rows
        case c.FlushMessages():
            numbers = struct.pack("<IB", command.partition_id + first_id, command.fsync)
            return identifiers(command, "stream", "topic") + numbers
        case c.PollMessages():
            tail = struct.pack("<BQIB", command.kind, command.value, command.count, command.auto_commit)
            return place(command) + tail
        case c.WaitForMessages():
            poll = payload_of(command.poll, Dialect.SDK_0_8)
            return poll + struct.pack("<QI", command.wait, command.size_max)
        case c.WaitForArrivals():
            # Our own commands count from 0 in every dialect.
            head = w.consumer(command.consumer) + w.identifier(command.stream) + w.identifier(command.topic)
            numbers = struct.pack("<QQI", command.generation, command.wait, len(command.positions))
            return head + numbers + b"".join(struct.pack("<IQ", *position) for position in command.positions)
        case c.WaitForTopics():
            places = [
                w.identifier(stream) + w.identifier(topic) + struct.pack("<IQ", partition_id, offset)
                for stream, topic, partition_id, offset in command.positions
            ]
            return struct.pack("<I", len(places)) + b"".join(places) + struct.pack("<Q", command.wait)
        case c.StageMessages():
            target = w.identifier(command.stream) + w.identifier(command.topic) + w.partitioning(command.partitioning)
            return part_name(command.name) + struct.pack("<I", command.chunk) + target + encode_batch(command.batch)
        case c.FinishStage():
            return part_name(command.name) + struct.pack("<I", command.chunk_count)
        case c.PublishStaged():
            parts = b"".join(struct.pack("<IQ", *part) for part in command.parts)
            return w.text8(command.sink) + struct.pack("<QQI", command.batch, command.keep, len(command.parts)) + parts
        case c.DiscardStaged():
            is_one, batch = command.batch is not None, command.batch or 0
            return w.text8(command.sink) + struct.pack("<BQB", is_one, batch, command.forget)
        case c.GetSink() | c.GetStagedParts():
            return w.text8(command.sink)
        case c.ResetGroupOffsets():
            names = w.identifier(command.stream) + w.identifier(command.topic) + w.identifier(command.group)
            rows = b"".join(struct.pack("<IQ", *row) for row in command.offsets)
            return names + struct.pack("<BI", command.is_forced, len(command.offsets)) + rows
        case c.StoreConsumerOffset():
            return place(command) + struct.pack("<Q", command.offset)
        case c.GetConsumerOffset() | c.DeleteConsumerOffset():
            return place(command)
        case c.CreateConsumerGroup():
            return identifiers(command, "stream", "topic") + wanted(command.group_id) + w.text8(command.name)
        case (
            c.GetConsumerGroup()
            | c.GetGroupLag()
            | c.DeleteConsumerGroup()
            | c.JoinConsumerGroup()
            | c.LeaveConsumerGroup()
            | c.SyncConsumerGroup()
        ):
            return identifiers(command, "stream", "topic", "group")
        case c.SendMessages():
            return send_payload(command, messages, dialect)
        case _:
            return b""


def part_name(name: c.StagedPartName) -> bytes:
    return w.text8(name.sink) + struct.pack("<QIQ", name.batch, name.part, name.attempt)


def topic_options(options: TopicOptions) -> bytes:
    return struct.pack(
        "<BQQB",
        options.compression or 0,
        options.message_expiry or 0,
        options.max_topic_size or 0,
        options.replication_factor or 0,
    )


# --- replies ------------------------------------------------------------------------------------------


def _stream(cursor: Cursor) -> r.StreamInfo:
    stream_id = cursor.identity()
    created_at, topic_count, size, message_count = cursor.unpack("QIQQ")
    return r.StreamInfo(stream_id, created_at, topic_count, size, message_count, cursor.text8())


def _topic(cursor: Cursor) -> r.TopicInfo:
    topic_id = cursor.identity()
    created_at, partition_count, expiry, compression, size_max, factor, size, count = cursor.unpack("QIQBQBQQ")
    options = TopicOptions(
        message_expiry=expiry, compression=compression, max_topic_size=size_max, replication_factor=factor
    )
    name = cursor.text8()
    return r.TopicInfo(topic_id, created_at, partition_count, size, count, name, TopicOptions(), options)


def _partition(cursor: Cursor) -> r.PartitionInfo:
    partition_id = cursor.identity()
    return r.PartitionInfo(partition_id, *cursor.unpack("QIQQQ"))


def _group(cursor: Cursor) -> r.GroupInfo:
    group_id = cursor.identity()
    partition_count, member_count = cursor.unpack("II")
    return r.GroupInfo(group_id, partition_count, member_count, cursor.text8())


def _member(cursor: Cursor) -> r.GroupMember:
    member_id, count = cursor.unpack("II")
    return r.GroupMember(member_id, tuple(cursor.identity() for _ in range(count)))


def _user(cursor: Cursor) -> r.UserInfo:
    user_id = cursor.identity()
    created_at, status = cursor.unpack("QB")
    assert status in (1, 2)
    return r.UserInfo(user_id, created_at, status == 1, cursor.text8())


def _client(cursor: Cursor) -> r.ClientInfo:
    client_id, user_number, transport = cursor.unpack("IIB")
    nobody = 0 if cursor.first_id else 2**32 - 1
    user_id = None if user_number == nobody else user_number - cursor.first_id
    return r.ClientInfo(client_id, user_id, Transport(transport), cursor.text32(), cursor.number("I"))


def _permissions(cursor: Cursor) -> Permissions | None:
    if cursor.take(1) == b"\0":
        assert cursor.take(3) == bytes(3)
        return None
    end = cursor.number("I") + cursor.position
    everywhere = GlobalPermissions(*map(bool, cursor.take(10)))
    streams = {}
    follows = cursor.number("B")
    while follows:
        stream_id = cursor.identity()
        flags: list[Any] = [bool(flag) for flag in cursor.take(6)]
        topics = {}
        topic_follows = cursor.number("B")
        while topic_follows:
            topic_id = cursor.identity()
            topics[topic_id] = TopicPermissions(*map(bool, cursor.take(4)))
            topic_follows = cursor.number("B")
        streams[stream_id] = StreamPermissions(*flags[:6], *[topics])
        follows = cursor.number("B")
    assert cursor.position == end
    return Permissions(everywhere, streams)


def _stats(cursor: Cursor) -> r.Stats:
    names = (
        "process_id cpu_usage total_cpu_usage memory_usage total_memory available_memory run_time start_time "
        "read_bytes written_bytes messages_size stream_count topic_count partition_count segment_count message_count "
        "client_count group_count"
    )
    figures: dict[str, Any] = dict(zip(names.split(), cursor.unpack("IffQQQQQQQQIIIIQII"), strict=True))
    texts: dict[str, Any] = {
        name: cursor.text32() for name in ("hostname", "os_name", "os_version", "kernel_version", "server_version")
    }
    semver, cache_count, thread_count, free, total = cursor.unpack("IIIQQ")
    assert cache_count == 0
    return r.Stats(
        **figures,
        **texts,
        server_semver=semver,
        thread_count=thread_count,
        free_disk_space=free,
        total_disk_space=total,
    )


def _node(cursor: Cursor) -> r.Node:
    node = r.Node(cursor.text32(), cursor.text32(), *cursor.unpack("HHHH"))
    assert cursor.unpack("BB") == (0, 0)
    return node


def _rows(cursor: Cursor, row: Callable[[Cursor], r.Reply]) -> list[r.Reply]:
    rows = []
    while not cursor.is_at_end:
        rows.append(row(cursor))
    return rows


def _details(
    reply: Callable[..., r.Reply], head: Callable[[Cursor], r.Reply], row: Callable[[Cursor], r.Reply]
) -> Callable[[Cursor], r.Reply]:
    return lambda cursor: reply(head(cursor), _rows(cursor, row))


def _list(reply: Callable[..., r.Reply], row: Callable[[Cursor], r.Reply]) -> Callable[[Cursor], r.Reply]:
    return lambda cursor: reply(_rows(cursor, row))


def _cluster(cursor: Cursor) -> r.ClusterMetadata:
    return r.ClusterMetadata(cursor.text32(), [_node(cursor) for _ in range(cursor.number("I"))])


def _client_group(cursor: Cursor) -> r.ClientGroup:
    return r.ClientGroup(cursor.identity(), cursor.identity(), cursor.identity())


def _stored_offset(cursor: Cursor) -> r.StoredOffset:
    partition_id = cursor.identity()
    return r.StoredOffset(partition_id, *cursor.unpack("QQ"))


def _confirmed_assignment(cursor: Cursor) -> r.ConfirmedAssignment:
    generation, count = cursor.unpack("QI")
    return r.ConfirmedAssignment(generation, cursor.unpack(f"{count}I"))


def _assignment(cursor: Cursor) -> r.Assignment:
    generation, count = cursor.unpack("QI")
    return r.Assignment(generation, tuple(cursor.identity() for _ in range(count)))


def _bounds(cursor: Cursor) -> r.TopicBounds:
    stream_id, topic_id = cursor.unpack("II")
    uuid, count = cursor.take(16), cursor.number("I")
    return r.TopicBounds(stream_id, topic_id, uuid, [r.PartitionBounds(*cursor.unpack("IQQQQ")) for _ in range(count)])


def _durability(cursor: Cursor) -> r.TopicDurability:
    level = cursor.text8()
    count, size, interval = (cursor.optional() for _ in range(3))
    return r.TopicDurability(level, count, size, interval, cursor.text8())


def _partition_lag(cursor: Cursor) -> r.PartitionLag:
    partition_id = cursor.number("I")
    return r.PartitionLag(partition_id, *(cursor.optional() for _ in range(4)))


def _retention_plan(cursor: Cursor) -> o.RetentionPlan:
    until, is_enabled, count = cursor.unpack("Q?I")
    rows = []
    for _ in range(count):
        place, reason, figures = cursor.unpack("III"), cursor.text8(), cursor.unpack("QQIQQQ?")
        rows.append(o.PlannedDeletion(*(*place, reason, *figures)))
    return o.RetentionPlan(until, is_enabled, rows)


def _verified_segment(cursor: Cursor) -> o.VerifiedSegment:
    first_offset, next_offset, size, is_repaired = cursor.unpack("QQQ?")
    bounds = first_offset, next_offset, size
    return o.VerifiedSegment(
        *bounds, is_repaired, [r.Damage(*cursor.unpack("IQQQQQ")) for _ in range(cursor.number("I"))]
    )


def _start_report(cursor: Cursor) -> o.StartReport:
    started_at, last_stop = cursor.number("Q"), cursor.text8()
    finding_count, count = cursor.unpack("II")
    findings = [o.StartFinding(cursor.text8(), cursor.text32()) for _ in range(count)]
    return o.StartReport(started_at, last_stop, finding_count, findings)


def _maintenance(cursor: Cursor) -> r.TopicMaintenance:
    deletions = [
        r.Deletion(cursor.number("Q"), cursor.text8(), *cursor.unpack("IQQIQQ")) for _ in range(cursor.number("I"))
    ]
    return r.TopicMaintenance(deletions, [r.Damage(*cursor.unpack("IQQQQQ")) for _ in range(cursor.number("I"))])


def _segments(cursor: Cursor) -> r.SegmentList:
    partition_id, directory, count = cursor.number("I"), cursor.text32(), cursor.number("I")
    rows = []
    for _ in range(count):
        first, end, size, count, since, until = cursor.unpack("QQQQQQ")
        is_sealed, state, location = cursor.number("B") == 1, cursor.text8(), cursor.text8()
        rows.append(r.SegmentInfo(first, end, size, count, since, until, is_sealed, state, location))
    return r.SegmentList(partition_id, directory, rows)


def _sink_info(cursor: Cursor) -> r.SinkInfo:
    has_published, batch, *rest = cursor.unpack("?Q?QIQ")
    return r.SinkInfo(batch if has_published else None, *rest)


def _sink_summary(cursor: Cursor) -> r.SinkSummary:
    name = cursor.text8()
    user_id, has_published, batch, *rest = cursor.unpack("I?Q?QQIQ")
    return r.SinkSummary(name, user_id, batch if has_published else None, *rest)


def _staged_part(cursor: Cursor) -> r.StagedPartInfo:
    return r.StagedPartInfo(*cursor.unpack("IQIQIQQ?Q"))


def _arrivals(cursor: Cursor) -> r.Arrivals:
    generation, count = cursor.unpack("QI")
    return r.Arrivals(generation, tuple(cursor.number("I") for _ in range(count)))


def _option(cursor: Cursor) -> r.OptionDescription:
    key, kind = cursor.text8(), cursor.number("B")
    value = cursor.take(cursor.number("I"))
    defaults: dict[int, Callable[[], str | int | bool]] = {
        2: value.decode,
        3: lambda: value == b"\1",
        11: lambda: int(struct.unpack("<I", value)[0]),
        12: lambda: int(struct.unpack("<Q", value)[0]),
    }
    return r.OptionDescription(key, defaults[kind](), cursor.text32())


_PARSERS: dict[type[r.Reply], Callable[[Cursor], r.Reply]] = {
    r.LoggedIn: lambda cursor: r.LoggedIn(cursor.identity(), session=0),
    r.Stats: _stats,
    r.SnapshotArchive: lambda cursor: r.SnapshotArchive(cursor.take(len(cursor.data))),
    r.ClusterMetadata: _cluster,
    r.OptionList: lambda cursor: r.OptionList([_option(cursor) for _ in range(cursor.number("I"))]),
    r.ClientDetails: _details(r.ClientDetails, _client, _client_group),
    r.ClientList: _list(r.ClientList, _client),
    r.UserDetails: lambda cursor: r.UserDetails(_user(cursor), _permissions(cursor)),
    r.UserList: _list(r.UserList, _user),
    r.TokenList: _list(r.TokenList, lambda cursor: r.TokenInfo(cursor.text8(), cursor.number("Q"))),
    r.NewToken: lambda cursor: r.NewToken(cursor.text8()),
    r.StoredOffset: _stored_offset,
    r.StreamInfo: _stream,
    r.StreamDetails: _details(r.StreamDetails, _stream, _topic),
    r.StreamList: _list(r.StreamList, _stream),
    r.TopicDetails: _details(r.TopicDetails, _topic, _partition),
    r.TopicList: _list(r.TopicList, _topic),
    r.GroupDetails: _details(r.GroupDetails, _group, _member),
    r.GroupList: _list(r.GroupList, _group),
    r.Assignment: _assignment,
    r.ConfirmedAssignment: _confirmed_assignment,
    r.TopicBounds: _bounds,
    r.SegmentList: _segments,
    r.TopicDurability: _durability,
    r.TopicMaintenance: _maintenance,
    o.OffsetsAtTime: lambda cursor: o.OffsetsAtTime(
        [o.PartitionOffset(*cursor.unpack("IQ")) for _ in range(cursor.number("I"))]
    ),
    o.RetentionPlan: _retention_plan,
    o.VerifiedSegment: _verified_segment,
    o.StartReport: _start_report,
    r.Arrivals: _arrivals,
    r.ArrivalsInTopics: lambda cursor: r.ArrivalsInTopics(tuple(cursor.number("I") for _ in range(cursor.number("I")))),
    r.FoundMessages: lambda cursor: r.FoundMessages(*cursor.unpack("QQQ")),
    r.MetricsText: lambda cursor: r.MetricsText(cursor.text32()),
    r.GroupLag: lambda cursor: r.GroupLag([_partition_lag(cursor) for _ in range(cursor.number("I"))]),
    r.StagedPart: lambda cursor: r.StagedPart(*cursor.unpack("QQ")),
    r.Published: lambda cursor: r.Published(*cursor.unpack("?QQ")),
    r.SinkInfo: _sink_info,
    r.SinkList: lambda cursor: r.SinkList([_sink_summary(cursor) for _ in range(cursor.number("I"))]),
    r.StagedPartList: lambda cursor: r.StagedPartList([_staged_part(cursor) for _ in range(cursor.number("I"))]),
    **OPERATING_PARSERS,
}


def parse_reply(code: int, payload: bytes, dialect: Dialect = Dialect.SDK_0_8) -> r.Reply | None:
    """The reply to a command of this code; every byte of it belongs to something."""
    kind = ROW_BY_CODE[code].reply
    if kind is None or kind is r.Sent:
        assert payload == b""
        return None
    cursor = Cursor(payload, first_id_of(dialect))
    reply = _PARSERS[kind](cursor)
    assert cursor.is_at_end
    return reply


@dataclass(frozen=True)
class PolledMessages:
    """A poll reply, message by message."""

    partition_id: int
    current_offset: int
    messages: tuple[Message, ...]


def parse_polled(payload: bytes, dialect: Dialect = Dialect.SDK_0_8) -> PolledMessages:
    cursor = Cursor(payload, first_id_of(dialect))
    partition_id = cursor.identity()
    current_offset, count = cursor.unpack("QI")
    messages = []
    for _ in range(count):
        checksum = cursor.number("Q")
        message_id = cursor.take(16)
        offset, timestamp, origin, user_headers_length, payload_length = cursor.unpack("QQQII")
        assert cursor.take(dialect.header_size - 56).strip(b"\0") == b""
        body = cursor.take(payload_length)
        user_headers = cursor.take(user_headers_length)
        messages.append(Message(body, message_id, origin, user_headers, offset, timestamp, checksum))
    assert cursor.is_at_end
    return PolledMessages(partition_id, current_offset, tuple(messages))


def polled(read: PolledMessages, *, is_merged: bool) -> r.Polled:
    """The same messages as the server would hand them to a codec: each a batch of its own, or merged if times allow."""
    batches: list[list[Message]] = []
    for message in read.messages:
        first = batches[-1][0] if batches else message
        is_near = first.timestamp == message.timestamp and abs(first.origin - message.origin) < 2**31
        if batches and is_merged and is_near:
            batches[-1].append(message)
        else:
            batches.append([message])
    records = []
    for batch in batches:
        new = [
            NewMessage(one.payload, int.from_bytes(one.message_id, "little"), one.origin, one.user_headers)
            for one in batch
        ]
        built = build_batch(new)
        records.append(encode_batch(built, base_offset=batch[0].offset, base_timestamp=batch[0].timestamp))
    # The first record alone, the others in one piece: both are found in replies.
    pieces = [memoryview(piece) for piece in (b"".join(records[:1]), b"".join(records[1:])) if piece]
    return r.Polled(read.partition_id, read.current_offset, len(read.messages), tuple(pieces), sum(map(len, pieces)))
