"""Courser's own commands that look at a server and change nothing. ``commands`` offers them too."""

from courser.api import replies as r
from courser.api.fields import Id
from courser.api.table import Command, command
from courser.model.identifiers import Identifier
from courser.model.permissions import Action


@command(60002, r.TopicBounds, Action.POLL_MESSAGES, Action.SEND_MESSAGES)
class GetPartitionBounds(Command, frozen=True):
    """First and next offset of every partition of a topic, with the topic's identity."""

    stream: Identifier
    topic: Identifier


@command(60003, r.SegmentList, Action.READ_TOPIC)
class GetSegments(Command, frozen=True):
    """The segments of a partition."""

    stream: Identifier
    topic: Identifier
    partition_id: Id


@command(60015, r.TopicDurability, Action.READ_TOPIC)
class GetTopicDurability(Command, frozen=True):
    """The durability level of a topic: what an acknowledgement guarantees on this server."""

    stream: Identifier
    topic: Identifier


@command(60018, r.GroupLag, Action.READ_TOPIC)
class GetGroupLag(Command, frozen=True):
    """How far a consumer group is behind, in messages and in time."""

    stream: Identifier
    topic: Identifier
    group: Identifier


@command(60017, r.MetricsText, Action.READ_SERVER)
class GetMetrics(Command, frozen=True):
    """All metrics of the server."""
