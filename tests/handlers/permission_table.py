"""Who may send which command: written down by hand, apart from the rules that it is held against.

A grant is one permission at one level: ``everywhere.read_streams``, ``stream.manage_topics``, ``topic.poll_messages``.
Each command lists the grants of which any single one is enough. What is not listed is denied.
"""

from courser.api import commands as c
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

EVERYWHERE = (
    "manage_servers",
    "read_servers",
    "manage_users",
    "read_users",
    "manage_streams",
    "read_streams",
    "manage_topics",
    "read_topics",
    "poll_messages",
    "send_messages",
)
STREAM = ("manage_stream", "read_stream", "manage_topics", "read_topics", "poll_messages", "send_messages")
TOPIC = ("manage_topic", "read_topic", "poll_messages", "send_messages")

GRANTS: tuple[str, ...] = (
    *(f"everywhere.{name}" for name in EVERYWHERE),
    *(f"stream.{name}" for name in STREAM),
    *(f"topic.{name}" for name in TOPIC),
)

ANYBODY = "anybody"
"""Everybody who is logged in."""


def _grants(text: str) -> frozenset[str]:
    return frozenset(text.split())


GET_STREAM = _grants("everywhere.manage_streams everywhere.read_streams stream.manage_stream stream.read_stream")
LIST_STREAMS = _grants("everywhere.manage_streams everywhere.read_streams")
CREATE_STREAM = _grants("everywhere.manage_streams")
CHANGE_STREAM = _grants("everywhere.manage_streams stream.manage_stream")
LIST_TOPICS = _grants(
    """
    everywhere.manage_streams everywhere.read_streams everywhere.manage_topics everywhere.read_topics
    stream.manage_stream stream.read_stream stream.manage_topics stream.read_topics
    """
)
GET_TOPIC = LIST_TOPICS | _grants("topic.manage_topic topic.read_topic")
CREATE_TOPIC = _grants("everywhere.manage_streams everywhere.manage_topics stream.manage_stream stream.manage_topics")
CHANGE_TOPIC = _grants(
    """
    everywhere.manage_streams everywhere.manage_topics
    stream.manage_stream stream.manage_topics
    topic.manage_topic
    """
)
POLL = _grants(
    """
    everywhere.manage_streams everywhere.read_streams everywhere.manage_topics everywhere.read_topics
    everywhere.poll_messages
    stream.manage_stream stream.read_stream stream.manage_topics stream.read_topics stream.poll_messages
    topic.manage_topic topic.read_topic topic.poll_messages
    """
)
SEND = _grants(
    """
    everywhere.manage_streams everywhere.manage_topics everywhere.send_messages
    stream.manage_stream stream.manage_topics stream.send_messages
    topic.manage_topic topic.send_messages
    """
)
READ_USERS = _grants("everywhere.manage_users everywhere.read_users")
MANAGE_USERS = _grants("everywhere.manage_users")
READ_SERVER = _grants("everywhere.manage_servers everywhere.read_servers")
MANAGE_SERVER = _grants("everywhere.manage_servers")

SUFFICIENT: dict[type[c.Command], frozenset[str] | str] = {
    c.Ping: ANYBODY,
    c.LoginUser: ANYBODY,
    c.LoginWithToken: ANYBODY,
    c.LogoutUser: ANYBODY,
    c.GetMe: ANYBODY,
    c.GetClusterMetadata: ANYBODY,
    c.DescribeOptions: ANYBODY,
    c.GetTokens: ANYBODY,
    c.CreateToken: ANYBODY,
    c.DeleteToken: ANYBODY,
    c.GetStats: READ_SERVER,
    c.GetMetrics: READ_SERVER,
    c.GetSnapshot: READ_SERVER,
    c.GetClient: READ_SERVER,
    c.GetClients: READ_SERVER,
    c.GetUser: READ_USERS,
    c.GetUsers: READ_USERS,
    c.CreateUser: MANAGE_USERS,
    c.DeleteUser: MANAGE_USERS,
    c.UpdateUser: MANAGE_USERS,
    c.UpdatePermissions: MANAGE_USERS,
    c.ChangePassword: MANAGE_USERS,
    c.GetStream: GET_STREAM,
    c.GetStreams: LIST_STREAMS,
    c.CreateStream: CREATE_STREAM,
    c.UpdateStream: CHANGE_STREAM,
    c.DeleteStream: CHANGE_STREAM,
    c.PurgeStream: CHANGE_STREAM,
    c.GetTopic: GET_TOPIC,
    c.GetTopics: LIST_TOPICS,
    c.CreateTopic: CREATE_TOPIC,
    c.UpdateTopic: CHANGE_TOPIC,
    c.DeleteTopic: CHANGE_TOPIC,
    c.PurgeTopic: CHANGE_TOPIC,
    c.CreatePartitions: CHANGE_TOPIC,
    c.DeletePartitions: CHANGE_TOPIC,
    c.DeleteSegments: CHANGE_TOPIC,
    c.GetConsumerGroup: GET_TOPIC,
    c.GetConsumerGroups: GET_TOPIC,
    c.CreateConsumerGroup: GET_TOPIC,
    c.DeleteConsumerGroup: GET_TOPIC,
    c.JoinConsumerGroup: GET_TOPIC,
    c.LeaveConsumerGroup: GET_TOPIC,
    c.SyncConsumerGroup: GET_TOPIC,
    c.PollMessages: POLL,
    c.GetConsumerOffset: POLL,
    c.StoreConsumerOffset: POLL,
    c.DeleteConsumerOffset: POLL,
    c.SendMessages: SEND,
    c.FlushMessages: SEND,
    c.WaitForMessages: POLL,
    c.ReadMessages: POLL,
    c.AwaitMessages: POLL,
    c.FetchMessages: POLL,
    c.GetPartitionBounds: POLL | SEND,
    c.GetPartitionRoute: POLL | SEND,
    c.GetSegments: GET_TOPIC,
    c.ConfirmAssignment: GET_TOPIC,
    c.GetTopicDurability: GET_TOPIC,
    c.GetTopicMaintenance: GET_TOPIC,
    c.GetOffsetsAtTime: POLL,
    # What is in the answer depends on who asks: tests of retention show it.
    c.GetRetentionPlan: ANYBODY,
    c.VerifySegment: CHANGE_TOPIC,
    c.GetStartReport: READ_SERVER,
    c.WaitForArrivals: POLL,
    c.WaitForTopics: POLL,
    c.FindMessages: POLL,
    c.StageMessages: SEND,
    # One's own parts only: their targets are looked at when they are staged, and once more when they are published.
    c.FinishStage: ANYBODY,
    c.PublishStaged: ANYBODY,
    c.DiscardStaged: ANYBODY,
    c.GetSink: ANYBODY,
    # What is in the answer depends on who asks: tests of staging show it.
    c.GetSinks: ANYBODY,
    c.GetStagedParts: ANYBODY,
    c.GetGroupLag: GET_TOPIC,
    c.CreateOneTimeToken: ANYBODY,
    c.GetSessions: READ_SERVER,
    c.GetAccess: READ_USERS,
    c.EndSession: MANAGE_SERVER,
    c.GetMetadataChanges: MANAGE_SERVER,
    c.GetHistory: READ_SERVER,
    c.GetLogLines: MANAGE_SERVER,
    c.GetConfiguration: READ_SERVER,
    c.GetTopicFigures: LIST_STREAMS,
    c.ReportPipeline: ANYBODY,
    c.GetPipelines: ANYBODY,
    c.ResetGroupOffsets: GET_TOPIC,
}


def is_sufficient(command: type[c.Command], grant: str) -> bool:
    """Whether this grant alone is enough for this command."""
    sufficient = SUFFICIENT[command]
    return sufficient == ANYBODY or grant in sufficient


def permissions_of(*grants: str, stream_id: int = 0, topic_id: int = 0) -> Permissions:
    """Permissions that consist of these grants, for one stream and topic where they are not for everywhere."""

    def granted(level: str) -> dict[str, bool]:
        return {name: True for grant in grants for at, _, name in [grant.partition(".")] if at == level}

    topics = {topic_id: TopicPermissions(**granted("topic"))} if granted("topic") else {}
    stream = StreamPermissions(**granted("stream"), topics=topics)
    streams = {stream_id: stream} if granted("stream") or topics else {}
    return Permissions(GlobalPermissions(**granted("everywhere")), streams)
