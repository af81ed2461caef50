"""Replies to JSON, field by field as Iggy writes them: 0.8, and what 0.9 adds."""

from collections.abc import Callable, Mapping
from typing import Any, Literal
from uuid import UUID

import msgspec

from courser.api import operating_replies as o
from courser.api import replies as r
from courser.api.metadata_changes import MetadataChanges
from courser.model.messaging import Transport
from courser.model.topic_options import GZIP, NO_COMPRESSION, compression_for_sdks
from courser.wire import rest_views as v
from courser.wire.rest_changes import MetadataChangesView, page_to_json
from courser.wire.rest_fields import permissions_to_json
from courser.wire.vsr_options import option_bytes, option_kind

_UNITS = [
    (f"{prefix}{suffix}", base**power)
    for power, prefix in reversed(list(enumerate("KMGTPE", start=1)))
    for suffix, base in (("iB", 1024), ("B", 1000))
]
_THOUSANDTHS = 1000
_COMPRESSIONS: Mapping[int, Literal["none", "gzip"]] = {NO_COMPRESSION: "none", GZIP: "gzip"}
_TRANSPORTS: Mapping[Transport, Literal["tcp", "quic", "http", "ws"]] = {
    Transport.TCP: "tcp",
    Transport.QUIC: "quic",
    Transport.HTTP: "http",
    Transport.WEBSOCKET: "ws",
}


def size_text(size: int) -> str:
    """A size as Iggy writes it: in the largest unit that needs at most three decimal places, so nothing is lost."""
    for unit, bytes_per_unit in _UNITS:
        thousandths, rest = divmod(size * _THOUSANDTHS, bytes_per_unit)
        if size >= bytes_per_unit and not rest:
            whole, fraction = divmod(thousandths, _THOUSANDTHS)
            return f"{whole}.{fraction:03d}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"


def encode_reply(reply: r.Reply) -> bytes:
    return msgspec.json.encode(_WRITERS[type(reply)][1](reply))


def view_of(reply: type[r.Reply]) -> Any:
    """The type of the JSON that a reply becomes."""
    return _WRITERS[reply][0]


def identity(user_id: int, token: str, expires_at: int) -> bytes:
    """The reply to a login. The expiry is in seconds."""
    return msgspec.json.encode(v.IdentityView(user_id, v.AccessTokenView(token, expires_at)))


# --- streams and topics -------------------------------------------------------------------------------


def _stream(stream: r.StreamInfo) -> v.StreamView:
    return v.StreamView(
        id=stream.stream_id,
        created_at=stream.created_at,
        name=stream.name,
        size=size_text(stream.size),
        messages_count=stream.message_count,
        topics_count=stream.topic_count,
        options={},
    )


def _new_stream(stream: r.StreamInfo) -> v.StreamDetailsView:
    return v.StreamDetailsView(**msgspec.structs.asdict(_stream(stream)), topics=[])


def _stream_details(details: r.StreamDetails) -> v.StreamDetailsView:
    topics = [_topic(topic) for topic in details.topics]
    return v.StreamDetailsView(**msgspec.structs.asdict(_stream(details.stream)), topics=topics)


def _topic(topic: r.TopicInfo) -> v.TopicView:
    effective = topic.effective
    return v.TopicView(
        id=topic.topic_id,
        created_at=topic.created_at,
        name=topic.name,
        size=size_text(topic.size),
        message_expiry=effective.message_expiry,
        compression_algorithm=_COMPRESSIONS[compression_for_sdks(effective.compression)],
        max_topic_size=effective.max_topic_size,
        replication_factor=effective.replication_factor,
        messages_count=topic.message_count,
        partitions_count=topic.partition_count,
        options=v.options_of_topic(topic.options, effective),
    )


def _topic_details(details: r.TopicDetails) -> v.TopicDetailsView:
    partitions = [_partition(partition) for partition in details.partitions]
    return v.TopicDetailsView(**msgspec.structs.asdict(_topic(details.topic)), partitions=partitions)


def _partition(partition: r.PartitionInfo) -> v.PartitionView:
    return v.PartitionView(
        id=partition.partition_id,
        created_at=partition.created_at,
        segments_count=partition.segment_count,
        current_offset=partition.current_offset,
        size=size_text(partition.size),
        messages_count=partition.message_count,
        context=v.context_of(partition.incarnation),
    )


# --- groups -------------------------------------------------------------------------------------------


def _group(group: r.GroupInfo) -> v.GroupView:
    return v.GroupView(
        id=group.group_id,
        name=group.name,
        partitions_count=group.partition_count,
        members_count=group.member_count,
    )


def _group_details(details: r.GroupDetails) -> v.GroupDetailsView:
    members = [
        v.GroupMemberView(member.member_id, len(member.partition_ids), list(member.partition_ids))
        for member in details.members
    ]
    return v.GroupDetailsView(**msgspec.structs.asdict(_group(details.group)), members=members)


# --- users and clients --------------------------------------------------------------------------------


def _user(user: r.UserInfo) -> v.UserView:
    return v.UserView(
        id=user.user_id,
        created_at=user.created_at,
        status="active" if user.is_active else "inactive",
        username=user.name,
        options={},
    )


def _user_details(details: r.UserDetails) -> v.UserDetailsView:
    permissions = permissions_to_json(details.permissions)
    return v.UserDetailsView(**msgspec.structs.asdict(_user(details.user)), permissions=permissions)


def _tokens(reply: r.TokenList) -> list[v.TokenView]:
    tokens = sorted(reply.tokens, key=lambda token: token.name)
    return [v.TokenView(token.name, token.expires_at or None) for token in tokens]


def _client(client: r.ClientInfo) -> v.ClientView:
    return v.ClientView(
        client_id=client.client_id,
        user_id=client.user_id,
        address=client.address,
        transport=_TRANSPORTS[client.transport],
        consumer_groups_count=client.group_count,
    )


def _client_details(details: r.ClientDetails) -> v.ClientDetailsView:
    groups = [v.ClientGroupView(group.stream_id, group.topic_id, group.group_id) for group in details.groups]
    return v.ClientDetailsView(**msgspec.structs.asdict(_client(details.client)), consumer_groups=groups)


# --- the server ---------------------------------------------------------------------------------------


def _stats(stats: r.Stats) -> msgspec.Struct:
    values = {
        v.STATS_NAMES.get(name, name): size_text(value) if name in v.STATS_SIZES else value
        for name, value in msgspec.structs.asdict(stats).items()
    }
    return v.StatsView(**values, cache_metrics={})


def _cluster(metadata: r.ClusterMetadata) -> v.ClusterView:
    return v.ClusterView(metadata.name, [_node(node) for node in metadata.nodes])


def _node(node: r.Node) -> v.NodeView:
    endpoints = v.EndpointsView(node.tcp_port, node.quic_port, node.http_port, node.websocket_port)
    return v.NodeView(0, node.name, node.ip, endpoints, "leader", "healthy")


def _option(option: r.OptionDescription) -> v.OptionView:
    return v.OptionView(
        key=option.key,
        kind=option_kind(option.key).name.lower(),
        default_value=list(option_bytes(option.key, option.default)),
        description=option.description,
    )


def _bounds(bounds: r.TopicBounds) -> v.TopicBoundsView:
    return v.TopicBoundsView(bounds.stream_id, bounds.topic_id, UUID(bytes=bounds.topic_uuid), bounds.partitions)


def _same(reply: r.Reply) -> r.Reply:
    return reply


_WRITERS: Mapping[type[r.Reply], tuple[Any, Callable[[Any], Any]]] = {
    r.StreamInfo: (v.StreamDetailsView, _new_stream),
    r.StreamDetails: (v.StreamDetailsView, _stream_details),
    r.StreamList: (list[v.StreamView], lambda reply: [_stream(stream) for stream in reply.streams]),
    r.TopicDetails: (v.TopicDetailsView, _topic_details),
    r.TopicList: (list[v.TopicView], lambda reply: [_topic(topic) for topic in reply.topics]),
    r.SegmentList: (r.SegmentList, _same),
    r.TopicMaintenance: (r.TopicMaintenance, _same),
    r.TopicBounds: (v.TopicBoundsView, _bounds),
    o.OffsetsAtTime: (o.OffsetsAtTime, _same),
    o.RetentionPlan: (o.RetentionPlan, _same),
    o.VerifiedSegment: (o.VerifiedSegment, _same),
    o.StartReport: (o.StartReport, _same),
    r.GroupLag: (r.GroupLag, _same),
    r.StoredOffset: (r.StoredOffset, _same),
    r.GroupDetails: (v.GroupDetailsView, _group_details),
    r.GroupList: (list[v.GroupView], lambda reply: [_group(group) for group in reply.groups]),
    r.UserDetails: (v.UserDetailsView, _user_details),
    r.UserList: (list[v.UserView], lambda reply: [_user(user) for user in reply.users]),
    r.TokenList: (list[v.TokenView], _tokens),
    r.NewToken: (r.NewToken, _same),
    o.OneTimeToken: (o.OneTimeToken, _same),
    o.SessionList: (list[o.SessionInfo], lambda reply: reply.sessions),
    o.History: (o.History, _same),
    o.AccessReport: (o.AccessReport, _same),
    o.LogLines: (list[o.LogLine], lambda reply: reply.lines),
    o.SettingList: (list[o.Setting], lambda reply: reply.settings),
    o.PipelineList: (list[o.PipelineInfo], lambda reply: reply.pipelines),
    r.SinkList: (list[r.SinkSummary], lambda reply: reply.sinks),
    r.StagedPartList: (list[r.StagedPartInfo], lambda reply: reply.parts),
    o.TopicFigureList: (list[o.TopicFigures], lambda reply: reply.topics),
    r.ClientDetails: (v.ClientDetailsView, _client_details),
    r.ClientList: (list[v.ClientView], lambda reply: [_client(client) for client in reply.clients]),
    r.Stats: (v.StatsView, _stats),
    r.ClusterMetadata: (v.ClusterView, _cluster),
    MetadataChanges: (MetadataChangesView, page_to_json),
    r.OptionList: (list[v.OptionView], lambda reply: [_option(option) for option in reply.options]),
}
"""By reply: the type of its JSON, and what makes that of it."""
