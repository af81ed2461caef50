"""Commands that no client can send: what subscriptions and searches need of a topic, from the process that owns it.

They have no code and no encoding. Everything else about them is as with any other command. Topics are named by number.
"""

from courser.api.replies import Reply
from courser.api.scans import Hit, ScanGap, ScanOrder, ScanRequest
from courser.api.subscriptions import Selection
from courser.api.table import INTERNAL, Command, command
from courser.model.permissions import Action


class StartOffsets(Reply, frozen=True):
    """Where a subscription starts, by partition."""

    offsets: dict[int, int]


class RangeToScan(Reply, frozen=True):
    """Offsets of a partition, from ``first_offset`` up to but not including ``end_offset``."""

    partition_id: int
    first_offset: int
    end_offset: int
    frontier: int
    """When the message that a scan looks at first was stored."""
    message_count: int
    """How many messages there are, at most."""
    message_size: int
    """Bytes of one, on average over the partition."""


class RangesToScan(Reply, frozen=True):
    """What a scan looks at."""

    ranges: tuple[RangeToScan, ...]


class ScannedPiece(Reply, frozen=True):
    """What is in a piece of a partition."""

    next_offset: int
    """Where the next piece begins."""
    message_count: int
    size: int
    hits: list[Hit]
    gaps: list[ScanGap]
    undecoded_count: int
    """Messages that were too large to look for a JSON value in them."""
    first_time: int | None
    last_time: int | None
    """Of its messages; None if it has none."""
    spent: float
    """Seconds of processor time."""


@command(INTERNAL, StartOffsets, Action.POLL_MESSAGES)
class FindStartOffsets(Command, frozen=True):
    """Find the offset at which a subscription starts in each of some partitions."""

    stream: int
    topic: int
    partition_ids: tuple[int, ...]
    selection: Selection


@command(INTERNAL, RangesToScan, Action.POLL_MESSAGES)
class FindRangesToScan(Command, frozen=True):
    """Find the offsets that satisfy the bounds of a scan."""

    stream: int
    topic: int
    partition_ids: tuple[int, ...]
    request: ScanRequest

    @property
    def is_newest_first(self) -> bool:
        """Whether the scan begins at the end of each partition."""
        return self.request.order is ScanOrder.NEWEST


@command(INTERNAL, ScannedPiece, Action.POLL_MESSAGES)
class ScanPiece(Command, frozen=True):
    """Look for messages that satisfy conditions, in a limited part of a partition."""

    stream: int
    topic: int
    partition_id: int
    offset: int
    """Where to start."""
    end_offset: int
    count: int
    """How many messages to look at."""
    conditions: tuple[str, ...]
    payload_size_max: int
    """Bytes of the payload of a hit that are returned."""
