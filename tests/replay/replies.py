"""The bodies of replies, of both generations, taken apart to the last byte."""

from collections.abc import Callable

from tests.replay.captures import Wire
from tests.replay.fields import Body, BodyCut, Field, Key, Kind, Record
from tests.replay.requests import Target, permissions

SETS: dict[Wire, frozenset[str]] = {
    Wire.CLASSIC: frozenset({"clients", "tokens"}),
    Wire.VSR: frozenset({"clients", "tokens", "groups"}),
}
"""Lists whose order is arbitrary."""
ORDERED = {
    "streams": "id",
    "topics": "id",
    "groups": "id",
    "users": "id",
    "messages": "offset",
    "batches": "base_offset",
}
"""Lists in the order of numbers that servers give out: the order is another one if the real server used one again."""


def parse_reply(wire: Wire, command: str, target: Target, data: bytes, *, is_cut: bool = False) -> Record:
    """Take the body of a good reply apart. An empty one says that there is nothing.

    Of a reply that was cut only the beginning is read. Ours is read with the same layout: numbers that servers give out
    are then ours, and the keys made of them mean nothing.
    """
    reading = _Reading(wire, command, target, Body(data))
    if data:
        try:
            _LAYOUTS.get(command, _opaque)(reading)
        except BodyCut:
            if is_cut:
                return reading.record
    record = reading.record
    if record.size < len(data):
        record["surplus"] = Field(data[record.size :])
    return record


class _Reading:
    """One body as it is read."""

    def __init__(self, wire: Wire, command: str, target: Target, body: Body) -> None:
        self.wire = wire
        self.is_vsr = wire is Wire.VSR
        self.is_creation = command.startswith("Create")
        self.target = target
        self.body = body
        self.record = Record()

    def new_list(self, name: str, record: Record | None = None) -> list[Record]:
        records: list[Record] = []
        (self.record if record is None else record)[name] = records
        return records

    def identity(self, kind: str, parent: tuple[int, ...] | None) -> Field:
        key: Key | None = None if parent is None else (kind, *parent, self.body.peek(4))
        return self.body.u32(Kind.NEW_ID if self.is_creation else Kind.ID, key)

    def options(self, record: Record, name: str) -> None:
        """Keys and values, each key by itself: a list would be compared by position."""
        record[f"{name} size"] = self.body.u32(Kind.VARIES)
        end = self.body.remaining - record.field(f"{name} size").value
        while self.body.remaining > end:
            key = self.body.field(5 + _length_behind_kind(self.body))
            value = self.body.field(5 + _length_behind_kind(self.body))
            text = key.data[5:].decode(errors="replace")
            record[f"{name} {text}"] = Field(key.data + value.data)


def _length_behind_kind(body: Body) -> int:
    return body.peek(5) >> 8


# --- layouts ---


def _opaque(reading: _Reading) -> None:
    reading.record["body"] = reading.body.rest()


def _stream(reading: _Reading, record: Record) -> int:
    body = reading.body
    record["id"] = reading.identity("stream", ())
    record["created_at"] = body.u64(Kind.TIME)
    count = record["topics_count"] = body.u32()
    record["size"] = body.u64(Kind.SIZE)
    record["messages_count"] = body.u64()
    record["name"] = body.text8()
    if reading.is_vsr:
        reading.options(record, "option")
    return count.value


def _topic(reading: _Reading, record: Record, stream: int | None) -> int:
    body = reading.body
    record["id"] = reading.identity("topic", None if stream is None else (stream,))
    record["created_at"] = body.u64(Kind.TIME)
    count = record["partitions_count"] = body.u32()
    record["message_expiry"] = body.u64()
    record["compression"] = body.u8()
    record["max_topic_size"] = body.u64()
    if not reading.is_vsr:
        record["replication_factor"] = body.u8()
    record["size"] = body.u64(Kind.SIZE)
    record["messages_count"] = body.u64()
    record["name"] = body.text8()
    if reading.is_vsr:
        reading.options(record, "explicit option")
        reading.options(record, "derived option")
    return count.value


def _partition(reading: _Reading, topic: tuple[int, int] | None) -> Record:
    body, record = reading.body, Record()
    key = None if topic is None else ("partition", *topic, body.peek(4))
    record["id"] = body.u32()
    record["created_at"] = body.u64(Kind.TIME)
    record["segments_count"] = body.u32()
    record["current_offset"] = body.u64(Kind.CURRENT_OFFSET, key)
    record["size"] = body.u64(Kind.SIZE)
    record["messages_count"] = body.u64()
    return record


def _one_stream(reading: _Reading) -> None:
    stream = reading.body.peek(4)
    _stream(reading, reading.record)
    topics = reading.new_list("topics")
    while reading.body.remaining:
        topics.append(Record())
        _topic(reading, topics[-1], stream)


def _streams(reading: _Reading) -> None:
    streams = reading.new_list("streams")
    while reading.body.remaining:
        streams.append(Record())
        _stream(reading, streams[-1])


def _one_topic(reading: _Reading) -> None:
    number = reading.body.peek(4)
    stream = reading.target.stream
    count = _topic(reading, reading.record, stream)
    partitions = reading.new_list("partitions")
    for _ in range(count):
        partitions.append(_partition(reading, None if stream is None else (stream, number)))


def _topics(reading: _Reading) -> None:
    if reading.is_vsr:
        reading.record["count"] = reading.body.u32()
    topics = reading.new_list("topics")
    while reading.body.remaining:
        topics.append(Record())
        _topic(reading, topics[-1], reading.target.stream)


def _group(reading: _Reading, record: Record) -> int:
    body = reading.body
    record["id"] = reading.identity("group", reading.target.topic_key)
    record["partitions_count"] = body.u32()
    members_count = record["members_count"] = body.u32()
    record["name"] = body.text8()
    return members_count.value


def _one_group(reading: _Reading) -> None:
    body, topic, group = reading.body, reading.target.topic_key, reading.body.peek(4)
    count = _group(reading, reading.record)
    members = reading.new_list("members")
    for _ in range(count):
        member = Record()
        key = None if topic is None else ("member", *topic, group, body.peek(4))
        member["member"] = body.u32(Kind.SEEN_ID, key)
        partition_count = member["partition count"] = body.u32()
        member["partitions"] = body.field(4 * partition_count.value, Kind.NUMBERS)
        members.append(member)


def _groups(reading: _Reading) -> None:
    groups = reading.new_list("groups")
    while reading.body.remaining:
        groups.append(Record())
        _group(reading, groups[-1])


def _sync(reading: _Reading) -> None:
    reading.record["generation"] = reading.body.u64()
    reading.record["partition count"] = reading.body.u32()
    reading.record["partitions"] = reading.body.rest(Kind.NUMBERS)


def _user(reading: _Reading, record: Record) -> None:
    body = reading.body
    record["id"] = reading.identity("user", ())
    record["created_at"] = body.u64(Kind.TIME)
    record["status"] = body.u8()
    record["name"] = body.text8()
    if reading.is_vsr:
        reading.options(record, "option")


def _one_user(reading: _Reading) -> None:
    _user(reading, reading.record)
    if reading.body.peek(1) == 1:
        reading.record["has permissions"] = reading.body.u8()
        reading.record["permissions size"] = reading.body.u32()
        reading.record["permissions"] = [permissions(reading.body)]
    else:
        reading.record["has permissions"] = reading.body.u32()


def _users(reading: _Reading) -> None:
    users = reading.new_list("users")
    while reading.body.remaining:
        users.append(Record())
        _user(reading, users[-1])


def _client(reading: _Reading, record: Record) -> int:
    body = reading.body
    record["client"] = body.u32(Kind.SEEN_ID, ("client", body.peek(4)))
    user = body.peek(4)
    record["user"] = body.u32(Kind.ID, None if user == 2**32 - 1 else ("user", user))
    record["transport"] = body.u8()
    record["address"] = body.text32(Kind.VARIES)
    groups_count = record["groups_count"] = body.u32()
    return groups_count.value


def _one_client(reading: _Reading) -> None:
    count = _client(reading, reading.record)
    memberships = reading.new_list("memberships")
    for _ in range(count):
        row, body = Record(), reading.body
        stream, topic, group = (
            int.from_bytes(body.peek(12).to_bytes(12, "little")[at : at + 4], "little") for at in (0, 4, 8)
        )
        row["stream"] = body.u32(Kind.ID, ("stream", stream))
        row["topic"] = body.u32(Kind.ID, ("topic", stream, topic))
        row["group"] = body.u32(Kind.ID, ("group", stream, topic, group))
        memberships.append(row)


def _clients(reading: _Reading) -> None:
    clients = reading.new_list("clients")
    while reading.body.remaining:
        clients.append(Record())
        _client(reading, clients[-1])


def _login(reading: _Reading) -> None:
    user = reading.body.peek(4)
    reading.record["user"] = reading.body.u32(Kind.ID, ("user", user))


def _register(reading: _Reading) -> None:
    _login(reading)
    reading.record["session"] = reading.body.u64(Kind.VARIES)
    reading.record["protocol version"] = reading.body.u32()
    reading.record["server version"] = reading.body.text8(Kind.VARIES)


def _token(reading: _Reading) -> None:
    reading.record["token"] = reading.body.text8(Kind.TOKEN)


def _tokens(reading: _Reading) -> None:
    tokens = reading.new_list("tokens")
    while reading.body.remaining:
        token = Record()
        token["name"] = reading.body.text8()
        never = reading.body.peek(8) == 0
        token["expires_at"] = reading.body.u64(Kind.SAME if never else Kind.VARIES)
        tokens.append(token)


def _consumer_offset(reading: _Reading) -> None:
    key = reading.target.partition_key(reading.body.peek(4))
    reading.record["partition"] = reading.body.u32()
    reading.record["current_offset"] = reading.body.u64(Kind.CURRENT_OFFSET, key)
    reading.record["stored_offset"] = reading.body.u64(Kind.OFFSET, key)


def _confirmations(reading: _Reading) -> None:
    reading.record["count"] = reading.body.u32()
    rows = reading.new_list("confirmations")
    while reading.body.remaining:
        row, body = Record(), reading.body
        stream = body.peek(4)
        row["stream"] = body.u32(Kind.ID, ("stream", stream))
        topic = body.peek(4)
        row["topic"] = body.u32(Kind.ID, ("topic", stream, topic))
        key: Key = ("partition", stream, topic, body.peek(4))
        row["partition"] = body.u32()
        row["base_offset"] = body.u64(Kind.OFFSET, key)
        rows.append(row)


def _poll(reading: _Reading) -> None:
    body, record = reading.body, reading.record
    key = reading.target.partition_key(body.peek(4))
    record["partition"] = body.u32()
    record["current_offset"] = body.u64(Kind.CURRENT_OFFSET, key)
    record["count"] = body.u32()
    if reading.is_vsr:
        batches = reading.new_list("batches")
        while body.remaining:
            batches.append(_batch(body, key))
    else:
        messages = reading.new_list("messages")
        while body.remaining:
            messages.append(_message(body, key))


def _message(body: Body, partition: Key | None) -> Record:
    record = Record()
    record["checksum"] = body.u64(Kind.CHECKSUM)
    record["id"] = body.field(16, Kind.MESSAGE_ID)
    record["offset"] = body.u64(Kind.OFFSET, partition)
    record["timestamp"] = body.u64(Kind.TIME)
    record["origin_timestamp"] = body.u64()
    headers_size = record["user_headers_length"] = body.u32()
    payload_size = record["payload_length"] = body.u32()
    record["reserved"] = body.u64()
    record["payload"] = body.field(payload_size.value)
    record["user_headers"] = body.field(headers_size.value)
    return record


def _batch(body: Body, partition: Key | None) -> Record:
    record = Record()
    record["partition"] = body.u64()
    record["base_offset"] = body.u64(Kind.OFFSET, partition)
    record["base_timestamp"] = body.u64(Kind.TIME)
    record["origin_timestamp"] = body.u64()
    size = record["batch_length"] = body.u64()
    record["checksum"] = body.u64(Kind.CHECKSUM)
    record["message_count"] = body.u32()
    record["reserved"] = body.field(204)
    end = body.remaining - (size.value - 256)
    frames: list[Record] = []
    record["frames"] = frames
    while body.remaining > end:
        frames.append(_frame(body))
    return record


def _frame(body: Body) -> Record:
    record = Record()
    record["frame checksum"] = body.u64()
    record["id"] = body.field(16)
    record["offset_delta"] = body.u32()
    record["timestamp_delta"] = body.u32()
    headers_size = record["user_headers_length"] = body.u32()
    payload_size = record["payload_length"] = body.u32()
    record["reserved"] = body.u64()
    record["payload"] = body.field(payload_size.value)
    record["user_headers"] = body.field(headers_size.value)
    return record


def _stats(reading: _Reading) -> None:
    body, record = reading.body, reading.record
    record["machine"] = body.field(68, Kind.VARIES)
    record["messages_size"] = body.u64(Kind.SIZE)
    for name in ("streams_count", "topics_count", "partitions_count", "segments_count"):
        record[name] = body.u32()
    record["messages_count"] = body.u64()
    record["clients_count"] = body.u32()
    record["groups_count"] = body.u32()
    for name in ("hostname", "os_name", "os_version", "kernel_version", "server_version"):
        record[name] = body.text32(Kind.VARIES)
    record["server_semver"] = body.u32(Kind.VARIES)
    record["cache_count"] = body.u32()
    record["threads and disk"] = body.field(4 + 8 + 8, Kind.VARIES)


def _cluster(reading: _Reading) -> None:
    body, record = reading.body, reading.record
    record["cluster"] = body.text32()
    record["nodes_count"] = body.u32()
    record["node"] = body.text32()
    record["ip"] = body.text32()
    record["ports"] = body.field(8, Kind.VARIES)
    record["role"] = body.u8()
    record["status"] = body.u8()


def _option_descriptions(reading: _Reading) -> None:
    body, record = reading.body, reading.record
    record["count"] = body.u32()
    while body.remaining:
        key = body.text8()
        name = f"option {key.data[1:].decode(errors='replace')}"
        record[name] = Field(key.data + body.u8().data + body.text32().data)
        # The recording has only x in its place.
        record[f"{name} description"] = body.text32(Kind.VARIES)


def _snapshot(reading: _Reading) -> None:
    reading.record["archive"] = reading.body.rest(Kind.ZIP)


_LAYOUTS: dict[str, Callable[[_Reading], None]] = {
    "CreateStream": _one_stream,
    "GetStream": _one_stream,
    "GetStreams": _streams,
    "CreateTopic": _one_topic,
    "GetTopic": _one_topic,
    "GetTopics": _topics,
    "CreateConsumerGroup": _one_group,
    "GetConsumerGroup": _one_group,
    "GetConsumerGroups": _groups,
    "SyncConsumerGroup": _sync,
    "CreateUser": _one_user,
    "GetUser": _one_user,
    "GetUsers": _users,
    "GetMe": _one_client,
    "GetClient": _one_client,
    "GetClients": _clients,
    "LoginUser": _login,
    "LoginWithPersonalAccessToken": _login,
    "Register": _register,
    "CreatePersonalAccessToken": _token,
    "GetPersonalAccessTokens": _tokens,
    "GetConsumerOffset": _consumer_offset,
    "SendMessages": _confirmations,
    "PollMessages": _poll,
    "GetStats": _stats,
    "GetClusterMetadata": _cluster,
    "DescribeOptions": _option_descriptions,
    "GetSnapshot": _snapshot,
}
