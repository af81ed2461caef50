"""The table of commands: every command with its number, what answers it, and who may send it before a login.

The numbers are those of Iggy; Courser's own begin at 60000 (docs/formats/private-commands.md).
"""

from dataclasses import dataclass

from courser.api import commands as c
from courser.api import replies as r


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One row."""

    code: int
    command: type[c.Command]
    reply: type[r.Reply] | None = None
    """None: there is nothing to say but that it was done."""
    is_public: bool = False
    """Whether it is allowed before a login."""


COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry(1, c.Ping, is_public=True),
    CommandEntry(10, c.GetStats, r.Stats),
    CommandEntry(11, c.GetSnapshot, r.SnapshotArchive),
    CommandEntry(12, c.GetClusterMetadata, r.ClusterMetadata),
    CommandEntry(13, c.DescribeOptions, r.OptionList),
    CommandEntry(20, c.GetMe, r.ClientDetails),
    CommandEntry(21, c.GetClient, r.ClientDetails),
    CommandEntry(22, c.GetClients, r.ClientList),
    CommandEntry(31, c.GetUser, r.UserDetails),
    CommandEntry(32, c.GetUsers, r.UserList),
    CommandEntry(33, c.CreateUser, r.UserDetails),
    CommandEntry(34, c.DeleteUser),
    CommandEntry(35, c.UpdateUser),
    CommandEntry(36, c.UpdatePermissions),
    CommandEntry(37, c.ChangePassword),
    CommandEntry(38, c.LoginUser, r.LoggedIn, is_public=True),
    CommandEntry(39, c.LogoutUser),
    CommandEntry(41, c.GetTokens, r.TokenList),
    CommandEntry(42, c.CreateToken, r.NewToken),
    CommandEntry(43, c.DeleteToken),
    CommandEntry(44, c.LoginWithToken, r.LoggedIn, is_public=True),
    CommandEntry(100, c.PollMessages, r.Polled),
    CommandEntry(101, c.SendMessages, r.Sent),
    CommandEntry(102, c.FlushMessages),
    CommandEntry(120, c.GetConsumerOffset, r.StoredOffset),
    CommandEntry(121, c.StoreConsumerOffset),
    CommandEntry(122, c.DeleteConsumerOffset),
    CommandEntry(200, c.GetStream, r.StreamDetails),
    CommandEntry(201, c.GetStreams, r.StreamList),
    CommandEntry(202, c.CreateStream, r.StreamInfo),
    CommandEntry(203, c.DeleteStream),
    CommandEntry(204, c.UpdateStream),
    CommandEntry(205, c.PurgeStream),
    CommandEntry(300, c.GetTopic, r.TopicDetails),
    CommandEntry(301, c.GetTopics, r.TopicList),
    CommandEntry(302, c.CreateTopic, r.TopicDetails),
    CommandEntry(303, c.DeleteTopic),
    CommandEntry(304, c.UpdateTopic),
    CommandEntry(305, c.PurgeTopic),
    CommandEntry(402, c.CreatePartitions),
    CommandEntry(403, c.DeletePartitions),
    CommandEntry(503, c.DeleteSegments),
    CommandEntry(600, c.GetConsumerGroup, r.GroupDetails),
    CommandEntry(601, c.GetConsumerGroups, r.GroupList),
    CommandEntry(602, c.CreateConsumerGroup, r.GroupDetails),
    CommandEntry(603, c.DeleteConsumerGroup),
    CommandEntry(604, c.JoinConsumerGroup),
    CommandEntry(605, c.LeaveConsumerGroup),
    CommandEntry(606, c.SyncConsumerGroup, r.Assignment),
    CommandEntry(60001, c.WaitForMessages, r.Polled),
    CommandEntry(60002, c.GetPartitionBounds, r.TopicBounds),
    CommandEntry(60003, c.GetSegments, r.SegmentList),
    CommandEntry(60004, c.WaitForArrivals, r.Arrivals),
    CommandEntry(60005, c.StageMessages),
    CommandEntry(60006, c.FinishStage, r.StagedPart),
    CommandEntry(60007, c.PublishStaged, r.Published),
    CommandEntry(60008, c.DiscardStaged),
    CommandEntry(60009, c.GetSink, r.SinkInfo),
    CommandEntry(60010, c.GetSinks, r.SinkList),
    CommandEntry(60011, c.GetStagedParts, r.StagedPartList),
)

PRIVATE_CODE_MIN = 60_000
"""Codes from here on are Courser's own; Iggy's end at 606."""

ENTRY_OF: dict[type[c.Command], CommandEntry] = {entry.command: entry for entry in COMMANDS}
ENTRY_BY_CODE: dict[int, CommandEntry] = {entry.code: entry for entry in COMMANDS}
