"""The bodies of requests, of both generations: where the numbers stand that a server gave out.

Only what has to be translated is taken apart; the rest of a body is one field. A malformed body is translated as far as
its layout goes.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from tests.replay.bookkeeping import Books
from tests.replay.captures import Wire
from tests.replay.fields import Body, BodyCut, Field, Key, Kind, Record

_OFFSET_STRATEGY, _TIME_STRATEGY = 1, 2
_BALANCED, _BY_PARTITION, _BY_KEY = 1, 2, 3
_GROUP = 2


@dataclass
class Target:
    """What a request is about, in the numbers of the real server. None: not named, or not there."""

    stream: int | None = None
    topic: int | None = None
    group: int | None = None
    partition: int | None = None
    user: int | None = None
    name: bytes | None = None
    """The new one."""
    count: int = 0
    """Of partitions, or of messages."""
    partitioning: tuple[int, bytes] = (0, b"")

    @property
    def topic_key(self) -> tuple[int, int] | None:
        """The topic, if it is there."""
        return None if self.stream is None or self.topic is None else (self.stream, self.topic)

    def partition_key(self, partition: int) -> Key | None:
        """A partition of the topic."""
        return None if self.topic_key is None else ("partition", *self.topic_key, partition)


def parse_request(wire: Wire, command: str, data: bytes, books: Books) -> tuple[Record, Target]:
    """Take a body apart."""
    reading = _Reading(wire, Body(data), books)
    layout = _LAYOUTS.get(command)
    if layout is not None:
        with contextlib.suppress(BodyCut):
            layout(reading)
    record = reading.record
    record["rest"] = Field(data[record.size :])
    return record, reading.target


class _Reading:
    """One body as it is read."""

    def __init__(self, wire: Wire, body: Body, books: Books) -> None:
        self.wire = wire
        self.body = body
        self.books = books
        self.record = Record()
        self.target = Target()

    def keep(self, name: str, field: Field) -> Field:
        self.record[name] = field
        return field

    def identifier(self, kind: str, parent: tuple[int, ...] | None) -> int | None:
        """Read a number or a name; return the number that the real server had for it."""
        head = self.keep(f"{kind} identifier", self.body.field(2))
        form, size = head.data
        value = self.body.field(size)
        if form == 1 and size == 4:
            key: Key | None = None if parent is None else (kind, *parent, value.value)
            self.keep(kind, Field(value.data, Kind.ID, key))
            return value.value
        self.keep(kind, value)
        return None if parent is None else self.books.number(kind, parent, value.data)

    def stream(self) -> None:
        self.target.stream = self.identifier("stream", ())

    def topic(self) -> None:
        self.stream()
        self.target.topic = self.identifier("topic", None if self.target.stream is None else (self.target.stream,))

    def group(self) -> None:
        self.topic()
        self.target.group = self.identifier("group", self.target.topic_key)

    def name(self) -> None:
        self.target.name = self.keep("name", self.body.text8()).data[1:]

    def partition(self) -> None:
        field = self.keep("partition", self.body.u32())
        self.target.partition = field.value

    def optional_partition(self) -> None:
        flag = self.keep("partition flag", self.body.u8())
        self.partition()
        if flag.value == 0:
            # A single consumer reads partition 0 then.
            self.target.partition = 0

    def consumer(self) -> None:
        """A consumer comes before the topic that a group's number belongs to."""
        kind = self.keep("consumer kind", self.body.u8()).value
        head = self.keep("consumer identifier", self.body.field(2))
        form, size = head.data
        value = self.keep("consumer", self.body.field(size))
        self.topic()
        parent = self.target.topic_key
        if kind != _GROUP or parent is None:
            return
        if form == 1 and size == 4:
            self.target.group = value.value
            self.record["consumer"] = Field(value.data, Kind.ID, ("group", *parent, value.value))
        else:
            self.target.group = self.books.number("group", parent, value.data)

    def offset(self, name: str) -> None:
        key = self.target.partition_key(self.target.partition or 0)
        self.keep(name, self.body.u64(Kind.OFFSET, key))

    def permissions(self) -> None:
        """The flag, the length and what follows; the ids in it are numbers of streams and topics."""
        has = self.keep("has permissions", self.body.u8())
        if has.value != 1:
            return
        self.keep("permissions size", self.body.u32())
        self.record["permissions"] = [permissions(self.body)]


def permissions(body: Body) -> Record:
    """A block of permissions: of requests and of replies."""
    record = Record()
    record["global"] = body.field(10)
    has_more = record["has streams"] = body.u8()
    streams = record["stream permissions"] = []
    while has_more.value:
        stream = Record()
        streams.append(stream)
        number = body.peek(4)
        stream["stream"] = body.u32(Kind.ID, ("stream", number))
        stream["flags"] = body.field(6)
        has_topic = stream["has topics"] = body.u8()
        topics = stream["topic permissions"] = []
        while has_topic.value:
            topic = Record()
            topics.append(topic)
            topic["topic"] = body.u32(Kind.ID, ("topic", number, body.peek(4)))
            topic["flags"] = body.field(4)
            has_topic = topic["has next"] = body.u8()
        has_more = stream["has next"] = body.u8()
    return record


# --- layouts ---


def _get_client(reading: _Reading) -> None:
    reading.keep("client", reading.body.u32(Kind.ID, ("client", reading.body.peek(4))))


def _user(reading: _Reading) -> None:
    reading.target.user = reading.identifier("user", ())


def _update_permissions(reading: _Reading) -> None:
    _user(reading)
    reading.permissions()


def _create_user(reading: _Reading) -> None:
    reading.keep("name", reading.body.text8())
    reading.keep("password", reading.body.text8())
    reading.keep("status", reading.body.u8())
    reading.permissions()


def _create_stream(reading: _Reading) -> None:
    reading.name()


def _update_stream(reading: _Reading) -> None:
    reading.stream()
    reading.name()


def _create_topic(reading: _Reading) -> None:
    reading.stream()
    reading.target.count = reading.keep("partition count", reading.body.u32()).value
    if reading.wire is Wire.CLASSIC:
        reading.keep("options", reading.body.field(1 + 8 + 8 + 1))
    reading.name()


def _update_topic(reading: _Reading) -> None:
    reading.topic()
    if reading.wire is Wire.CLASSIC:
        reading.keep("options", reading.body.field(1 + 8 + 8 + 1))
    reading.name()


def _partitions(reading: _Reading) -> None:
    reading.topic()
    reading.target.count = reading.keep("count", reading.body.u32()).value


def _one_partition(reading: _Reading) -> None:
    reading.topic()
    reading.partition()


def _create_group(reading: _Reading) -> None:
    reading.topic()
    reading.name()


def _poll(reading: _Reading) -> None:
    reading.consumer()
    reading.optional_partition()
    strategy = reading.keep("strategy", reading.body.u8()).value
    if strategy == _OFFSET_STRATEGY:
        reading.offset("value")
    else:
        reading.keep("value", reading.body.u64(Kind.TIME if strategy == _TIME_STRATEGY else Kind.SAME))


def _consumer_offset(reading: _Reading) -> None:
    reading.consumer()
    reading.optional_partition()


def _store_offset(reading: _Reading) -> None:
    _consumer_offset(reading)
    reading.offset("offset")


def _send(reading: _Reading) -> None:
    reading.keep("metadata size", reading.body.u32())
    reading.topic()
    head = reading.keep("partitioning", reading.body.field(2))
    kind, size = head.data
    value = reading.keep("partitioning value", reading.body.field(size))
    reading.target.count = reading.keep("count", reading.body.u32()).value
    reading.target.partitioning = (kind, value.data)


def partition_of_send(target: Target, books: Books) -> int | None:
    """The partition that the real server chose for a send that it accepted."""
    kind, value = target.partitioning
    topic = target.topic_key
    if topic is None:
        return None
    if kind == _BALANCED:
        return books.next_balanced(topic)
    if kind == _BY_KEY:
        return books.partition_of_key(topic, value)
    return int.from_bytes(value, "little") if kind == _BY_PARTITION else None


_LAYOUTS: dict[str, Callable[[_Reading], None]] = {
    "GetClient": _get_client,
    "GetUser": _user,
    "CreateUser": _create_user,
    "DeleteUser": _user,
    "UpdateUser": _user,
    "UpdatePermissions": _update_permissions,
    "ChangePassword": _user,
    "CreateStream": _create_stream,
    "UpdateStream": _update_stream,
    "GetStream": _Reading.stream,
    "DeleteStream": _Reading.stream,
    "PurgeStream": _Reading.stream,
    "GetTopics": _Reading.stream,
    "CreateTopic": _create_topic,
    "UpdateTopic": _update_topic,
    "GetTopic": _Reading.topic,
    "DeleteTopic": _Reading.topic,
    "PurgeTopic": _Reading.topic,
    "GetConsumerGroups": _Reading.topic,
    "CreatePartitions": _partitions,
    "DeletePartitions": _partitions,
    "DeleteSegments": _one_partition,
    "FlushUnsavedBuffer": _one_partition,
    "CreateConsumerGroup": _create_group,
    "GetConsumerGroup": _Reading.group,
    "DeleteConsumerGroup": _Reading.group,
    "JoinConsumerGroup": _Reading.group,
    "LeaveConsumerGroup": _Reading.group,
    "SyncConsumerGroup": _Reading.group,
    "PollMessages": _poll,
    "GetConsumerOffset": _consumer_offset,
    "StoreConsumerOffset": _store_offset,
    "DeleteConsumerOffset": _consumer_offset,
    "SendMessages": _send,
}
