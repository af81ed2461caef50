"""Every command: its row and its fields.

Codecs create them, and the dispatcher passes them to their handlers. Ids count from 0 here in all releases.
"""

from typing import TypeAlias

from courser.api import replies as r
from courser.api import table
from courser.api.account_commands import (
    ChangePassword,
    CreateToken,
    CreateUser,
    DeleteToken,
    DeleteUser,
    GetTokens,
    GetUser,
    GetUsers,
    LoginUser,
    LoginWithToken,
    LogoutUser,
    UpdatePermissions,
    UpdateUser,
)
from courser.api.fields import (
    U8,
    U32,
    U64,
    ChosenId,
    Flag,
    Id,
    Name,
    OptionalPartition,
    SnapshotCompression,
    SnapshotKinds,
)
from courser.api.internal_commands import FindRangesToScan, FindStartOffsets, ScanPiece
from courser.api.operating_commands import (
    CreateOneTimeToken,
    EndSession,
    GetAccess,
    GetConfiguration,
    GetHistory,
    GetLogLines,
    GetPipelines,
    GetSessions,
    GetTopicFigures,
    ReportPipeline,
)
from courser.api.own_commands import (
    POSITION_COUNT_MAX,
    ConfirmAssignment,
    FindMessages,
    GetGroupLag,
    GetMetrics,
    GetPartitionBounds,
    GetSegments,
    GetTopicDurability,
    GetTopicMaintenance,
    ResetGroupOffsets,
    WaitForArrivals,
    WaitForTopics,
)
from courser.api.staging_commands import (
    PUBLISHED_PART_COUNT_MAX,
    DiscardStaged,
    FinishStage,
    GetSink,
    GetSinks,
    GetStagedParts,
    PublishStaged,
    StagedPartName,
    StageMessages,
)
from courser.api.storage_commands import GetOffsetsAtTime, GetRetentionPlan, GetStartReport, VerifySegment
from courser.api.table import CommandRow, command
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import Partitioning, PollingKind
from courser.model.permissions import Action
from courser.model.topic_options import TopicOptions
from courser.records.batch import Batch

__all__ = [
    "POSITION_COUNT_MAX",
    "PUBLISHED_PART_COUNT_MAX",
    "ChangePassword",
    "ConfirmAssignment",
    "CreateOneTimeToken",
    "CreateToken",
    "CreateUser",
    "DeleteToken",
    "DeleteUser",
    "DiscardStaged",
    "EndSession",
    "FindMessages",
    "FindRangesToScan",
    "FindStartOffsets",
    "FinishStage",
    "GetAccess",
    "GetConfiguration",
    "GetGroupLag",
    "GetHistory",
    "GetLogLines",
    "GetMetrics",
    "GetOffsetsAtTime",
    "GetPartitionBounds",
    "GetPipelines",
    "GetRetentionPlan",
    "GetSegments",
    "GetSessions",
    "GetSink",
    "GetSinks",
    "GetStagedParts",
    "GetStartReport",
    "GetTokens",
    "GetTopicDurability",
    "GetTopicFigures",
    "GetTopicMaintenance",
    "GetUser",
    "GetUsers",
    "LoginUser",
    "LoginWithToken",
    "LogoutUser",
    "PublishStaged",
    "ReportPipeline",
    "ResetGroupOffsets",
    "ScanPiece",
    "StageMessages",
    "StagedPartName",
    "UpdatePermissions",
    "UpdateUser",
    "VerifySegment",
    "WaitForArrivals",
    "WaitForTopics",
]
"""Commands that other modules define."""

Command: TypeAlias = table.Command
"""Base class of all commands."""

_TOPIC = "/streams/{stream}/topics/{topic}"


# --- system -------------------------------------------------------------------------------------------


@command(1, is_public=True)
class Ping(Command, frozen=True):
    """A heartbeat without an effect."""


@command(10, r.Stats, Action.READ_SERVER, http="GET /stats")
class GetStats(Command, frozen=True):
    """Statistics of the server."""


@command(
    11,
    r.SnapshotArchive,
    Action.READ_SERVER,
    is_audited=True,
    http="POST /snapshot",
    http_names={"kinds": "snapshot_types"},
)
class GetSnapshot(Command, frozen=True):
    """A ZIP file for diagnosing the server."""

    compression: SnapshotCompression
    """1 stored, 2 deflated, 3 bzip2, 4 zstd, 5 lzma, 6 xz."""
    kinds: SnapshotKinds
    """1 file system, 2 processes, 3 resources, 4 test, 5 logs, 6 configuration, 100 all."""


@command(12, r.ClusterMetadata, http="GET /cluster/metadata")
class GetClusterMetadata(Command, frozen=True):
    """The nodes of the cluster."""


@command(13, r.OptionList, http="GET /options/{scope}")
class DescribeOptions(Command, frozen=True):
    """The available options: scope 1 topic, 2 stream, 3 user."""

    scope: U8


@command(20, r.ClientDetails)
class GetMe(Command, frozen=True):
    """Describe the connection that asks."""


@command(21, r.ClientDetails, Action.READ_SERVER, http="GET /clients/{client_id}")
class GetClient(Command, frozen=True):
    """Describe another connection."""

    client_id: U32


@command(22, r.ClientList, Action.READ_SERVER, http="GET /clients")
class GetClients(Command, frozen=True):
    """List all connections by id."""


# --- streams ------------------------------------------------------------------------------------------


@command(200, r.StreamDetails, Action.GET_STREAM, http="GET /streams/{stream}")
class GetStream(Command, frozen=True):
    """One stream with its topics."""

    stream: Identifier


@command(201, r.StreamList, Action.LIST_STREAMS, http="GET /streams")
class GetStreams(Command, frozen=True):
    """List all streams by id."""


@command(202, r.StreamInfo, Action.CREATE_STREAM, operation=128, is_audited=True, http="POST /streams")
class CreateStream(Command, frozen=True):
    """Create a stream. ``stream_id`` is set only if the client chooses the id."""

    name: Name
    stream_id: ChosenId = None


@command(204, None, Action.MANAGE_STREAM, operation=129, is_audited=True, http="PUT /streams/{stream}")
class UpdateStream(Command, frozen=True):
    """Give a stream another name."""

    stream: Identifier
    name: Name


@command(203, None, Action.MANAGE_STREAM, operation=130, is_audited=True, http="DELETE /streams/{stream}")
class DeleteStream(Command, frozen=True):
    """Delete a stream and all its topics."""

    stream: Identifier


@command(205, None, Action.MANAGE_STREAM, operation=131, is_audited=True, http="DELETE /streams/{stream}/purge")
class PurgeStream(Command, frozen=True):
    """Delete all messages of a stream."""

    stream: Identifier


# --- topics, partitions, segments ---------------------------------------------------------------------


@command(300, r.TopicDetails, Action.READ_TOPIC, http=f"GET {_TOPIC}")
class GetTopic(Command, frozen=True):
    """One topic with its partitions."""

    stream: Identifier
    topic: Identifier


@command(301, r.TopicList, Action.LIST_TOPICS, http="GET /streams/{stream}/topics")
class GetTopics(Command, frozen=True):
    """All topics of a stream."""

    stream: Identifier


@command(
    302,
    r.TopicDetails,
    Action.CREATE_TOPIC,
    operation=132,
    is_audited=True,
    http="POST /streams/{stream}/topics",
    http_names={"partition_count": "partitions_count"},
)
class CreateTopic(Command, frozen=True):
    """Create a topic. ``topic_id`` is set only if the client chooses the id."""

    stream: Identifier
    name: Name
    partition_count: U32
    options: TopicOptions
    topic_id: ChosenId = None


@command(304, None, Action.MANAGE_TOPIC, operation=133, is_audited=True, http=f"PUT {_TOPIC}")
class UpdateTopic(Command, frozen=True):
    """Change name and options."""

    stream: Identifier
    topic: Identifier
    name: Name
    options: TopicOptions
    is_patch: bool
    """True: options that are None are unchanged (0.9). False: the four classic options are replaced."""


@command(303, None, Action.MANAGE_TOPIC, operation=134, is_audited=True, http=f"DELETE {_TOPIC}")
class DeleteTopic(Command, frozen=True):
    """Delete a topic with all of its messages."""

    stream: Identifier
    topic: Identifier


@command(305, None, Action.MANAGE_TOPIC, operation=135, is_audited=True, http=f"DELETE {_TOPIC}/purge")
class PurgeTopic(Command, frozen=True):
    """Delete all messages of a topic."""

    stream: Identifier
    topic: Identifier


@command(
    402,
    None,
    Action.MANAGE_TOPIC,
    operation=136,
    is_audited=True,
    http=f"POST {_TOPIC}/partitions",
    http_names={"count": "partitions_count"},
    http_status=201,
)
class CreatePartitions(Command, frozen=True):
    """Add partitions after the last one."""

    stream: Identifier
    topic: Identifier
    count: U32


@command(
    403,
    None,
    Action.MANAGE_TOPIC,
    operation=137,
    is_audited=True,
    http=f"DELETE {_TOPIC}/partitions",
    http_names={"count": "partitions_count"},
)
class DeletePartitions(Command, frozen=True):
    """Delete the partitions with the highest numbers and their messages."""

    stream: Identifier
    topic: Identifier
    count: U32


@command(
    503,
    None,
    Action.MANAGE_TOPIC,
    operation=138,
    is_audited=True,
    http=f"DELETE {_TOPIC}/partitions/{{partition_id}}",
    http_names={"count": "segments_count"},
)
class DeleteSegments(Command, frozen=True):
    """Delete the oldest sealed segments of a partition that no stored offset needs any more."""

    stream: Identifier
    topic: Identifier
    partition_id: Id
    count: U32


# --- messages -----------------------------------------------------------------------------------------


@command(101, r.Sent, Action.SEND_MESSAGES, operation=160, http=f"POST {_TOPIC}/messages", http_status=201)
class SendMessages(Command, frozen=True):
    """Append messages to one partition."""

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    batches: list[Batch]
    """Usually one. They may refer to the connection's receive buffer, which is valid until the reply."""


@command(100, r.Polled, Action.POLL_MESSAGES, http=f"GET {_TOPIC}/messages", http_names={"consumer": "consumer_id"})
class PollMessages(Command, frozen=True):
    """Read messages of one partition."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: OptionalPartition
    kind: PollingKind
    value: U64
    count: U32
    auto_commit: Flag


@command(60001, r.Polled, Action.POLL_MESSAGES)
class WaitForMessages(Command, frozen=True):
    """A poll that waits until there is something to read; stricter than ``PollMessages``.

    Deleted or damaged messages are an error with their offsets, and are not skipped silently.
    """

    poll: PollMessages
    wait: U64
    """How long to wait for messages, in microseconds; at most 20 seconds."""
    size_max: U32
    """Bytes of batch records in the reply. One message is returned if there is one, however large."""


@command(
    102, None, Action.SEND_MESSAGES, http=f"GET {_TOPIC}/messages/flush/{{partition_id}}/{{fsync}}", http_status=200
)
class FlushMessages(Command, frozen=True):
    """Sync the messages of a partition if ``fsync`` is set; written messages are never only in the server's memory."""

    stream: Identifier
    topic: Identifier
    partition_id: Id
    fsync: Flag


@command(
    120,
    r.StoredOffset,
    Action.POLL_MESSAGES,
    http=f"GET {_TOPIC}/consumer-offsets",
    http_names={"consumer": "consumer_id"},
)
class GetConsumerOffset(Command, frozen=True):
    """The stored offset of a consumer."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: OptionalPartition


@command(
    121,
    None,
    Action.POLL_MESSAGES,
    operation=161,
    http=f"PUT {_TOPIC}/consumer-offsets",
    http_names={"consumer": "consumer_id"},
)
class StoreConsumerOffset(Command, frozen=True):
    """Store the offset of a consumer."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: OptionalPartition
    offset: U64


@command(
    122,
    None,
    Action.POLL_MESSAGES,
    operation=162,
    is_audited=True,
    http=f"DELETE {_TOPIC}/consumer-offsets/{{consumer}}",
    http_names={"consumer": "consumer_id"},
)
class DeleteConsumerOffset(Command, frozen=True):
    """Delete the stored offset of a consumer."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: OptionalPartition


# --- consumer groups ----------------------------------------------------------------------------------


@command(600, r.GroupDetails, Action.READ_TOPIC, http=f"GET {_TOPIC}/consumer-groups/{{group}}")
class GetConsumerGroup(Command, frozen=True):
    """One group with its members."""

    stream: Identifier
    topic: Identifier
    group: Identifier


@command(601, r.GroupList, Action.READ_TOPIC, http=f"GET {_TOPIC}/consumer-groups")
class GetConsumerGroups(Command, frozen=True):
    """All groups of a topic."""

    stream: Identifier
    topic: Identifier


@command(
    602,
    r.GroupDetails,
    Action.READ_TOPIC,
    operation=139,
    is_audited=True,
    http=f"POST {_TOPIC}/consumer-groups",
    http_status=201,
)
class CreateConsumerGroup(Command, frozen=True):
    """Create a group. ``group_id`` is set only if the client chooses the id."""

    stream: Identifier
    topic: Identifier
    name: Name
    group_id: ChosenId = None


@command(
    603, None, Action.READ_TOPIC, operation=140, is_audited=True, http=f"DELETE {_TOPIC}/consumer-groups/{{group}}"
)
class DeleteConsumerGroup(Command, frozen=True):
    """Delete a group and its stored offsets."""

    stream: Identifier
    topic: Identifier
    group: Identifier


@command(604, None, Action.READ_TOPIC, operation=148)
class JoinConsumerGroup(Command, frozen=True):
    """Join a group for as long as the connection is open."""

    stream: Identifier
    topic: Identifier
    group: Identifier


@command(605, None, Action.READ_TOPIC, operation=149)
class LeaveConsumerGroup(Command, frozen=True):
    """Leave a group that this connection joined."""

    stream: Identifier
    topic: Identifier
    group: Identifier


@command(606, r.Assignment, Action.READ_TOPIC)
class SyncConsumerGroup(Command, frozen=True):
    """The partitions that are assigned to this member."""

    stream: Identifier
    topic: Identifier
    group: Identifier


_ROWS = tuple(sorted((kind.row for kind in Command.__subclasses__()), key=lambda row: row.code))
COMMANDS = tuple(row for row in _ROWS if row.code != table.INTERNAL)
"""The rows of all commands that a client can send, by code."""
INTERNAL_COMMANDS = tuple(row for row in _ROWS if row.code == table.INTERNAL)
ROW_BY_CODE: dict[int, CommandRow] = {row.code: row for row in COMMANDS}
