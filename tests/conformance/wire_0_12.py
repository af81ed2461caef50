"""The protocol of SDK 0.10 from the client's side, for 0.12.0 and 0.12.2: what differs from 0.9 is written by hand."""

import asyncio
import os
import struct
from collections.abc import Callable

import msgspec

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode, NotFound
from courser.model.topic_options import TopicOptions
from courser.records.batch import encode_batch
from courser.wire import shared_replies
from courser.wire.layouts import layout_of
from courser.wire.reading import Reader
from courser.wire.vsr_facts import read_failure
from courser.wire.vsr_options import read_reported_options
from courser.wire.vsr_replies import MAY_BE_EMPTY, READERS
from courser.wire.vsr_requests import WRITERS, write_send_target
from courser.wire.writing import consumer, identifier, text8, text32

VERSIONS = {"0.12.0": 0x3000, "0.12.2": 0x3002}
GONE: frozenset[type[c.Command]] = frozenset({c.PurgeStream, c.PurgeTopic, c.FlushMessages})
"""Commands that this protocol has no more."""
SECOND = 1_000_000
_REGISTER, _READ, _LOGOUT, _UPDATE = 1, 2, 3, 150
_FRAMED = frozenset({_REGISTER, *range(64, 69), *range(128, 138), *range(139, 151), 161, 162})
_EVICTIONS = {9: ErrorCode.INVALID_CREDENTIALS, 10: ErrorCode.INVALID_TOKEN, 1: ErrorCode.UNAUTHENTICATED}


class Wire12:
    """A connection with one version of the protocol. Every request has a number, and its reply has the same."""

    def __init__(self, version: str) -> None:
        self._version = VERSIONS[version]
        self._client = os.urandom(16)
        self._session = self._number = 0

    # --- requests ---

    def encode(self, command: c.Command) -> bytes:
        assert type(command) not in GONE
        operation = command.row.operation or _READ
        body = _BODIES.get(type(command), WRITERS.get(type(command), _no_body))(command)
        if isinstance(command, c.LoginUser | c.LoginWithToken):
            self._session = self._number = 0
            body = self._login(command)
        elif isinstance(command, c.UpdateStream | c.UpdateTopic | c.UpdateUser):
            operation = _UPDATE
        if operation != _REGISTER:
            self._number += bool(self._session)
        has_id = operation in (_REGISTER, _LOGOUT) or 128 <= operation <= _UPDATE
        header = bytearray(256)
        struct.pack_into("<I", header, 48, 256 + len(body))
        header[60] = 5
        header[128:144] = self._client
        header[144:160] = os.urandom(16) if has_id else bytes(16)
        struct.pack_into("<QB7xQ4xI", header, 168, self._number, operation, self._session, _code(command, operation))
        return bytes(header) + body

    def _login(self, command: c.LoginUser | c.LoginWithToken) -> bytes:
        prefix = struct.pack("<I", self._version) + text8("rust-sdk") + text8("0.11.1-edge.9") + os.urandom(32)
        if isinstance(command, c.LoginUser):
            return prefix + text8(command.name) + text8(command.password) + text32(command.context)
        return prefix + text8(command.token) + bytes(4)

    # --- replies ---

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(256)
        size: int = struct.unpack_from("<I", head, 48)[0]
        return head + await reader.readexactly(size - 256)

    def decode(self, command: c.Command, frame: bytes) -> r.Reply | None:
        if frame[60] == 13:
            raise read_failure(_EVICTIONS[frame[255]], b"")
        number, status = struct.unpack_from("<Q", frame, 200)[0], struct.unpack_from("<I", frame, 216)[0]
        assert number == self._number, "the number of the request"
        if status:
            raise read_failure(status, b"")
        body = frame[256:]
        if frame[208] in _FRAMED:
            if struct.unpack_from("<I", body)[0]:
                raise read_failure(struct.unpack_from("<I", body, 8)[0], b"")
            body = body[4:]
        expected = command.row.reply
        if expected is None:
            assert not body
            return None
        if not body and expected not in MAY_BE_EMPTY:
            raise NotFound(ErrorCode.RESOURCE_NOT_FOUND, "not found")
        reader = Reader(memoryview(body))
        reply: r.Reply = self._readers.get(expected, READERS.get(expected, _unread))(reader)
        assert not reader.remaining or isinstance(reply, r.LoggedIn), "bytes behind the reply"
        if isinstance(reply, r.LoggedIn):
            self._session = reply.session
        return reply

    @property
    def _readers(self) -> dict[type[r.Reply], Callable[[Reader], r.Reply]]:
        return {**_READERS, r.TopicDetails: self._topic_details}

    def _topic_details(self, reader: Reader) -> r.TopicDetails:
        info = _topic(reader)
        return r.TopicDetails(info, [self._partition(reader) for _ in range(info.partition_count)])

    def _partition(self, reader: Reader) -> r.PartitionInfo:
        row = _partition_layout.read(reader)
        incarnation, generation, valid_since = reader.u64(), reader.u64(), reader.u64()
        assert (generation, valid_since) == (0, incarnation)
        if self._version == VERSIONS["0.12.2"]:
            assert bytes(reader.take(4)) == b"\1\0\1\0", "the only server has the only copy"
        return msgspec.structs.replace(row, incarnation=incarnation)


def _code(command: c.Command, operation: int) -> int:
    return command.row.code if operation == _READ else 0


# --- bodies of requests -------------------------------------------------------------------------------


def _no_body(_: c.Command) -> bytes:
    return b""


def _option(key: str, kind: int, data: bytes) -> bytes:
    return b"\2" + struct.pack("<I", len(key)) + key.encode() + bytes((kind,)) + struct.pack("<I", len(data)) + data


def _update_stream(command: c.UpdateStream) -> bytes:
    return b"\2" + identifier(command.stream) + b"\0" + _option("name", 2, command.name.encode())


def _update_topic(command: c.UpdateTopic) -> bytes:
    options = _option("name", 2, command.name.encode())
    for key in ("message_expiry", "max_topic_size"):
        value = getattr(command.options, key)
        if value is not None:
            options += _option(key, 12, struct.pack("<Q", value))
    return b"\1" + identifier(command.stream) + identifier(command.topic) + b"\0" + options


def _update_user(command: c.UpdateUser) -> bytes:
    options = b"" if command.name is None else _option("username", 2, command.name.encode())
    if command.is_active is not None or not options:
        # An update that changes nothing would be malformed.
        options += _option("status", 2, b"inactive" if command.is_active is False else b"active")
    return b"\3" + identifier(command.user) + b"\0" + options


def _send(command: c.SendMessages) -> bytes:
    (batch,) = command.batches
    return write_send_target(command, batch.count) + encode_batch(batch)


def _place(command: c.AwaitMessages | c.FetchMessages) -> bytes:
    return consumer(command.consumer) + identifier(command.stream) + identifier(command.topic)


def _await(command: c.AwaitMessages) -> bytes:
    targets = b"".join(struct.pack("<IBQ", *target[:3]) for target in command.targets)
    times = struct.pack("<QQI", command.wait, command.wait + 10 * SECOND, len(command.targets))
    return _place(command) + times + targets


def _fetch(command: c.FetchMessages) -> bytes:
    targets = b"".join(struct.pack("<IBQIQQ", *target[:3], 344, target.incarnation, 0) for target in command.targets)
    size_max = max(command.size_max, 344)
    limits = struct.pack(
        "<QQIII?I", 0, 10 * SECOND, 1, command.count, size_max, command.auto_commit, len(command.targets)
    )
    return _place(command) + limits + targets


def _read_messages(command: c.ReadMessages) -> bytes:
    return WRITERS[c.PollMessages](command.poll) + struct.pack("<QIIQ", 0, 1, max(command.size_max, 344), 10 * SECOND)


def _route(command: c.GetPartitionRoute) -> bytes:
    return identifier(command.stream) + identifier(command.topic) + struct.pack("<I", command.partition_id)


_BODIES: dict[type[c.Command], Callable[..., bytes]] = {
    c.UpdateStream: _update_stream,
    c.UpdateTopic: _update_topic,
    c.UpdateUser: _update_user,
    c.SendMessages: _send,
    c.AwaitMessages: _await,
    c.FetchMessages: _fetch,
    c.ReadMessages: _read_messages,
    c.GetPartitionRoute: _route,
    c.GetMetadataChanges: lambda command: struct.pack("<B44x2xIBH", command.start, command.limit, 0, 0),
}

# --- bodies of replies --------------------------------------------------------------------------------

_stream_layout, _partition_layout, _user_layout = (
    layout_of(r.StreamInfo),
    layout_of(r.PartitionInfo),
    layout_of(r.UserInfo),
)


def _unread(reader: Reader) -> r.Reply:
    """A reply that no test looks into."""
    reader.rest()
    return r.Reply()


def _stream(reader: Reader) -> r.StreamInfo:
    row = _stream_layout.read(reader)
    assert reader.u32() == 0, "explicit options"
    assert b"encryption_key_source" in bytes(reader.take(reader.u32()))
    return row


def _user(reader: Reader) -> r.UserInfo:
    row = _user_layout.read(reader)
    assert bytes(reader.take(8)) == bytes(8), "two blocks without options"
    return row


def _user_details(reader: Reader) -> r.UserDetails:
    reply = r.UserDetails(_user(reader), reader.optional_permissions())
    if reply.permissions is None:
        reader.take(3)
    return reply


def _topic(reader: Reader) -> r.TopicInfo:
    topic_id, created_at, count = reader.u32(), reader.u64(), reader.u32()
    size, message_count, name = reader.u64(), reader.u64(), reader.text8()
    wanted, derived = read_reported_options(reader)
    names = TopicOptions.__struct_fields__
    both = {key: getattr(derived, key) if getattr(wanted, key) is None else getattr(wanted, key) for key in names}
    return r.TopicInfo(topic_id, created_at, count, size, message_count, name, wanted, TopicOptions(**both))


def _stream_details(reader: Reader) -> r.StreamDetails:
    info = _stream(reader)
    return r.StreamDetails(info, [_topic(reader) for _ in range(info.topic_count)])


def _all(reader: Reader, read: Callable[[Reader], r.Reply]) -> list[r.Reply]:
    rows = []
    while reader.remaining:
        rows.append(read(reader))
    return rows


def _cluster(reader: Reader) -> r.ClusterMetadata:
    name, count = reader.text32(), reader.u32()
    assert (count, reader.u8()) == (1, 0), "one server, whose number is 0"
    again = text32(name) + struct.pack("<I", 1) + bytes(reader.rest())
    return shared_replies.read_cluster(Reader(memoryview(again)))


def _stats(reader: Reader) -> r.Stats:
    reply = shared_replies.read_stats(reader)
    reply = msgspec.structs.replace(reply, open_file_count=reader.u64(), open_file_limit=reader.u64())
    assert 0 < reply.open_file_count <= reply.open_file_limit
    return reply


def _polled(reader: Reader) -> r.Polled:
    partition_id, current_offset, count = reader.u32(), reader.u64(), reader.u32()
    incarnation, generation, valid_since = reader.u64(), reader.u64(), reader.u64()
    assert incarnation
    assert (generation, valid_since) == (0, incarnation)
    records = reader.rest()
    pieces = (records,) if len(records) else ()
    return r.Polled(partition_id, current_offset, count, pieces, len(records), incarnation)


_READERS: dict[type[r.Reply], Callable[[Reader], r.Reply]] = {
    r.StreamInfo: _stream,
    r.StreamDetails: _stream_details,
    r.StreamList: lambda reader: r.StreamList(_all(reader, _stream)),  # type: ignore[arg-type]
    r.TopicList: lambda reader: r.TopicList([_topic(reader) for _ in range(reader.u32())]),
    r.UserDetails: _user_details,
    r.UserList: lambda reader: r.UserList(_all(reader, _user)),  # type: ignore[arg-type]
    r.ClusterMetadata: _cluster,
    r.Stats: _stats,
    r.Polled: _polled,
    r.OptionList: _unread,
}
