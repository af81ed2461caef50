"""What a scan of a topic asks for, and what it gives: messages in the order of time that satisfy conditions.

Not a command: the answer is a series of events, and ends when everything was looked at or enough was found.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from courser.api.subscriptions import Gap
from courser.model.identifiers import Identifier

HIT_COUNT_MAX = 10_000
HIT_SIZE_MAX = 16 * 1024 * 1024
"""Messages that one scan returns, at most, and bytes of their payloads: they are sorted in memory."""


class ScanOrder(Enum):
    """In which order messages are looked at."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """Which messages of a topic are wanted."""

    stream: Identifier
    topic: Identifier
    partition_ids: tuple[int, ...] | None = None
    """None: all."""
    conditions: tuple[str, ...] = ()
    """All of them must be satisfied: ``records.message_filter``."""
    order: ScanOrder = ScanOrder.NEWEST
    first_offset: int = 0
    end_offset: int | None = None
    """Offsets from ``first_offset`` up to but not including ``end_offset``, in every partition."""
    first_time: int = 0
    end_time: int | None = None
    """The same for times in microseconds."""
    count: int = 100
    """How many messages to find."""
    payload_size_max: int = 16 * 1024
    """Bytes of a payload that are returned: the rest of a larger one is left out."""
    positions: Mapping[int, int] = field(default_factory=dict)
    """Where an earlier scan with the same conditions stopped, by partition. See ``ScanProgress``."""


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """Which offsets of a partition are looked at, up to but not including ``end_offset``."""

    partition_id: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ScanStarted:
    """The first event of a search."""

    bounds: tuple[ScanBounds, ...]
    message_count: int
    """Messages to look at: an upper bound."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that satisfies all conditions."""

    partition_id: int
    offset: int
    timestamp: int
    origin_timestamp: int
    message_id: int
    payload: bytes
    """Its first bytes."""
    payload_size: int
    """Bytes of the whole payload."""
    headers: bytes
    """The block of user headers."""


@dataclass(frozen=True, slots=True)
class ScanGap:
    """Messages of a partition that cannot be looked at."""

    partition_id: int
    gap: Gap


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """How far a scan has got."""

    scanned_count: int
    """Messages that were looked at."""
    scanned_size: int
    """Their bytes."""
    found_count: int
    """Messages that were returned."""
    undecoded_count: int
    """Messages that were too large to look for a JSON value in them. They count as not matching."""
    positions: Mapping[int, int]
    """By partition: another scan with these continues here. Newest first, everything from this offset on is done;
    oldest first, everything below it."""


@dataclass(frozen=True, slots=True)
class ScanDone:
    """The last event of a search."""

    progress: ScanProgress
    is_complete: bool
    """Whether everything was looked at. Otherwise as many messages as wanted were found."""


ScanEvent: TypeAlias = ScanStarted | Hit | ScanGap | ScanProgress | ScanDone
