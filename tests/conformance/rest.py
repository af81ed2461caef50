"""A client of the HTTP API: commands to requests, JSON to replies.

Written from the API, not from the server's codec: the specification holds the two against each other.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.api.metadata_changes import MetadataChanges
from courser.errors import ErrorCode, NotFound
from courser.model.identifiers import Identifier
from courser.model.messaging import ByKey, Partitioning, ToPartition, Transport
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.topic_options import TopicOptions
from courser.records.frames import iterate_frames
from courser.records.user_headers import HeaderKind, UserHeader, build_user_headers, iterate_user_headers
from courser.wire.vsr_facts import read_failure
from tests.http.serving import HttpReply, read_reply
from tests.wire.classic_client import Message, PolledMessages, polled

_NOT_FOUND = 404
_UNITS = {
    "B": 1,
    "KB": 1000,
    "KiB": 1024,
    "MB": 1000**2,
    "MiB": 1024**2,
    "GB": 1000**3,
    "GiB": 1024**3,
    "TB": 1000**4,
    "TiB": 1024**4,
}
_SNAPSHOT_COMPRESSIONS = {1: "Stored", 2: "Deflated"}
_SNAPSHOT_KINDS = {4: "Test"}


@dataclass(frozen=True)
class RestRequest:
    """What is sent."""

    method: str
    path: str
    body: object = None
    query: Mapping[str, object] = field(default_factory=dict)

    def encoded(self, token: str | None) -> bytes:
        query = f"?{urlencode(self.query)}" if self.query else ""
        lines = [f"{self.method} {self.path}{query} HTTP/1.1", "host: localhost"]
        if token is not None:
            lines.append(f"authorization: Bearer {token}")
        data = b""
        if self.body is not None:
            data = json.dumps(self.body).encode()
            lines += ["content-type: application/json", f"content-length: {len(data)}"]
        return "\r\n".join([*lines, "", ""]).encode() + data


class RestConnection:
    """One connection that stays open. Remembers the access token of its login."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._token: str | None = None

    async def exchange(self, command: c.Command) -> r.Reply | None:
        self._writer.write(REQUESTS[type(command)](command).encoded(self._token))
        reply = await read_reply(self._reader)
        if reply.status >= 400:
            raise _failure(reply)
        if isinstance(command, c.LoginUser | c.LoginWithToken):
            self._token = reply.json["access_token"]["token"]
            return r.LoggedIn(reply.json["user_id"], 0)
        expected = command.row.reply
        return None if expected is None else _REPLIES[expected](reply)

    def close(self) -> None:
        self._writer.close()


def _failure(reply: HttpReply) -> Exception:
    if not reply.headers["content-type"].startswith("application/json"):
        return AssertionError(f"{reply.status}: {reply.body!r}")
    number: int = reply.json["id"]
    if number == _NOT_FOUND:
        return NotFound(ErrorCode.RESOURCE_NOT_FOUND, "not found")
    return read_failure(number, b"")


# --- requests -----------------------------------------------------------------------------------------


def _stream_path(stream: Identifier) -> str:
    return f"/streams/{quote(str(stream), safe='')}"


def _topic_path(command: Any) -> str:
    return f"{_stream_path(command.stream)}/topics/{quote(str(command.topic), safe='')}"


def _group_path(command: Any) -> str:
    return f"{_topic_path(command)}/consumer-groups/{quote(str(command.group), safe='')}"


def _user_path(user: Identifier) -> str:
    return f"/users/{quote(str(user), safe='')}"


def _status(is_active: bool | None) -> str | None:
    return None if is_active is None else "active" if is_active else "inactive"


def _flags(permissions: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(permissions).items() if name != "topics"}


def _permissions(permissions: Permissions | None) -> dict[str, Any] | None:
    if permissions is None:
        return None
    streams = {
        stream_id: _flags(stream)
        | {"topics": {topic_id: _flags(topic) for topic_id, topic in stream.topics.items()} or None}
        for stream_id, stream in permissions.streams.items()
    }
    return {"global": _flags(permissions.everywhere), "streams": streams or None}


def _topic_options(options: TopicOptions) -> dict[str, Any]:
    return {
        "compression_algorithm": "gzip" if options.compression == 2 else "none",
        "message_expiry": options.message_expiry or 0,
        "max_topic_size": options.max_topic_size or 0,
        "replication_factor": options.replication_factor,
    }


def _update_topic(command: c.UpdateTopic) -> RestRequest:
    options = {} if command.is_patch else _topic_options(command.options)
    return RestRequest("PUT", _topic_path(command), {"name": command.name} | options)


def _partitioning(partitioning: Partitioning) -> dict[str, str]:
    match partitioning:
        case ToPartition(partition_id):
            kind, value = "partition_id", partition_id.to_bytes(4, "little")
        case ByKey(key):
            kind, value = "messages_key", key
        case _:
            kind, value = "balanced", b""
    return {"kind": kind, "value": base64.b64encode(value).decode()}


def _header_field(kind: HeaderKind, value: bytes) -> dict[str, str]:
    return {"kind": kind.name.lower(), "value": base64.b64encode(value).decode()}


def _send(command: c.SendMessages) -> RestRequest:
    messages = [
        {
            "id": str(frame.message_id),
            "payload": base64.b64encode(frame.payload).decode(),
            "user_headers": [
                {
                    "key": _header_field(header.key_kind, header.key),
                    "value": _header_field(header.value_kind, header.value),
                }
                for header in iterate_user_headers(frame.user_headers)
            ],
        }
        for batch in command.batches
        for frame in iterate_frames(batch.body, batch.count)
    ]
    body = {"partitioning": _partitioning(command.partitioning), "messages": messages}
    return RestRequest("POST", f"{_topic_path(command)}/messages", body)


def _consumer_query(command: Any) -> dict[str, object]:
    partition = {} if command.partition_id is None else {"partition_id": command.partition_id}
    return {"consumer_id": command.consumer.identifier} | partition


def _poll(command: c.PollMessages) -> RestRequest:
    query = _consumer_query(command) | {
        "kind": command.kind.name.lower(),
        "value": command.value,
        "count": command.count,
        "auto_commit": str(command.auto_commit).lower(),
    }
    return RestRequest("GET", f"{_topic_path(command)}/messages", query=query)


_AT = RestRequest
REQUESTS: dict[type[c.Command], Callable[[Any], RestRequest]] = {
    c.Ping: lambda _: _AT("GET", "/ping"),
    c.GetStats: lambda _: _AT("GET", "/stats"),
    c.GetSnapshot: lambda it: _AT(
        "POST",
        "/snapshot",
        {
            "compression": _SNAPSHOT_COMPRESSIONS[it.compression],
            "snapshot_types": [_SNAPSHOT_KINDS[kind] for kind in it.kinds],
        },
    ),
    c.GetClusterMetadata: lambda _: _AT("GET", "/cluster/metadata"),
    c.DescribeOptions: lambda it: _AT("GET", f"/options/{ {1: 'topic', 2: 'stream', 3: 'user'}[it.scope] }"),
    c.GetClient: lambda it: _AT("GET", f"/clients/{it.client_id}"),
    c.GetClients: lambda _: _AT("GET", "/clients"),
    c.GetStream: lambda it: _AT("GET", _stream_path(it.stream)),
    c.GetStreams: lambda _: _AT("GET", "/streams"),
    c.CreateStream: lambda it: _AT("POST", "/streams", {"name": it.name}),
    c.UpdateStream: lambda it: _AT("PUT", _stream_path(it.stream), {"name": it.name}),
    c.DeleteStream: lambda it: _AT("DELETE", _stream_path(it.stream)),
    c.PurgeStream: lambda it: _AT("DELETE", f"{_stream_path(it.stream)}/purge"),
    c.GetTopic: lambda it: _AT("GET", _topic_path(it)),
    c.GetTopics: lambda it: _AT("GET", f"{_stream_path(it.stream)}/topics"),
    c.CreateTopic: lambda it: _AT(
        "POST",
        f"{_stream_path(it.stream)}/topics",
        {"name": it.name, "partitions_count": it.partition_count} | _topic_options(it.options),
    ),
    c.UpdateTopic: _update_topic,
    c.DeleteTopic: lambda it: _AT("DELETE", _topic_path(it)),
    c.PurgeTopic: lambda it: _AT("DELETE", f"{_topic_path(it)}/purge"),
    c.CreatePartitions: lambda it: _AT("POST", f"{_topic_path(it)}/partitions", {"partitions_count": it.count}),
    c.DeletePartitions: lambda it: _AT("DELETE", f"{_topic_path(it)}/partitions", query={"partitions_count": it.count}),
    c.DeleteSegments: lambda it: _AT(
        "DELETE", f"{_topic_path(it)}/partitions/{it.partition_id}", query={"segments_count": it.count}
    ),
    c.SendMessages: _send,
    c.PollMessages: _poll,
    c.FlushMessages: lambda it: _AT(
        "GET", f"{_topic_path(it)}/messages/flush/{it.partition_id}/{str(it.fsync).lower()}"
    ),
    c.GetConsumerOffset: lambda it: _AT("GET", f"{_topic_path(it)}/consumer-offsets", query=_consumer_query(it)),
    c.StoreConsumerOffset: lambda it: _AT(
        "PUT", f"{_topic_path(it)}/consumer-offsets", _consumer_query(it) | {"offset": it.offset}
    ),
    c.DeleteConsumerOffset: lambda it: _AT(
        "DELETE",
        f"{_topic_path(it)}/consumer-offsets/{quote(str(it.consumer.identifier), safe='')}",
        query={} if it.partition_id is None else {"partition_id": it.partition_id},
    ),
    c.GetSegments: lambda it: _AT("GET", f"{_topic_path(it)}/partitions/{it.partition_id}/segments"),
    c.GetSessions: lambda _: _AT("GET", "/sessions"),
    c.GetAccess: lambda it: _AT(
        "GET",
        "/permissions",
        query={name: getattr(it, name) for name in it.__struct_fields__ if getattr(it, name) is not None},
    ),
    c.EndSession: lambda it: _AT("DELETE", f"/sessions/{it.client_id}"),
    c.GetMetadataChanges: lambda it: _AT("GET", "/metadata/changes", query={"from": it.start.name.lower()}),
    c.GetHistory: lambda it: _AT("GET", "/history", query={"since": it.since}),
    c.GetLogLines: lambda it: _AT("GET", "/logs", query={"after": it.after}),
    c.GetConfiguration: lambda _: _AT("GET", "/configuration"),
    c.ReportPipeline: lambda it: _AT(
        "PUT",
        f"/pipelines/{quote(it.name, safe='')}",
        {name: getattr(it, name) for name in it.__struct_fields__ if name != "name"},
    ),
    c.GetPipelines: lambda _: _AT("GET", "/pipelines"),
    c.GetSinks: lambda _: _AT("GET", "/sinks"),
    c.GetStagedParts: lambda it: _AT("GET", f"/sinks/{quote(it.sink, safe='')}/parts"),
    c.GetTopicFigures: lambda _: _AT("GET", "/topics"),
    c.CreateOneTimeToken: lambda _: _AT("POST", "/personal-access-tokens/one-time", {}),
    c.GetTopicMaintenance: lambda it: _AT("GET", f"{_topic_path(it)}/maintenance"),
    c.GetPartitionBounds: lambda it: _AT("GET", f"{_topic_path(it)}/bounds"),
    c.GetOffsetsAtTime: lambda it: _AT("GET", f"{_topic_path(it)}/offsets", query={"timestamp": it.timestamp}),
    c.GetRetentionPlan: lambda it: _AT("GET", "/retention", query={"until": it.until}),
    c.VerifySegment: lambda it: _AT(
        "POST", f"{_topic_path(it)}/partitions/{it.partition_id}/segments/{it.first_offset}/verification", {}
    ),
    c.GetStartReport: lambda _: _AT("GET", "/start-report"),
    c.GetGroupLag: lambda it: _AT("GET", f"{_group_path(it)}/lag"),
    c.ResetGroupOffsets: lambda it: _AT(
        "PUT",
        f"{_group_path(it)}/offsets",
        {
            "force": it.is_forced,
            "offsets": [{"partition_id": partition_id, "offset": offset} for partition_id, offset in it.offsets],
        },
    ),
    c.GetConsumerGroup: lambda it: _AT("GET", _group_path(it)),
    c.GetConsumerGroups: lambda it: _AT("GET", f"{_topic_path(it)}/consumer-groups"),
    c.CreateConsumerGroup: lambda it: _AT("POST", f"{_topic_path(it)}/consumer-groups", {"name": it.name}),
    c.DeleteConsumerGroup: lambda it: _AT("DELETE", _group_path(it)),
    c.GetUser: lambda it: _AT("GET", _user_path(it.user)),
    c.GetUsers: lambda _: _AT("GET", "/users"),
    c.CreateUser: lambda it: _AT(
        "POST",
        "/users",
        {
            "username": it.name,
            "password": it.password,
            "status": _status(it.is_active),
            "permissions": _permissions(it.permissions),
        },
    ),
    c.DeleteUser: lambda it: _AT("DELETE", _user_path(it.user)),
    c.UpdateUser: lambda it: _AT("PUT", _user_path(it.user), {"username": it.name, "status": _status(it.is_active)}),
    c.UpdatePermissions: lambda it: _AT(
        "PUT", f"{_user_path(it.user)}/permissions", {"permissions": _permissions(it.permissions)}
    ),
    c.ChangePassword: lambda it: _AT(
        "PUT",
        f"{_user_path(it.user)}/password",
        {"current_password": it.current_password, "new_password": it.new_password},
    ),
    c.LoginUser: lambda it: _AT("POST", "/users/login", {"username": it.name, "password": it.password}),
    c.LoginWithToken: lambda it: _AT("POST", "/personal-access-tokens/login", {"token": it.token}),
    c.LogoutUser: lambda _: _AT("DELETE", "/users/logout"),
    c.GetTokens: lambda _: _AT("GET", "/personal-access-tokens"),
    c.CreateToken: lambda it: _AT("POST", "/personal-access-tokens", {"name": it.name, "expiry": it.expiry}),
    c.DeleteToken: lambda it: _AT("DELETE", f"/personal-access-tokens/{quote(it.name, safe='')}"),
}
"""What HTTP can do. Members of groups, for one, cannot be: each request is a session of its own."""


# --- replies ------------------------------------------------------------------------------------------


def _size(text: str) -> int:
    number, _, unit = text.partition(" ")
    size = Fraction(number) * _UNITS[unit]
    assert size.denominator == 1, f"{text} is not a number of bytes"
    return size.numerator


def _stream(it: Any) -> r.StreamInfo:
    size = _size(it["size"])
    return r.StreamInfo(it["id"], it["created_at"], it["topics_count"], size, it["messages_count"], it["name"])


def _topic(it: Any) -> r.TopicInfo:
    effective = TopicOptions(
        message_expiry=it["message_expiry"],
        max_topic_size=it["max_topic_size"],
        compression={"none": 1, "gzip": 2}[it["compression_algorithm"]],
        replication_factor=it["replication_factor"],
    )
    explicit = {
        name: getattr(effective, name)
        for name in ("message_expiry", "max_topic_size", "compression", "replication_factor")
        if it["options"].get(name, {}).get("explicit")
    }
    return r.TopicInfo(
        it["id"],
        it["created_at"],
        it["partitions_count"],
        _size(it["size"]),
        it["messages_count"],
        it["name"],
        TopicOptions(**explicit),
        effective,
    )


def _topic_details(it: Any) -> r.TopicDetails:
    partitions = [
        r.PartitionInfo(
            partition["id"],
            partition["created_at"],
            partition["segments_count"],
            partition["current_offset"],
            _size(partition["size"]),
            partition["messages_count"],
        )
        for partition in it["partitions"]
    ]
    return r.TopicDetails(_topic(it), partitions)


def _group(it: Any) -> r.GroupInfo:
    return r.GroupInfo(it["id"], it["partitions_count"], it["members_count"], it["name"])


def _group_details(it: Any) -> r.GroupDetails:
    members = [r.GroupMember(member["id"], tuple(member["partitions"])) for member in it["members"]]
    return r.GroupDetails(_group(it), members)


def _user(it: Any) -> r.UserInfo:
    return r.UserInfo(it["id"], it["created_at"], it["status"] == "active", it["username"])


def _user_details(it: Any) -> r.UserDetails:
    given = it["permissions"]
    if given is None:
        return r.UserDetails(_user(it), None)
    streams = {}
    for stream_id, stream in (given["streams"] or {}).items():
        topics = {int(topic_id): TopicPermissions(**flags) for topic_id, flags in (stream.pop("topics") or {}).items()}
        streams[int(stream_id)] = StreamPermissions(**stream, topics=topics)
    return r.UserDetails(_user(it), Permissions(GlobalPermissions(**given["global"]), streams))


def _client(it: Any) -> r.ClientInfo:
    transports = {
        "tcp": Transport.TCP,
        "quic": Transport.QUIC,
        "http": Transport.HTTP,
        "ws": Transport.WEBSOCKET,
    }
    transport = transports[it["transport"]]
    return r.ClientInfo(it["client_id"], it["user_id"], transport, it["address"], it["consumer_groups_count"])


def _polled(it: Any) -> r.Polled:
    messages = tuple(
        Message(
            base64.b64decode(message["payload"]),
            message["header"]["id"].to_bytes(16, "little"),
            message["header"]["origin_timestamp"],
            build_user_headers(map(_header, message["user_headers"])),
            message["header"]["offset"],
            message["header"]["timestamp"],
        )
        for message in it["messages"]
    )
    assert it["count"] == len(messages)
    return polled(PolledMessages(it["partition_id"], it["current_offset"], messages), is_merged=False)


def _header(it: Any) -> UserHeader:
    key, value = ((HeaderKind[it[name]["kind"].upper()], base64.b64decode(it[name]["value"])) for name in it)
    return UserHeader(key[1], value[1], key[0], value[0])


def _of_json(read: Callable[[Any], r.Reply]) -> Callable[[HttpReply], r.Reply]:
    return lambda reply: read(reply.json)


def _nodes(it: Any) -> r.ClusterMetadata:
    nodes = [
        r.Node(node["name"], node["ip"], **{f"{name}_port": port for name, port in node["endpoints"].items()})
        for node in it["nodes"]
    ]
    return r.ClusterMetadata(it["name"], nodes)


_REPLIES: dict[type[r.Reply], Callable[[HttpReply], r.Reply]] = {
    r.Stats: lambda _: r.Reply(),
    r.OptionList: lambda _: r.Reply(),
    MetadataChanges: lambda _: r.Reply(),
    r.SegmentList: lambda _: r.Reply(),
    r.TopicMaintenance: lambda _: r.Reply(),
    r.TopicBounds: lambda _: r.Reply(),
    o.OffsetsAtTime: lambda _: r.Reply(),
    o.RetentionPlan: lambda _: r.Reply(),
    o.VerifiedSegment: lambda _: r.Reply(),
    o.StartReport: lambda _: r.Reply(),
    o.OneTimeToken: lambda reply: o.OneTimeToken(**reply.json),
    o.SessionList: lambda reply: o.SessionList([o.SessionInfo(**row) for row in reply.json]),
    o.History: lambda reply: msgspec.convert(reply.json, o.History),
    o.AccessReport: lambda reply: msgspec.convert(reply.json, o.AccessReport),
    o.LogLines: lambda reply: o.LogLines([o.LogLine(**row) for row in reply.json]),
    o.SettingList: lambda reply: o.SettingList([o.Setting(**row) for row in reply.json]),
    o.TopicFigureList: lambda reply: o.TopicFigureList([o.TopicFigures(**row) for row in reply.json]),
    o.PipelineList: lambda reply: o.PipelineList([o.PipelineInfo(**row) for row in reply.json]),
    r.SinkList: lambda reply: r.SinkList([r.SinkSummary(**row) for row in reply.json]),
    r.StagedPartList: lambda reply: r.StagedPartList([r.StagedPartInfo(**row) for row in reply.json]),
    r.GroupLag: lambda _: r.Reply(),
    r.SnapshotArchive: lambda reply: r.SnapshotArchive(reply.body),
    r.ClusterMetadata: _of_json(_nodes),
    r.ClientDetails: _of_json(lambda it: r.ClientDetails(_client(it), [])),
    r.ClientList: _of_json(lambda it: r.ClientList([_client(client) for client in it])),
    r.StreamInfo: _of_json(_stream),
    r.StreamDetails: _of_json(lambda it: r.StreamDetails(_stream(it), [_topic(topic) for topic in it["topics"]])),
    r.StreamList: _of_json(lambda it: r.StreamList([_stream(stream) for stream in it])),
    r.TopicDetails: _of_json(_topic_details),
    r.TopicList: _of_json(lambda it: r.TopicList([_topic(topic) for topic in it])),
    r.GroupDetails: _of_json(_group_details),
    r.GroupList: _of_json(lambda it: r.GroupList([_group(group) for group in it])),
    r.UserDetails: _of_json(_user_details),
    r.UserList: _of_json(lambda it: r.UserList([_user(user) for user in it])),
    r.TokenList: _of_json(
        lambda it: r.TokenList([r.TokenInfo(token["name"], token["expiry_at"] or 0) for token in it])
    ),
    r.NewToken: _of_json(lambda it: r.NewToken(it["token"])),
    r.StoredOffset: _of_json(lambda it: r.StoredOffset(**it)),
    r.Sent: _of_json(lambda it: r.Sent(**it["confirmations"][0])),
    r.Polled: _of_json(_polled),
}
