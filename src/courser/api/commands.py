"""Every command: its row and its fields.

Codecs create them, and the dispatcher passes them to their handlers. Ids count from 0 here in all releases.
"""

from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from courser.api import metadata_changes as f
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.api import table
from courser.api.fields import (
    U8,
    U32,
    U64,
    Active,
    ChosenId,
    Counted,
    Flag,
    Id,
    Incarnation,
    Kind,
    Name,
    OptionalActive,
    OptionalName,
    OptionalPartition,
    OptionalU64,
    SnapshotCompression,
    SnapshotKinds,
    Text8,
    Text32,
)
from courser.api.internal_commands import FindRangesToScan, FindStartOffsets, ScanPiece
from courser.api.table import SDK_0_10, CommandRow, command
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import Partitioning, PollingKind
from courser.model.permissions import Action, Permissions
from courser.model.topic_options import TopicOptions
from courser.records.batch import Batch
from courser.records.message_filter import FILTER_COUNT_MAX

Command: TypeAlias = table.Command
"""Base class of all commands."""

POSITION_COUNT_MAX = 1000
"""Partitions that one request may wait for: as many as a topic is created with."""
PUBLISHED_PART_COUNT_MAX = 100_000
"""Parts of one publish, the same limit as in the catalog: checked before an object is created for each."""

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


@command(17, f.MetadataChanges, Action.MANAGE_SERVER, http="GET /metadata/changes", since=SDK_0_10)
class GetMetadataChanges(Command, frozen=True):
    """A page of the changes of the metadata, or of its present state."""

    start: Annotated[f.ChangesStart, Kind.ABSENT]
    cursor: Annotated[f.Cursor | None, Kind.ABSENT] = None
    """Only of ``AFTER``: the last record that the client has seen."""
    since: Annotated[int | None, Kind.ABSENT] = None
    until: Annotated[int | None, Kind.ABSENT] = None
    """Only changes of this time, in microseconds: both ends count."""
    limit: Annotated[int, Kind.ABSENT] = f.LIMIT_DEFAULT
    """Records or items of the page."""
    groups: Annotated[int, Kind.ABSENT] = f.ALL_GROUPS
    """A set of ``ChangeGroup.bit``."""
    page_token: Annotated[f.PageToken | None, Kind.ABSENT] = None
    """Only of ``CURRENT``: continue after the page that said so."""


@command(20, r.ClientDetails)
class GetMe(Command, frozen=True):
    """Describe the connection that asks."""


@command(21, r.ClientDetails, Action.READ_SERVER, http="GET /clients/{client_id}")
class GetClient(Command, frozen=True):
    """Describe a connection by its id."""

    client_id: U32


@command(22, r.ClientList, Action.READ_SERVER, http="GET /clients")
class GetClients(Command, frozen=True):
    """List all connections by id."""


# --- users, logins and tokens -------------------------------------------------------------------------


@command(31, r.UserDetails, Action.READ_USERS, http="GET /users/{user}")
class GetUser(Command, frozen=True):
    """One user with permissions."""

    user: Identifier


@command(32, r.UserList, Action.READ_USERS, http="GET /users")
class GetUsers(Command, frozen=True):
    """List all users by id."""


@command(
    33,
    r.UserDetails,
    Action.MANAGE_USERS,
    operation=141,
    is_audited=True,
    http="POST /users",
    http_names={"name": "username", "is_active": "status"},
)
class CreateUser(Command, frozen=True):
    """Create a user with a password and permissions."""

    name: Name
    password: Text8
    is_active: Active
    permissions: Permissions | None


@command(34, None, Action.MANAGE_USERS, operation=143, is_audited=True, http="DELETE /users/{user}")
class DeleteUser(Command, frozen=True):
    """Delete a user and end its sessions."""

    user: Identifier


@command(
    35,
    None,
    Action.MANAGE_USERS,
    operation=142,
    is_audited=True,
    http="PUT /users/{user}",
    http_names={"name": "username", "is_active": "status"},
)
class UpdateUser(Command, frozen=True):
    """Change name or status; None leaves it unchanged."""

    user: Identifier
    name: OptionalName
    is_active: OptionalActive
    protects_root: Annotated[bool, Kind.ABSENT] = False
    """Whether an update of the root user is refused, as from SDK 0.10 on."""


@command(36, None, Action.MANAGE_USERS, operation=145, is_audited=True, http="PUT /users/{user}/permissions")
class UpdatePermissions(Command, frozen=True):
    """Replace all permissions of a user."""

    user: Identifier
    permissions: Permissions | None


@command(37, operation=144, is_audited=True, http="PUT /users/{user}/password")
class ChangePassword(Command, frozen=True):
    """Replace a password; the current one is required."""

    user: Identifier
    current_password: Text8
    new_password: Text8


@command(
    38,
    r.LoggedIn,
    operation=1,
    is_public=True,
    is_audited=True,
    http="POST /users/login",
    http_names={"name": "username"},
)
class LoginUser(Command, frozen=True):
    """Log in by password."""

    name: Name
    password: Text8
    version: Text32 = ""
    context: Text32 = ""
    token: str | None = None
    """The same bytes read as a token, to try if the password is wrong: 0.9 does not say which one it sends."""
    sdk: Annotated[str, Kind.ABSENT] = ""
    """The name of the client library, which SDK 0.9 sends."""


@command(44, r.LoggedIn, operation=1, is_public=True, is_audited=True, http="POST /personal-access-tokens/login")
class LoginWithToken(Command, frozen=True):
    """Log in by personal access token."""

    token: Name
    version: Annotated[str, Kind.ABSENT] = ""
    sdk: Annotated[str, Kind.ABSENT] = ""


@command(39, operation=3, is_audited=True, http="DELETE /users/logout")
class LogoutUser(Command, frozen=True):
    """Log out; the connection stays open."""


@command(41, r.TokenList, http="GET /personal-access-tokens")
class GetTokens(Command, frozen=True):
    """The user's own personal access tokens."""


@command(42, r.NewToken, operation=146, is_audited=True, http="POST /personal-access-tokens")
class CreateToken(Command, frozen=True):
    """Create a personal access token."""

    name: Name
    expiry: U64
    """Microseconds from now; 0 and ``NEVER`` are never."""


@command(43, operation=147, is_audited=True, http="DELETE /personal-access-tokens/{name}")
class DeleteToken(Command, frozen=True):
    """Delete one of the user's own personal access tokens."""

    name: Name


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
    """Change name and options. An empty name, which only SDKs from 0.10 on can send, is unchanged."""

    stream: Identifier
    topic: Identifier
    name: Name
    options: TopicOptions
    is_patch: bool
    """True: options that are None are unchanged (0.9). False: the four classic options are replaced."""
    reset: Annotated[frozenset[str], Kind.ABSENT] = frozenset()
    """The fields of ``options`` that get the server's default again."""


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
    incarnation: Incarnation = 0


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
    incarnation: Incarnation = 0


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


class ReadTarget(NamedTuple):
    """Where to read in one partition."""

    partition_id: int
    kind: PollingKind
    value: int
    size_max: int = 0
    """Bytes of batch records, if it is read."""
    incarnation: int = 0
    """Of the partition that the client means; 0 if it does not say."""


@command(106, r.Polled, Action.POLL_MESSAGES, since=SDK_0_10)
class ReadMessages(Command, frozen=True):
    """A poll with a limit to the size of its reply, which comes after ``AwaitMessages`` if it waits."""

    poll: PollMessages
    size_max: U32
    """Bytes of batch records in the reply. One message is returned if there is one, however large."""

    @property
    def stream(self) -> Identifier:
        """That of the poll."""
        return self.poll.stream

    @property
    def topic(self) -> Identifier:
        """That of the poll."""
        return self.poll.topic


@command(107, r.ReadyPartitions, Action.POLL_MESSAGES, since=SDK_0_10)
class AwaitMessages(Command, frozen=True):
    """Wait until some partitions together have so many messages, until one of them cannot be read, or for a time."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    targets: tuple[ReadTarget, ...]
    min_count: int
    wait: int
    """Microseconds."""


@command(109, r.Fetched, Action.POLL_MESSAGES, since=SDK_0_10)
class FetchMessages(Command, frozen=True):
    """Read messages of several partitions."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    targets: tuple[ReadTarget, ...]
    count: int
    """Maximum messages of all partitions together."""
    size_max: int
    """Maximum bytes of batch records of all partitions together."""
    auto_commit: bool


@command(105, r.PartitionRoute, Action.SEND_MESSAGES, Action.POLL_MESSAGES, since=SDK_0_10)
class GetPartitionRoute(Command, frozen=True):
    """Which incarnation of a partition is the current one, and how many partitions the topic has."""

    stream: Identifier
    topic: Identifier
    partition_id: U32


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
    incarnation: Incarnation = 0


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
    incarnation: Incarnation = 0


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
    incarnation: Incarnation = 0


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


# --- commands of our own: messages, topics and groups -------------------------------------------------


@command(
    60004, r.Arrivals, Action.POLL_MESSAGES, order=("consumer", "stream", "topic", "generation", "wait", "positions")
)
class WaitForArrivals(Command, frozen=True):
    """Wait until one of several partitions has something to read: for consumers of more than one."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    positions: Annotated[tuple[tuple[U32, U64], ...], Counted(POSITION_COUNT_MAX)]
    """A partition, and the offset that its reader wants next."""
    generation: U64
    """The generation of the group's assignment that the member knows; 0 for a single consumer."""
    wait: U64
    """How long to wait for messages, in microseconds; at most 20 seconds."""


@command(60019, r.ArrivalsInTopics, Action.POLL_MESSAGES)
class WaitForTopics(Command, frozen=True):
    """Wait until a partition of one of several topics has something to read, for readers that keep their positions."""

    positions: Annotated[tuple[tuple[Identifier, Identifier, U32, U64], ...], Counted(POSITION_COUNT_MAX)]
    """A stream, a topic and a partition, and the offset that its reader wants next."""
    wait: U64
    """How long to wait for messages, in microseconds; at most 20 seconds."""


@command(60016, r.FoundMessages, Action.POLL_MESSAGES)
class FindMessages(Command, frozen=True):
    """Where the next messages of a partition are that may match a filter. Looks at a limited number of them."""

    stream: Identifier
    topic: Identifier
    partition_id: Id
    offset: U64
    """Where to start."""
    conditions: Annotated[tuple[Text32, ...], Counted(FILTER_COUNT_MAX)]
    """All of them must be satisfied."""


@command(60002, r.TopicBounds, Action.POLL_MESSAGES, Action.SEND_MESSAGES, http=f"GET {_TOPIC}/bounds")
class GetPartitionBounds(Command, frozen=True):
    """First and next offset of every partition of a topic, with the topic's identity."""

    stream: Identifier
    topic: Identifier


@command(60003, r.SegmentList, Action.READ_TOPIC, http=f"GET {_TOPIC}/partitions/{{partition_id}}/segments")
class GetSegments(Command, frozen=True):
    """The segments of a partition."""

    stream: Identifier
    topic: Identifier
    partition_id: Id


@command(60020, r.TopicMaintenance, Action.READ_TOPIC, http=f"GET {_TOPIC}/maintenance")
class GetTopicMaintenance(Command, frozen=True):
    """What was deleted from a topic, when and why, and which messages are damaged."""

    stream: Identifier
    topic: Identifier


@command(60013, r.ConfirmedAssignment, Action.READ_TOPIC)
class ConfirmAssignment(Command, frozen=True):
    """The partitions that are assigned to this member, which hands over lost partitions in an orderly way."""

    stream: Identifier
    topic: Identifier
    group: Identifier
    generation: U64
    """The member has given up all partitions that this and older generations took away; 0 before the first."""


@command(60015, r.TopicDurability, Action.READ_TOPIC)
class GetTopicDurability(Command, frozen=True):
    """The durability level of a topic: what an acknowledgement guarantees on this server."""

    stream: Identifier
    topic: Identifier


@command(60018, r.GroupLag, Action.READ_TOPIC, http=f"GET {_TOPIC}/consumer-groups/{{group}}/lag")
class GetGroupLag(Command, frozen=True):
    """How far a consumer group is behind, in messages and in time."""

    stream: Identifier
    topic: Identifier
    group: Identifier


@command(60012, None, Action.READ_TOPIC, is_audited=True, http=f"PUT {_TOPIC}/consumer-groups/{{group}}/offsets")
class ResetGroupOffsets(Command, frozen=True):
    """Set where a consumer group continues to read, without being a member; all partitions or none."""

    stream: Identifier
    topic: Identifier
    group: Identifier
    is_forced: Flag
    """Whether to remove the members first. They have to join again. Otherwise a group with members is refused."""
    offsets: Annotated[tuple[tuple[U32, U64], ...], Counted(POSITION_COUNT_MAX)]
    """A partition, and the next offset that the group reads there. At offset 0 nothing remains stored."""


# --- commands of our own: what a server does, for operators and the console ---------------------------


@command(60017, r.MetricsText, Action.READ_SERVER)
class GetMetrics(Command, frozen=True):
    """All metrics of the server."""


@command(60030, o.OneTimeToken, is_audited=True, http="POST /personal-access-tokens/one-time")
class CreateOneTimeToken(Command, frozen=True):
    """Create a token that logs in this user once, within five minutes: for links to the console."""


@command(60031, o.SessionList, Action.READ_SERVER, http="GET /sessions")
class GetSessions(Command, frozen=True):
    """All connections, with user, client library and number of requests."""


@command(60032, None, Action.MANAGE_SERVER, is_audited=True, http="DELETE /sessions/{client_id}")
class EndSession(Command, frozen=True):
    """End the session of a connection. The connection is closed; the client may log in again."""

    client_id: U32


@command(60033, o.History, Action.READ_SERVER, http="GET /history")
class GetHistory(Command, frozen=True):
    """The main figures of the server in the last hour, and now."""

    since: U64 = 0
    """Only what is newer than this time, in microseconds since 1970."""


@command(60034, o.LogLines, Action.MANAGE_SERVER, http="GET /logs")
class GetLogLines(Command, frozen=True):
    """The newest lines of the server's log."""

    after: U64 = 0
    """Only lines with a higher number."""


@command(60035, o.SettingList, Action.READ_SERVER, http="GET /configuration")
class GetConfiguration(Command, frozen=True):
    """The effective configuration with the origin of each value. Secrets are masked."""


@command(60036, o.TopicFigureList, Action.LIST_STREAMS, http="GET /topics")
class GetTopicFigures(Command, frozen=True):
    """All topics of all streams, with sizes, counts and lag."""


@command(60037, None, http="PUT /pipelines/{name}")
class ReportPipeline(Command, frozen=True):
    """Tell the server how a pipeline is doing, for those who look at the server. It is kept in memory only."""

    name: Name
    state: Text8
    """``starting``, ``running``, ``restarting``, ``stopping``, ``stopped``, ``finished`` or ``failed``."""
    consumer: Text8
    """The name under which it stores its offsets; empty: none."""
    host: Text8
    started_at: U64
    """Microseconds since 1970."""
    batch_count: U64
    """Finished batches."""
    rows: U64
    """Read since the start."""
    rows_per_second: U64
    lag: U64
    """Messages that are not read yet."""
    lost: U64
    """Messages that were gone before they were read."""
    bad_rows: U64
    restarts: U32
    source: Text32
    sink: Text32
    error: Text32
    """The last error; empty: none."""
    definition: Text32
    """The TOML in effect, without secrets."""


@command(60039, o.AccessReport, Action.READ_USERS, http="GET /permissions")
class GetAccess(Command, frozen=True):
    """Who may do what, and why: for a topic, for a stream, or everywhere."""

    stream_id: OptionalU64 = None
    """None: everywhere."""
    topic_id: OptionalU64 = None
    """None: everywhere in the stream."""


@command(60038, o.PipelineList, http="GET /pipelines")
class GetPipelines(Command, frozen=True):
    """Pipelines that have reported: the user's own, or all users' with the permission to read the server."""


@command(60040, o.OffsetsAtTime, Action.POLL_MESSAGES, http=f"GET {_TOPIC}/offsets")
class GetOffsetsAtTime(Command, frozen=True):
    """For every partition of a topic, the offset of the first message that is not older than a time."""

    stream: Identifier
    topic: Identifier
    timestamp: U64
    """Microseconds."""


@command(60041, o.RetentionPlan, http="GET /retention")
class GetRetentionPlan(Command, frozen=True):
    """What the cleaner will have deleted by a time, in all topics that the user may view, if nothing is sent."""

    until: U64
    """Microseconds."""


@command(
    60042,
    o.VerifiedSegment,
    Action.MANAGE_TOPIC,
    http=f"POST {_TOPIC}/partitions/{{partition_id}}/segments/{{first_offset}}/verification",
)
class VerifySegment(Command, frozen=True):
    """Check all of a sealed segment now. A damaged one is repaired if the archive has a copy."""

    stream: Identifier
    topic: Identifier
    partition_id: Id
    first_offset: U64
    """Which segment: that of its first message."""


@command(60043, o.StartReport, Action.READ_SERVER, http="GET /start-report")
class GetStartReport(Command, frozen=True):
    """How the last session ended, and what the start of the server found and repaired."""


# --- commands of our own: staged writes ---------------------------------------------------------------


class StagedPartName(msgspec.Struct, frozen=True):
    """One attempt at one part of a batch of a sink. Readers never see parts that are not published."""

    sink: Name
    batch: U64
    part: U32
    attempt: U64


@command(60005, None, Action.SEND_MESSAGES)
class StageMessages(Command, frozen=True):
    """Stage messages on the server: durable with ``FinishStage``, visible with ``PublishStaged``."""

    name: StagedPartName
    chunk: U32
    """0, 1, 2, ... within this attempt. A chunk that is already present is not added again."""
    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    batch: Batch


@command(60006, r.StagedPart)
class FinishStage(Command, frozen=True):
    """Make a part durable. Nothing can be added to it any more."""

    name: StagedPartName
    chunk_count: U32
    """How many chunks there are."""


@command(60007, r.Published, order=("sink", "batch", "keep", "parts"))
class PublishStaged(Command, frozen=True):
    """Append all messages of these parts to their partitions, once per sink and batch, durable on return."""

    sink: Name
    batch: U64
    """A number higher than that of any batch before."""
    parts: Annotated[tuple[tuple[U32, U64], ...], Counted(PUBLISHED_PART_COUNT_MAX)]
    """A part, and the attempt to publish."""
    keep: U64
    """How long the server remembers the sink afterwards, in microseconds; 0 is forever."""


@command(60008, is_audited=True)
class DiscardStaged(Command, frozen=True):
    """Remove staged parts of a sink that are not published."""

    sink: Name
    batch: OptionalU64
    """The batch whose parts are removed; if not present, the parts of all batches."""
    forget: Flag
    """Whether to forget the sink too: its batches may then be published again."""


@command(60009, r.SinkInfo)
class GetSink(Command, frozen=True):
    """What a sink has published, and what is staged for it."""

    sink: Name


@command(60010, r.SinkList, http="GET /sinks")
class GetSinks(Command, frozen=True):
    """All sinks and their staged parts: the user's own, or all users' with the permission to read the server."""


@command(60011, r.StagedPartList, http="GET /sinks/{sink}/parts")
class GetStagedParts(Command, frozen=True):
    """The unpublished staged parts of a sink, of the same users as in ``GetSinks``."""

    sink: Name


INTERNAL_COMMANDS = tuple(kind.row for kind in (FindRangesToScan, FindStartOffsets, ScanPiece))
_ROWS = (kind.row for kind in Command.__subclasses__() if kind.row.code != table.INTERNAL)
COMMANDS = tuple(sorted(_ROWS, key=lambda row: row.code))
"""The rows of all commands that a client can send, by code."""
ROW_BY_CODE: dict[int, CommandRow] = {row.code: row for row in COMMANDS}
