"""What a subscription asks for, and what it gives: the messages of several topics as they arrive.

Not a command: the server sends these without being asked again. Browsers get them over WebSocket, and HTTP clients as
server-sent events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from courser.api.replies import Polled
from courser.errors import CourserError
from courser.model.identifiers import Identifier
from courser.model.messaging import PollingKind


class PayloadForm(Enum):
    """How the payload of a message is written in JSON."""

    NONE = "none"
    """Not at all: the subscriber only wants to know that messages have arrived."""
    BASE64 = "base64"
    TEXT = "text"
    """As a string, if it is UTF-8; otherwise in base64."""
    JSON = "json"
    """As it is, if it is JSON; otherwise in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The messages of one topic that a subscriber wants."""

    stream: Identifier
    topic: Identifier
    partition_ids: tuple[int, ...] | None = None
    """None: all partitions, also those that are created later."""
    start: PollingKind | None = None
    """Where to start. None: only messages that arrive from now on."""
    value: int = 0
    """The offset or the time in microseconds, if one of them is the start."""
    count: int = 1
    """How many of the newest messages of each partition, if the start is ``LAST``."""
    consumer: Identifier = 0
    """Whose stored offset the start ``NEXT`` means. Subscriptions store no offsets themselves."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """Where to continue: the next offset by partition. Overrides the start for these partitions."""
    payload_form: PayloadForm = PayloadForm.BASE64


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that cannot be delivered, up to but not including ``end_offset``."""

    first_offset: int
    end_offset: int
    reason: str
    """``trimmed``, ``lost`` or ``damaged``."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages of one partition. Their memory belongs to the session until its reply is sent."""

    selection: Selection
    polled: Polled
    next_offset: int
    """Where the next delivery from this partition starts."""
    gaps: tuple[Gap, ...]
    """What was passed over."""


@dataclass(frozen=True, slots=True)
class TopicEnded:
    """The last event of a topic: it was deleted, or the subscriber may not read it any more."""

    selection: Selection
    error: CourserError


Event: TypeAlias = Delivery | TopicEnded
