"""Every command once or more, with values that would show if a field was lost, shifted or swapped."""

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey, PollingKind, ToPartition, Transport
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from tests.wire.classic_client import Message

PERMISSIONS = Permissions(
    GlobalPermissions(manage_servers=True, read_streams=True, send_messages=True),
    {
        0: StreamPermissions(manage_stream=True),
        7: StreamPermissions(
            read_topics=True,
            topics={0: TopicPermissions(poll_messages=True), 300: TopicPermissions(manage_topic=True)},
        ),
    },
)
SINGLE = Consumer(ConsumerKind.CONSUMER, 1)
NAMED = Consumer(ConsumerKind.CONSUMER, "reader")
PART = c.StagedPartName("sink", 2**63 - 1, 7, 2**64 - 1)
GROUP = Consumer(ConsumerKind.GROUP, 4)
OPTIONS = TopicOptions(compression=2, message_expiry=10_000_000, max_topic_size=NEVER, replication_factor=3)
POLL = c.PollMessages(GROUP, 0, "topic", None, PollingKind.NEXT, 0, 10, auto_commit=True)
MESSAGES = (Message(b"hello"), Message(b"w\xc3\xb6rld", origin=1_700_000_000_000_009))

COMMANDS: tuple[c.Command, ...] = (
    c.Ping(),
    c.GetStats(),
    c.GetSnapshot(2, (1, 6, 3)),
    c.GetSnapshot(6, (100,)),
    c.GetClusterMetadata(),
    c.DescribeOptions(1),
    c.GetMe(),
    c.GetClient(4_000_000_000),
    c.GetClients(),
    c.GetUser(0),
    c.GetUser("alice"),
    c.GetUsers(),
    c.CreateUser("alice", "secret", is_active=True, permissions=None),
    c.CreateUser("bob", "secret", is_active=False, permissions=PERMISSIONS),
    c.DeleteUser(3),
    c.UpdateUser("alice", "bob", is_active=False),
    c.UpdateUser(1, None, is_active=None),
    c.UpdatePermissions("bob", PERMISSIONS),
    c.UpdatePermissions(2, None),
    c.ChangePassword("bob", "old", ""),
    c.LoginUser("iggy", "iggy", "0.0.0", "tests"),
    c.LoginWithToken("a token"),
    c.LogoutUser(),
    c.GetTokens(),
    c.CreateToken("token", 60_000_000),
    c.DeleteToken("token"),
    c.GetStream(0),
    c.GetStream("0"),
    c.GetStreams(),
    c.CreateStream("orders"),
    c.UpdateStream(5, "Bestellungen \N{SNOWMAN}"),
    c.DeleteStream("orders"),
    c.PurgeStream(0),
    c.GetTopic(0, "topic"),
    c.GetTopics(9),
    c.CreateTopic(0, "topic", 3, OPTIONS),
    c.CreateTopic("orders", "t", 0, TopicOptions(compression=1)),
    c.UpdateTopic(1, 2, "topic", OPTIONS, is_patch=False),
    c.DeleteTopic(0, 0),
    c.PurgeTopic("orders", 1),
    c.CreatePartitions(0, 1, 1000),
    c.DeletePartitions("orders", "topic", 1),
    c.DeleteSegments(0, 1, 2, 3),
    c.SendMessages("orders", 0, ToPartition(2), []),
    c.SendMessages(0, "topic", Balanced(), []),
    c.SendMessages(0, 1, ByKey(b"key-1"), []),
    POLL,
    c.PollMessages(SINGLE, "orders", 3, 2, PollingKind.OFFSET, 2**63, 2**32 - 1, auto_commit=False),
    c.PollMessages(NAMED, 0, 0, 0, PollingKind.TIMESTAMP, 123_456, 1, auto_commit=False),
    c.FlushMessages(0, 1, 2, fsync=True),
    c.GetConsumerOffset(SINGLE, 0, "topic", 1),
    c.GetConsumerOffset(GROUP, 0, "topic", None),
    c.StoreConsumerOffset(NAMED, "orders", "topic", 0, 2**40),
    c.StoreConsumerOffset(GROUP, 1, 2, None, 7),
    c.DeleteConsumerOffset(GROUP, 0, 0, 2),
    c.GetConsumerGroup(0, 1, 2),
    c.GetConsumerGroups("orders", 1),
    c.CreateConsumerGroup(0, "topic", "group"),
    c.DeleteConsumerGroup(0, 0, "group"),
    c.JoinConsumerGroup("orders", "topic", "group"),
    c.LeaveConsumerGroup(0, 0, 0),
    c.SyncConsumerGroup(0, 0, 3),
    c.WaitForMessages(POLL, 20_000_000, 8 * 1024 * 1024),
    c.GetPartitionBounds("orders", 0),
    c.GetSegments(0, "topic", 1),
    c.ConfirmAssignment(0, "topic", "group", 2**64 - 1),
    c.GetTopicDurability("orders", 0),
    c.GetTopicMaintenance("orders", 0),
    c.CreateOneTimeToken(),
    c.GetOffsetsAtTime("orders", 0, 2**40),
    c.GetRetentionPlan(2**40),
    c.VerifySegment(0, "topic", 3, 2**64 - 1),
    c.GetStartReport(),
    c.GetSessions(),
    c.EndSession(7),
    c.GetAccess(),
    c.GetAccess(3, 2**40),
    c.GetHistory(2**50),
    c.GetLogLines(2**40),
    c.GetConfiguration(),
    c.GetTopicFigures(),
    c.ReportPipeline("p", "running", "c", "host", 1, 2, 3, 4, 5, 6, 7, 8, "source", "sink", "error", "toml"),
    c.GetPipelines(),
    c.WaitForArrivals(POLL.consumer, "orders", 0, ((0, 7), (3, 2**64 - 1)), 5, 1_000_000),
    c.WaitForArrivals(POLL.consumer, 0, "topic", (), 0, 0),
    c.WaitForTopics((("orders", 0, 2, 7), (3, "topic", 0, 2**64 - 1)), 1_000_000),
    c.WaitForTopics((), 0),
    c.StageMessages(PART, 3, "orders", 0, ToPartition(1), build_batch([NewMessage(b"one"), NewMessage(b"three")])),
    c.StageMessages(PART, 0, 0, "topic", ByKey(b"key"), build_batch([NewMessage(b"", 7, 9, b"headers")])),
    c.StageMessages(PART, 0, 0, 0, Balanced(), build_batch([NewMessage(b"x")])),
    c.FinishStage(PART, 4),
    c.PublishStaged("sink", 2**63 - 1, ((0, 1), (7, 2**64 - 1)), 604_800_000_000),
    c.PublishStaged("s", 0, (), 0),
    c.DiscardStaged("sink", 5, True),
    c.DiscardStaged("sink", None, False),
    c.GetSink("sink"),
    c.GetSinks(),
    c.GetStagedParts("sink"),
    c.FindMessages("orders", 0, 1, 2**40, ("text", "header.größe>3")),
    c.FindMessages(0, "topic", 0, 0, ()),
    c.ResetGroupOffsets("orders", 0, "group", True, ((0, 7), (3, 2**64 - 1))),
    c.ResetGroupOffsets(0, "topic", 1, False, ()),
    c.GetMetrics(),
    c.GetGroupLag("orders", 0, "group"),
)

WITH_OWN_IDS: tuple[c.Command, ...] = (
    c.CreateStream("orders", 0),
    c.CreateStream("orders", 41),
    c.CreateTopic(0, "topic", 3, OPTIONS, 6),
    c.CreateConsumerGroup(0, "topic", "group", 8),
)
"""What SDK 0.5 alone can ask for."""

_TOPIC = r.TopicInfo(3, 11, 2, 5_000, 4, "topic", TopicOptions(), OPTIONS)
_PARTITIONS = [r.PartitionInfo(0, 12, 1, 2, 2_500, 3), r.PartitionInfo(1, 13, 4, 0, 2_500, 1)]
_STREAM = r.StreamInfo(0, 10, 1, 5_000, 4, "orders")
_CLIENT = r.ClientInfo(4_000_000_000, 0, Transport.TCP, "127.0.0.1:5000", 2)
_NOBODY = r.ClientInfo(5, None, Transport.WEBSOCKET, "[::1]:5000", 0)
_GROUP_INFO = r.GroupInfo(2, 3, 2, "group")

REPLIES: tuple[tuple[c.Command, r.Reply], ...] = (
    (c.LoginUser("iggy", "iggy"), r.LoggedIn(0, session=0)),
    (c.GetClusterMetadata(), r.ClusterMetadata("one", [r.Node("node", "::1", 8090, 8080, 3000, 65_535)])),
    (c.GetSnapshot(1, ()), r.SnapshotArchive(b"PK\5\6" + bytes(18))),
    (
        c.DescribeOptions(1),
        r.OptionList(
            [
                r.OptionDescription("compression_algorithm", "none", "what it is"),
                r.OptionDescription("enforce_fsync", False, ""),
                r.OptionDescription("messages_required_to_save", 1024, "how many"),
                r.OptionDescription("segment_size", 2**30, "how large"),
            ]
        ),
    ),
    (c.GetMe(), r.ClientDetails(_CLIENT, [r.ClientGroup(0, 1, 2), r.ClientGroup(3, 4, 5)])),
    (c.GetClient(5), r.ClientDetails(_NOBODY, [])),
    (c.GetClients(), r.ClientList([_CLIENT, _NOBODY])),
    (c.GetUser(0), r.UserDetails(r.UserInfo(0, 1, True, "iggy"), PERMISSIONS)),
    (c.GetUser(1), r.UserDetails(r.UserInfo(1, 2, False, "alice"), None)),
    (c.GetUsers(), r.UserList([r.UserInfo(0, 1, True, "iggy"), r.UserInfo(1, 2, False, "alice")])),
    (c.GetTokens(), r.TokenList([r.TokenInfo("first", 0), r.TokenInfo("second", 99)])),
    (c.CreateToken("first", 0), r.NewToken("secret")),
    (c.GetStream(0), r.StreamDetails(_STREAM, [_TOPIC])),
    (c.GetStreams(), r.StreamList([_STREAM, r.StreamInfo(1, 20, 0, 0, 0, "empty")])),
    (c.CreateStream("orders"), _STREAM),
    (c.GetTopic(0, 3), r.TopicDetails(_TOPIC, _PARTITIONS)),
    (c.GetTopics(0), r.TopicList([_TOPIC])),
    (c.GetConsumerOffset(SINGLE, 0, 3, 1), r.StoredOffset(1, 2**40, 2**40 - 1)),
    (
        c.GetConsumerGroup(0, 3, 2),
        r.GroupDetails(_GROUP_INFO, [r.GroupMember(0, (0, 2)), r.GroupMember(4, ())]),
    ),
    (c.GetConsumerGroups(0, 3), r.GroupList([_GROUP_INFO, r.GroupInfo(9, 3, 0, "other")])),
    (c.SyncConsumerGroup(0, 3, 2), r.Assignment(2**33, (0, 2))),
    (c.ConfirmAssignment(0, 3, 2, 7), r.ConfirmedAssignment(8, (1,))),
    (
        c.GetStats(),
        r.Stats(
            process_id=1,
            cpu_usage=1.5,
            total_cpu_usage=50.25,
            memory_usage=2,
            total_memory=3,
            available_memory=4,
            run_time=5,
            start_time=6,
            read_bytes=7,
            written_bytes=8,
            messages_size=9,
            stream_count=10,
            topic_count=11,
            partition_count=12,
            segment_count=13,
            message_count=14,
            client_count=15,
            group_count=16,
            hostname="host",
            os_name="Linux",
            os_version="13",
            kernel_version="6.12",
            server_version="0.8.0",
            server_semver=8_000,
            thread_count=17,
            free_disk_space=18,
            total_disk_space=19,
        ),
    ),
    (
        c.GetPartitionBounds(0, 3),
        r.TopicBounds(0, 3, bytes(range(16)), [r.PartitionBounds(0, 5, 9, 1_000, 4), r.PartitionBounds(1, 0, 0, 0, 0)]),
    ),
    (
        c.GetSegments(0, 3, 1),
        r.SegmentList(
            1,
            "streams/0/topics/3/partitions/1-7",
            [
                r.SegmentInfo(0, 4, 900, 4, 10, 11, True, "archived", "remote"),
                r.SegmentInfo(4, 9, 500, 5, 12, 13, False, "active", "local"),
            ],
        ),
    ),
    (c.GetTopicMaintenance(0, 3), r.TopicMaintenance([], [])),
    (c.GetOffsetsAtTime(0, 3, 5), o.OffsetsAtTime([o.PartitionOffset(0, 7), o.PartitionOffset(1, 2**64 - 1)])),
    (
        c.GetRetentionPlan(2**40),
        o.RetentionPlan(2**40, True, [o.PlannedDeletion(1, 2, 3, "expired", 0, 4, 2, 3, 900, 2**40, True)]),
    ),
    (c.VerifySegment(0, 3, 1, 0), o.VerifiedSegment(0, 9, 300, False, [r.Damage(1, 4, 5, 6, 300, 305)])),
    (c.GetStartReport(), o.StartReport(2**40, "killed", 7, [o.StartFinding("warning", "something")])),
    (c.CreateOneTimeToken(), o.OneTimeToken("0a1b", 2**40)),
    (
        c.GetSessions(),
        o.SessionList(
            [
                o.SessionInfo(7, 0, "iggy", "tcp", "127.0.0.1:9", "rust", 2**50, 2**50 + 1, 12, 1),
                o.SessionInfo(8, None, "", "http", "[::1]:10", "unknown", 2**50, 2**50 + 2, 0, 0),
            ]
        ),
    ),
    (
        c.GetAccess(0, 1),
        o.AccessReport(
            [o.ActionInfo("send_messages", "send messages", [o.Grant("topic", "send_messages")])],
            [o.PermissionInfo("topic", "send_messages", "send messages")],
            [
                o.UserAccess(0, "iggy", True, True, [o.UserVerdict("send_messages", True, "root", [])]),
                o.UserAccess(
                    1,
                    "bob",
                    False,
                    False,
                    [o.UserVerdict("send_messages", False, "inactive", [o.Grant("topic", "send_messages")])],
                ),
            ],
        ),
    ),
    (c.GetHistory(), o.History(10, (1, 2), [o.HistorySeries("connections", False, (3, 2**60))])),
    (c.GetLogLines(), o.LogLines([o.LogLine(1, 2**50, "info", "courser.server", "listening")])),
    (c.GetConfiguration(), o.SettingList([o.Setting("tcp.address", '"x"', "--set", '"y"', "where to listen")])),
    (
        c.GetPipelines(),
        o.PipelineList([o.PipelineInfo("p", "bob", 2**50, "failed", "c", "h", 1, 2, 3, 4, 5, 6, 7, 8, *"abcd")]),
    ),
    (
        c.GetTopicFigures(),
        o.TopicFigureList(
            [
                o.TopicFigures(0, "s", 1, "t", 2, 2**40, 3, 4, 2**64 - 1, 5, "synced", 0, None),
                o.TopicFigures(0, "s", 2, "u", 1, 9, 8, 7, 6, 2**64 - 1, "written", 1, 2**33),
            ]
        ),
    ),
    (
        c.GetTopicMaintenance(0, 3),
        r.TopicMaintenance([r.Deletion(2**40, "size", 1, 0, 4, 2, 3, 900)], [r.Damage(1, 4, 5, 6, 300, 305)]),
    ),
    (c.GetTopicDurability(0, 3), r.TopicDurability("written", None, None, None, "synced")),
    (c.GetTopicDurability(0, 3), r.TopicDurability("bounded", 100, 2**20, 1_000_000, "written")),
    (c.WaitForArrivals(POLL.consumer, 0, 0, ((0, 0), (2, 7)), 2, 0), r.Arrivals(3, (0, 2))),
    (c.WaitForArrivals(POLL.consumer, 0, 0, (), 0, 0), r.Arrivals(0, ())),
    (c.WaitForTopics(((0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 5)), 0), r.ArrivalsInTopics((0, 2))),
    (c.WaitForTopics((), 0), r.ArrivalsInTopics(())),
    (c.FindMessages(0, 0, 1, 5, ("text",)), r.FoundMessages(7, 9, 2**40)),
    (c.GetMetrics(), r.MetricsText("courser_info 1\n")),
    (c.GetGroupLag(0, 0, 1), r.GroupLag([r.PartitionLag(0, 7, 9, 1, 2**40), r.PartitionLag(1, *[None] * 4)])),
    (c.FinishStage(PART, 4), r.StagedPart(2**33, 2**40)),
    (c.PublishStaged("sink", 7, ((0, 1),), 0), r.Published(False, 5, 999)),
    (c.PublishStaged("sink", 7, ((0, 1),), 0), r.Published(True, 0, 0)),
    (c.GetSink("sink"), r.SinkInfo(0, False, 10, 0, 0)),
    (c.GetSink("sink"), r.SinkInfo(None, True, 0, 3, 4096)),
    (c.GetSinks(), r.SinkList([])),
    (
        c.GetSinks(),
        r.SinkList(
            [
                r.SinkSummary("staged", 2**32 - 1, None, False, 0, 0, 3, 2**40),
                r.SinkSummary("s" * 255, 0, 2**63 - 1, True, 10, 20, 0, 0),
            ]
        ),
    ),
    (c.GetStagedParts("sink"), r.StagedPartList([])),
    (
        c.GetStagedParts("sink"),
        r.StagedPartList(
            [
                r.StagedPartInfo(1, 2, 3, 4, 5, 6, 7, True, 8),
                r.StagedPartInfo(0, 2**63 - 1, 2**32 - 1, 2**64 - 1, 0, 2**33, 2**40, False, 0),
            ]
        ),
    ),
)
"""Commands with what may answer them; polls are tested apart."""
