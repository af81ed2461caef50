"""One command of each kind. Streams, topics and groups in them are called s, t and g."""

from courser.api import commands as c
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch

CONSUMER = Consumer(ConsumerKind.CONSUMER, 7)
POLL = c.PollMessages(CONSUMER, "s", "t", 0, PollingKind.FIRST, 0, 10, False)

PART = c.StagedPartName("sink", 0, 0, 1)

SAMPLES: tuple[c.Command, ...] = (
    c.Ping(),
    c.GetStats(),
    c.GetMetrics(),
    c.GetSnapshot(1, (4,)),
    c.GetClusterMetadata(),
    c.DescribeOptions(1),
    c.GetMe(),
    c.GetClient(1),
    c.GetClients(),
    c.GetUser("target"),
    c.GetUsers(),
    c.CreateUser("new-user", "password", True, None),
    c.DeleteUser("target"),
    c.UpdateUser("target", None, None),
    c.UpdatePermissions("target", None),
    c.ChangePassword("target", "current", "replacement"),
    c.LoginUser("target", "password"),
    c.LogoutUser(),
    c.GetTokens(),
    c.CreateToken("token", 0),
    c.DeleteToken("token"),
    c.LoginWithToken("token"),
    POLL,
    c.SendMessages("s", "t", ToPartition(0), [build_batch([NewMessage(b"hello")])]),
    c.FlushMessages("s", "t", 0, False),
    c.GetConsumerOffset(CONSUMER, "s", "t", 0),
    c.StoreConsumerOffset(CONSUMER, "s", "t", 0, 0),
    c.DeleteConsumerOffset(CONSUMER, "s", "t", 0),
    c.GetStream("s"),
    c.GetStreams(),
    c.CreateStream("new-stream"),
    c.DeleteStream("s"),
    c.UpdateStream("s", "s"),
    c.PurgeStream("s"),
    c.GetTopic("s", "t"),
    c.GetTopics("s"),
    c.CreateTopic("s", "new-topic", 1, TopicOptions()),
    c.DeleteTopic("s", "t"),
    c.UpdateTopic("s", "t", "t", TopicOptions(), is_patch=True),
    c.PurgeTopic("s", "t"),
    c.CreatePartitions("s", "t", 1),
    c.DeletePartitions("s", "t", 1),
    c.DeleteSegments("s", "t", 0, 1),
    c.GetConsumerGroup("s", "t", "g"),
    c.GetConsumerGroups("s", "t"),
    c.CreateConsumerGroup("s", "t", "new-group"),
    c.DeleteConsumerGroup("s", "t", "g"),
    c.JoinConsumerGroup("s", "t", "g"),
    c.LeaveConsumerGroup("s", "t", "g"),
    c.SyncConsumerGroup("s", "t", "g"),
    c.WaitForMessages(POLL, 0, 1024),
    c.GetPartitionBounds("s", "t"),
    c.GetSegments("s", "t", 0),
    c.ConfirmAssignment("s", "t", "g", 0),
    c.GetTopicDurability("s", "t"),
    c.GetTopicMaintenance("s", "t"),
    c.WaitForArrivals(POLL.consumer, "s", "t", ((0, 0),), 0, 0),
    c.WaitForTopics((("s", "t", 0, 0),), 0),
    c.FindMessages("s", "t", 0, 0, ("text",)),
    c.StageMessages(PART, 0, "s", "t", ToPartition(0), build_batch([NewMessage(b"hello")])),
    c.FinishStage(PART, 1),
    # Of a part that is not there: what is asked of the targets of others, tests of staging show.
    c.PublishStaged("sink", 0, ((5, 1),), 0),
    c.DiscardStaged("sink", None, False),
    c.GetSink("sink"),
    c.GetSinks(),
    c.GetStagedParts("sink"),
    c.GetGroupLag("s", "t", "g"),
    c.ResetGroupOffsets("s", "t", "g", True, ((0, 0),)),
)
