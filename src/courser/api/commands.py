"""Every command that a client can send. Codecs make them, the dispatcher hands them to their handlers.

Ids are numbered from 0 here, whatever the client's release calls them.
"""

import msgspec

from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import Partitioning, PollingKind
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions
from courser.records.batch import Batch


class Command(msgspec.Struct, frozen=True, gc=False):
    """The root of all commands."""


# --- system -------------------------------------------------------------------------------------------


class Ping(Command, frozen=True):
    """Nothing, but a sign of life."""


class GetStats(Command, frozen=True):
    """Figures about the server."""


class GetSnapshot(Command, frozen=True):
    """A ZIP file that helps to diagnose the server."""

    compression: int
    """1 stored, 2 deflated, 3 bzip2, 4 zstd, 5 lzma, 6 xz."""
    kinds: tuple[int, ...]
    """1 file system, 2 processes, 3 resources, 4 test, 5 logs, 6 configuration, 100 all."""


class GetClusterMetadata(Command, frozen=True):
    """Which nodes there are."""


class DescribeOptions(Command, frozen=True):
    """Which options exist: scope 1 topic, 2 stream, 3 user."""

    scope: int


class GetMe(Command, frozen=True):
    """This connection."""


class GetClient(Command, frozen=True):
    """Another connection."""

    client_id: int


class GetClients(Command, frozen=True):
    """All connections."""


# --- users --------------------------------------------------------------------------------------------


class GetUser(Command, frozen=True):
    """One user with permissions."""

    user: Identifier


class GetUsers(Command, frozen=True):
    """All users."""


class CreateUser(Command, frozen=True):
    """Make an account."""

    name: str
    password: str
    is_active: bool
    permissions: Permissions | None


class DeleteUser(Command, frozen=True):
    """Remove an account."""

    user: Identifier


class UpdateUser(Command, frozen=True):
    """Change name or status; None leaves it."""

    user: Identifier
    name: str | None
    is_active: bool | None


class UpdatePermissions(Command, frozen=True):
    """Replace all permissions."""

    user: Identifier
    permissions: Permissions | None


class ChangePassword(Command, frozen=True):
    """Replace the password, knowing the present one."""

    user: Identifier
    current_password: str
    new_password: str


class LoginUser(Command, frozen=True):
    """Log in by password."""

    name: str
    password: str
    version: str = ""
    context: str = ""
    token: str | None = None
    """A token that the same bytes spell, to be tried if the password is wrong: 0.9 does not say which it sends."""


class LoginWithToken(Command, frozen=True):
    """Log in by personal access token."""

    token: str
    version: str = ""


class LogoutUser(Command, frozen=True):
    """Log out; the connection stays."""


class GetTokens(Command, frozen=True):
    """The own personal access tokens."""


class CreateToken(Command, frozen=True):
    """Make a personal access token."""

    name: str
    expiry: int
    """Microseconds from now; 0 and ``NEVER`` are never."""


class DeleteToken(Command, frozen=True):
    """Remove an own personal access token."""

    name: str


# --- streams ------------------------------------------------------------------------------------------


class GetStream(Command, frozen=True):
    """One stream with its topics."""

    stream: Identifier


class GetStreams(Command, frozen=True):
    """All streams."""


class CreateStream(Command, frozen=True):
    """Make a stream. ``stream_id`` only if the client names it itself."""

    name: str
    stream_id: int | None = None


class UpdateStream(Command, frozen=True):
    """Rename a stream."""

    stream: Identifier
    name: str


class DeleteStream(Command, frozen=True):
    """Remove a stream with all its topics."""

    stream: Identifier


class PurgeStream(Command, frozen=True):
    """Remove all messages of a stream."""

    stream: Identifier


# --- topics, partitions, segments ---------------------------------------------------------------------


class GetTopic(Command, frozen=True):
    """One topic with its partitions."""

    stream: Identifier
    topic: Identifier


class GetTopics(Command, frozen=True):
    """All topics of a stream."""

    stream: Identifier


class CreateTopic(Command, frozen=True):
    """Make a topic. ``topic_id`` only if the client names it itself."""

    stream: Identifier
    name: str
    partition_count: int
    options: TopicOptions
    topic_id: int | None = None


class UpdateTopic(Command, frozen=True):
    """Change name and options."""

    stream: Identifier
    topic: Identifier
    name: str
    options: TopicOptions
    is_patch: bool
    """True: options that are None stay as they are (0.9). False: the four classic ones are replaced."""


class DeleteTopic(Command, frozen=True):
    """Remove a topic."""

    stream: Identifier
    topic: Identifier


class PurgeTopic(Command, frozen=True):
    """Remove all messages of a topic."""

    stream: Identifier
    topic: Identifier


class CreatePartitions(Command, frozen=True):
    """Add partitions."""

    stream: Identifier
    topic: Identifier
    count: int


class DeletePartitions(Command, frozen=True):
    """Remove the partitions with the highest numbers, with their messages."""

    stream: Identifier
    topic: Identifier
    count: int


class DeleteSegments(Command, frozen=True):
    """Remove the oldest sealed segments of a partition that no stored offset still needs."""

    stream: Identifier
    topic: Identifier
    partition_id: int
    count: int


# --- messages -----------------------------------------------------------------------------------------


class SendMessages(Command, frozen=True):
    """Append messages to one partition."""

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    batches: list[Batch]
    """Usually one. Their memory may be that of the connection's buffer: it is good until the reply."""


class PollMessages(Command, frozen=True):
    """Read messages of one partition."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    kind: PollingKind
    value: int
    count: int
    auto_commit: bool


class FlushMessages(Command, frozen=True):
    """Make what was written durable, if ``fsync`` asks for it; it is never only in memory."""

    stream: Identifier
    topic: Identifier
    partition_id: int
    fsync: bool


class GetConsumerOffset(Command, frozen=True):
    """How far a consumer got."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None


class StoreConsumerOffset(Command, frozen=True):
    """Remember how far a consumer got."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    offset: int


class DeleteConsumerOffset(Command, frozen=True):
    """Forget how far a consumer got."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None


# --- consumer groups ----------------------------------------------------------------------------------


class GetConsumerGroup(Command, frozen=True):
    """One group with its members."""

    stream: Identifier
    topic: Identifier
    group: Identifier


class GetConsumerGroups(Command, frozen=True):
    """All groups of a topic."""

    stream: Identifier
    topic: Identifier


class CreateConsumerGroup(Command, frozen=True):
    """Make a group. ``group_id`` only if the client names it itself."""

    stream: Identifier
    topic: Identifier
    name: str
    group_id: int | None = None


class DeleteConsumerGroup(Command, frozen=True):
    """Remove a group and its stored offsets."""

    stream: Identifier
    topic: Identifier
    group: Identifier


class JoinConsumerGroup(Command, frozen=True):
    """Become a member, as long as the connection lives."""

    stream: Identifier
    topic: Identifier
    group: Identifier


class LeaveConsumerGroup(Command, frozen=True):
    """Stop being a member."""

    stream: Identifier
    topic: Identifier
    group: Identifier


class SyncConsumerGroup(Command, frozen=True):
    """Which partitions are this member's now."""

    stream: Identifier
    topic: Identifier
    group: Identifier


# --- Courser's own ------------------------------------------------------------------------------------


class WaitForMessages(Command, frozen=True):
    """A poll that waits until there is something to read; stricter than ``PollMessages``.

    What is gone or damaged is an error that names the offsets, not a silent jump.
    """

    poll: PollMessages
    wait: int
    """Microseconds, at most 20 seconds."""
    size_max: int
    """Bytes of the reply; at least one message is returned if there is one."""


class WaitForArrivals(Command, frozen=True):
    """Wait until one of several partitions has something to read: for consumers of more than one."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    positions: tuple[tuple[int, int], ...]
    """Partition, and the offset that its reader wants next."""
    generation: int
    """Of the group's assignment that the member knows: a newer one ends the wait. 0 for single consumers."""
    wait: int
    """Microseconds, at most 20 seconds."""


class GetPartitionBounds(Command, frozen=True):
    """First and next offset of every partition of a topic, with the topic's identity."""

    stream: Identifier
    topic: Identifier


class GetSegments(Command, frozen=True):
    """The segments of a partition."""

    stream: Identifier
    topic: Identifier
    partition_id: int


# --- staged writes ------------------------------------------------------------------------------------


class StagedPartName(msgspec.Struct, frozen=True):
    """One attempt at one part of a batch of a sink. Only published parts are ever seen."""

    sink: str
    batch: int
    part: int
    attempt: int


class StageMessages(Command, frozen=True):
    """Put messages aside on the server, durable with ``FinishStage``, visible with ``PublishStaged``."""

    name: StagedPartName
    chunk: int
    """0, 1, 2 and so on in this attempt: a repeated chunk is known by its number."""
    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    batch: Batch


class FinishStage(Command, frozen=True):
    """Make a part durable. Nothing can be added to it any more."""

    name: StagedPartName
    chunk_count: int
    """How many there are: fewer means that some are lost."""


class PublishStaged(Command, frozen=True):
    """Append all messages of these parts to their partitions, once per sink and batch, durable on return."""

    sink: str
    batch: int
    parts: tuple[tuple[int, int], ...]
    """Part, and the attempt that is chosen of it."""
    keep: int
    """Microseconds that the sink is remembered afterwards; 0 is for ever."""


class DiscardStaged(Command, frozen=True):
    """Remove staged parts of a sink that are not published."""

    sink: str
    batch: int | None
    """Of this batch; None is of all."""
    forget: bool
    """Whether the sink's own number is forgotten too: its batches may then be published again."""


class GetSink(Command, frozen=True):
    """What a sink has published, and what is staged for it."""

    sink: str


class GetSinks(Command, frozen=True):
    """All sinks and what is staged: one's own, or everybody's for those who may read the server."""


class GetStagedParts(Command, frozen=True):
    """The parts of a sink that are staged and not published; of whom, as for ``GetSinks``."""

    sink: str
