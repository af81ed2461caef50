"""What both protocols have in common: the places and requests of a client, and how names are encoded."""

import struct
from dataclasses import dataclass
from typing import Protocol

from benchmarks.samples import SampleBatch

OFFSET, FIRST = 1, 3
"""Where a poll starts."""

_U32 = struct.Struct("<I")
_STRATEGY = struct.Struct("<BQIB")
"""kind, value, count, auto-commit: the end of a poll."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic."""

    stream: str
    topic: str


@dataclass(slots=True)
class SendRequest:
    """A send that one connection repeats."""

    frame: bytearray
    message_count: int


@dataclass(slots=True)
class PollRequest:
    """A poll that one connection repeats."""

    frame: bytearray


@dataclass(slots=True)
class PollResult:
    """The reply to a poll. The messages are still in the connection's buffer."""

    message_count: int
    size: int
    """Size of the reply in bytes."""


class Wire(Protocol):
    """A connection that is logged in. All methods raise ``CourserError`` if the server refuses a request."""

    def create_stream(self, name: str) -> None:
        """Create a stream."""

    def delete_stream(self, name: str) -> None:
        """Delete a stream and all its topics."""

    def create_topic(self, place: TopicName, partition_count: int) -> None:
        """Create a topic."""

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        """The numbers of partitions and messages of a topic."""

    def make_send(self, place: TopicName, partition_id: int, sample: SampleBatch) -> SendRequest:
        """Prepare a request for ``send``."""

    def send(self, request: SendRequest) -> None:
        """Send messages and wait for the acknowledgement."""

    def make_poll(self, place: TopicName, partition_id: int) -> PollRequest:
        """Prepare a request for ``poll``."""

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> PollResult:
        """Read messages into the connection's buffer."""

    def close(self) -> None:
        """Close the connection."""


def text8(text: str) -> bytes:
    """Encode a text with its length in one byte, as both protocols do."""
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def name_of(text: str) -> bytes:
    """Encode the name of a stream."""
    return b"\x02" + text8(text)


def topic_of(place: TopicName) -> bytes:
    """Encode the names of a topic and its stream."""
    return name_of(place.stream) + name_of(place.topic)


def send_target(place: TopicName, partition_id: int, message_count: int) -> bytes:
    """What both protocols put before the messages of a send."""
    target = topic_of(place) + b"\x02\x04" + _U32.pack(partition_id) + _U32.pack(message_count)
    return _U32.pack(len(target)) + target


def poll_body(place: TopicName, partition_id: int) -> bytes:
    """A poll without its header, the same in both protocols. ``aim`` fills in the strategy."""
    consumer = b"\x01\x01\x04" + bytes(4)
    return consumer + topic_of(place) + b"\x01" + _U32.pack(partition_id) + bytes(_STRATEGY.size)


def aim(request: PollRequest, kind: int, value: int, count: int) -> None:
    """Say where a poll begins and how many messages it reads."""
    frame = request.frame
    _STRATEGY.pack_into(frame, len(frame) - _STRATEGY.size, kind, value, count, 0)
