"""Commands about what is stored, for whoever operates a server. ``commands`` offers them with all others."""

from courser.api import storage_replies as sr
from courser.api.fields import U64, Id
from courser.api.table import Command, command
from courser.model.identifiers import Identifier
from courser.model.permissions import Action


@command(
    60040,
    sr.OffsetsAtTime,
    Action.POLL_MESSAGES,
    http="GET /streams/{stream}/topics/{topic}/offsets",
)
class GetOffsetsAtTime(Command, frozen=True):
    """For every partition of a topic, the offset of the first message that is not older than a time."""

    stream: Identifier
    topic: Identifier
    timestamp: U64
    """Microseconds."""


@command(60041, sr.RetentionPlan, http="GET /retention")
class GetRetentionPlan(Command, frozen=True):
    """What the cleaner will have deleted by a time, in all topics that the user may view, if nothing is sent."""

    until: U64
    """Microseconds."""


@command(
    60042,
    sr.VerifiedSegment,
    Action.MANAGE_TOPIC,
    http="POST /streams/{stream}/topics/{topic}/partitions/{partition_id}/segments/{first_offset}/verification",
)
class VerifySegment(Command, frozen=True):
    """Check all of a sealed segment now. A damaged one is repaired if the archive has a copy."""

    stream: Identifier
    topic: Identifier
    partition_id: Id
    first_offset: U64
    """Which segment: that of its first message."""


@command(60043, sr.StartReport, Action.READ_SERVER, http="GET /start-report")
class GetStartReport(Command, frozen=True):
    """How the last session ended, and what the start of the server found and repaired."""
