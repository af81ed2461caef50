"""The replies to the commands for whoever operates a server, and for the console."""

from typing import Annotated

from courser.api.fields import U32, U64, Counted, Flag, OptionalU64, Text8, Text32
from courser.api.replies import Damage, Reply


class OneTimeToken(Reply, frozen=True):
    """A token that logs in once: shown once."""

    token: Text8
    expires_at: U64
    """Microseconds since 1970."""


class SessionInfo(Reply, frozen=True):
    """A connection, as its operator sees it."""

    client_id: U32
    user_id: OptionalU64
    """None: nobody is logged in."""
    username: Text8
    transport: Text8
    address: Text8
    sdk: Text8
    """The client library, or ``unknown``."""
    connected_at: U64
    """Microseconds since 1970, like ``last_seen_at``."""
    last_seen_at: U64
    request_count: U64
    group_count: U32


class SessionList(Reply, frozen=True):
    """All sessions, ordered by client id."""

    sessions: Annotated[list[SessionInfo], Counted()]


class HistorySeries(Reply, frozen=True):
    """A figure over time."""

    name: Text8
    is_counter: Flag
    """Whether it only increases, until a restart."""
    values: Annotated[tuple[U64, ...], Counted()]
    """One for each time. Times are in microseconds, sizes in bytes."""


class History(Reply, frozen=True):
    """The main figures of the server, oldest first. The last ones are those of now."""

    interval: U64
    """Microseconds between two samples."""
    times: Annotated[tuple[U64, ...], Counted()]
    """Microseconds since 1970."""
    series: Annotated[list[HistorySeries], Counted()]


class LogLine(Reply, frozen=True):
    """A line of the log."""

    number: U64
    """Increases by one from line to line, from the start of the server on."""
    time: U64
    """Microseconds since 1970."""
    level: Text8
    logger: Text8
    message: Text32


class LogLines(Reply, frozen=True):
    """Lines of the log, oldest first."""

    lines: Annotated[list[LogLine], Counted()]


class Setting(Reply, frozen=True):
    """One key of the configuration."""

    key: Text8
    value: Text32
    """As TOML; empty if it is not set and has no default. Secrets are masked."""
    source: Text32
    """What set it: a file, a variable, the command line, or ``default``."""
    default: Text32
    """As TOML."""
    description: Text32


class SettingList(Reply, frozen=True):
    """In the order of the reference."""

    settings: Annotated[list[Setting], Counted()]


class TopicFigures(Reply, frozen=True):
    """A topic in a list of all topics."""

    stream_id: U32
    stream: Text8
    topic_id: U32
    topic: Text8
    partition_count: U32
    message_count: U64
    size: U64
    appended_count: U64
    """Messages that were sent to it since the start of the server."""
    message_expiry: U64
    """Microseconds; 2^64 - 1: never."""
    max_topic_size: U64
    """Bytes; 2^64 - 1: unlimited."""
    durability: Text8
    """``written``, ``bounded`` or ``synced``."""
    group_count: U32
    lag: OptionalU64
    """Messages that the consumer group which is furthest behind has not committed; None without groups."""


class TopicFigureList(Reply, frozen=True):
    """The figures of all topics, ordered by the ids of streams and topics."""

    topics: Annotated[list[TopicFigures], Counted()]


class PipelineInfo(Reply, frozen=True):
    """A pipeline as it has reported last. See ``ReportPipeline`` for the fields that are not explained."""

    name: Text8
    username: Text8
    """Who reported."""
    reported_at: U64
    """Microseconds since 1970. One that has not reported for a while is gone, whatever its state says."""
    state: Text8
    consumer: Text8
    host: Text8
    started_at: U64
    batch_count: U64
    rows: U64
    rows_per_second: U64
    lag: U64
    lost: U64
    bad_rows: U64
    restarts: U32
    source: Text32
    sink: Text32
    error: Text32
    definition: Text32


class PipelineList(Reply, frozen=True):
    """All pipelines that reported, ordered by name and user."""

    pipelines: Annotated[list[PipelineInfo], Counted()]


class Grant(Reply, frozen=True):
    """A permission at one level."""

    level: Text8
    """``everywhere``, ``stream`` or ``topic``."""
    name: Text8


class ActionInfo(Reply, frozen=True):
    """Something that a user may want to do."""

    name: Text8
    deed: Text8
    """In words: ``send messages to the topic``."""
    sufficient: Annotated[list[Grant], Counted()]
    """The permissions of which one is enough there."""


class PermissionInfo(Reply, frozen=True):
    """A permission that can be granted, and what it allows."""

    level: Text8
    name: Text8
    meaning: Text8


class UserVerdict(Reply, frozen=True):
    """Whether a user may do something."""

    action: Text8
    is_allowed: Flag
    reason: Text32
    granted_by: Annotated[list[Grant], Counted()]
    """The permissions that allow it. Empty also for the root user, who needs none."""


class UserAccess(Reply, frozen=True):
    """What one user may do there."""

    user_id: U32
    username: Text8
    is_active: Flag
    is_root: Flag
    verdicts: Annotated[list[UserVerdict], Counted()]
    """One for each action."""


class AccessReport(Reply, frozen=True):
    """Who may do what in one place, by user id."""

    actions: Annotated[list[ActionInfo], Counted()]
    permissions: Annotated[list[PermissionInfo], Counted()]
    """All that exist."""
    users: Annotated[list[UserAccess], Counted()]


# --- what is stored -----------------------------------------------------------------------------------


class PartitionOffset(Reply, frozen=True):
    """An offset of a partition."""

    partition_id: U32
    offset: U64


class OffsetsAtTime(Reply, frozen=True):
    """One offset for each partition: the next one of the partition if all messages are older."""

    partitions: Annotated[list[PartitionOffset], Counted()]


class PlannedDeletion(Reply, frozen=True):
    """Segments of a partition that will be deleted for one reason."""

    stream_id: U32
    topic_id: U32
    partition_id: U32
    reason: Text8
    """``expired``, ``size`` (of the topic) or ``local`` (the archive keeps them)."""
    first_offset: U64
    next_offset: U64
    segment_count: U32
    message_count: U64
    size: U64
    due_at: U64
    """When the first of them is due, in microseconds. The cleaner deletes it in its next run."""
    is_archived: Flag
    """Whether the archive has all of them, and they can still be read from there."""


class RetentionPlan(Reply, frozen=True):
    """What will be deleted."""

    until: U64
    is_enabled: Flag
    """Whether the cleaner runs. Otherwise nothing is deleted."""
    deletions: Annotated[list[PlannedDeletion], Counted()]
    """By stream, topic and partition."""


class VerifiedSegment(Reply, frozen=True):
    """The result of a check."""

    first_offset: U64
    next_offset: U64
    size: U64
    """Bytes that were read."""
    is_repaired: Flag
    """Whether it was damaged, and was replaced by an intact copy."""
    damages: Annotated[list[Damage], Counted()]
    """What is damaged now."""


class StartFinding(Reply, frozen=True):
    """What a start found."""

    level: Text8
    """``info``, ``warning`` or ``error``."""
    text: Text32


class StartReport(Reply, frozen=True):
    """The last start of the server."""

    started_at: U64
    last_stop: Text8
    """How the session before it ended: ``clean``, ``killed`` or ``crashed``."""
    finding_count: U32
    findings: Annotated[list[StartFinding], Counted()]
    """The first of them, errors before warnings."""
