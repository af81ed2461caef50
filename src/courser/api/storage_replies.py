"""Replies about what is stored: to the commands of ``storage_commands``."""

from typing import Annotated

from courser.api.fields import U32, U64, Counted, Flag, Text8, Text32
from courser.api.replies import Damage, Reply


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
