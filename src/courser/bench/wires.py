"""The interface of both protocols for actors.

The implementations share no code with the server's codecs, so that a bug there cannot go unnoticed here.
"""

import struct
from dataclasses import dataclass
from typing import Protocol

from courser.bench.samples import SampleBatch

OFFSET, FIRST, NEXT = 1, 3, 5
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
    payload_size: int


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
    first_offset: int = 0
    """The offset of the first message, if there is one."""
    origin_timestamp: int = 0
    """When the producer created the first message, in microseconds since 1970."""


class Wire(Protocol):
    """A connection that is logged in and waits for each reply. All methods raise ``CourserError``."""

    def create_stream(self, name: str) -> None:
        """Create a stream."""

    def delete_stream(self, name: str) -> None:
        """Delete a stream and all its topics."""

    def create_topic(self, place: TopicName, partition_count: int, *, is_synced: bool = False) -> None:
        """Create a topic. With ``is_synced``, sends are acknowledged after a sync."""

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        """The numbers of partitions and messages of a topic."""

    def create_group(self, place: TopicName, name: str) -> None:
        """Create a consumer group."""

    def join_group(self, place: TopicName, name: str) -> None:
        """Join a consumer group."""

    def assigned(self, place: TopicName, name: str) -> list[int] | None:
        """The partitions of this member; None if the server chooses one for each poll."""

    def make_send(self, place: TopicName, partition_id: int | None, sample: SampleBatch) -> SendRequest:
        """Prepare a request for ``send``. Without a partition, the server chooses them in turn."""

    def stamp(self, request: SendRequest, microseconds: int) -> None:
        """Set the creation time of all messages."""

    def send(self, request: SendRequest) -> None:
        """Send messages and wait for the acknowledgement."""

    def make_poll(
        self, place: TopicName, partition_id: int | None, *, group: str | None = None, auto_commit: bool = False
    ) -> PollRequest:
        """Prepare a request for ``poll``."""

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> PollResult:
        """Read messages into the connection's buffer."""

    def payload_size(self, polled: PollResult) -> int:
        """Size in bytes of the payloads, including user headers, that the last poll returned."""

    def close(self) -> None:
        """Close the connection."""


def text8(text: str) -> bytes:
    """Encode a text with its length in one byte, as both protocols do."""
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def name_of(text: str) -> bytes:
    """Encode the name of a stream or group."""
    return b"\x02" + text8(text)


def topic_of(place: TopicName) -> bytes:
    """Encode the names of a topic and its stream."""
    return name_of(place.stream) + name_of(place.topic)


def send_target(place: TopicName, partition_id: int | None, message_count: int) -> bytes:
    """What both wires put before the messages of a send. Without a partition the server chooses one."""
    where = b"\x01\x00" if partition_id is None else b"\x02\x04" + _U32.pack(partition_id)
    target = topic_of(place) + where + _U32.pack(message_count)
    return _U32.pack(len(target)) + target


def poll_body(place: TopicName, partition_id: int | None, group: str | None, *, auto_commit: bool) -> bytes:
    """A poll without its header, as both wires have it. ``aim`` fills in the strategy."""
    consumer = b"\x01\x01\x04" + bytes(4) if group is None else b"\x02" + name_of(group)
    partition = b"\x00" + bytes(4) if partition_id is None else b"\x01" + _U32.pack(partition_id)
    return consumer + topic_of(place) + partition + _STRATEGY.pack(0, 0, 0, auto_commit)


def aim(request: PollRequest, kind: int, value: int, count: int) -> None:
    """Say where a poll begins and how many messages it reads."""
    frame = request.frame
    _STRATEGY.pack_into(frame, len(frame) - _STRATEGY.size, kind, value, count, frame[-1])
