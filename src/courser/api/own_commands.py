"""Commands that Iggy does not have, in a range of codes of their own. ``commands`` offers them with all others."""

from typing import Annotated

from courser.api import replies as r
from courser.api.fields import U32, U64, Counted, Flag, Id, Text32
from courser.api.table import Command, command
from courser.model.identifiers import Consumer, Identifier
from courser.model.permissions import Action
from courser.records.message_filter import FILTER_COUNT_MAX

POSITION_COUNT_MAX = 1000
"""Partitions that one request may wait for: as many as a topic is created with."""


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


@command(
    60002,
    r.TopicBounds,
    Action.POLL_MESSAGES,
    Action.SEND_MESSAGES,
    http="GET /streams/{stream}/topics/{topic}/bounds",
)
class GetPartitionBounds(Command, frozen=True):
    """First and next offset of every partition of a topic, with the topic's identity."""

    stream: Identifier
    topic: Identifier


@command(
    60003,
    r.SegmentList,
    Action.READ_TOPIC,
    http="GET /streams/{stream}/topics/{topic}/partitions/{partition_id}/segments",
)
class GetSegments(Command, frozen=True):
    """The segments of a partition."""

    stream: Identifier
    topic: Identifier
    partition_id: Id


@command(60020, r.TopicMaintenance, Action.READ_TOPIC, http="GET /streams/{stream}/topics/{topic}/maintenance")
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


# --- consumer groups, from outside --------------------------------------------------------------------


@command(
    60018,
    r.GroupLag,
    Action.READ_TOPIC,
    http="GET /streams/{stream}/topics/{topic}/consumer-groups/{group}/lag",
)
class GetGroupLag(Command, frozen=True):
    """How far a consumer group is behind, in messages and in time."""

    stream: Identifier
    topic: Identifier
    group: Identifier


@command(
    60012,
    None,
    Action.READ_TOPIC,
    is_audited=True,
    http="PUT /streams/{stream}/topics/{topic}/consumer-groups/{group}/offsets",
)
class ResetGroupOffsets(Command, frozen=True):
    """Set where a consumer group continues to read, without being a member; all partitions or none."""

    stream: Identifier
    topic: Identifier
    group: Identifier
    is_forced: Flag
    """Whether to remove the members first. They have to join again. Otherwise a group with members is refused."""
    offsets: Annotated[tuple[tuple[U32, U64], ...], Counted(POSITION_COUNT_MAX)]
    """A partition, and the next offset that the group reads there. At offset 0 nothing remains stored."""


# --- metrics ------------------------------------------------------------------------------------------


@command(60017, r.MetricsText, Action.READ_SERVER)
class GetMetrics(Command, frozen=True):
    """All metrics of the server."""
