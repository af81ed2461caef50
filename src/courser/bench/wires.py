"""What an actor asks of a server, whichever wire it speaks.

The wires share no code with the server's codecs: a mistake there cannot hide here.
"""

import struct
from dataclasses import dataclass
from typing import Protocol

from courser.bench.samples import Sample

OFFSET, FIRST, NEXT = 1, 3, 5
"""Where a poll begins."""

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
    """A request that is sent again and again, by one connection."""

    frame: bytearray
    message_count: int
    payload_size: int


@dataclass(slots=True)
class PollRequest:
    """A request that is sent again and again, by one connection."""

    frame: bytearray


@dataclass(slots=True)
class Polled:
    """What came back; the messages themselves are still in the buffer of the connection."""

    message_count: int
    size: int
    """Bytes of the reply."""
    first_offset: int = 0
    """Of the first message; without meaning if there is none."""
    origin_timestamp: int = 0
    """Of the first message: when its producer made it, microseconds since 1970."""


class Wire(Protocol):
    """One connection that is logged in and waits for each answer. All methods raise ``CourserError``."""

    def create_stream(self, name: str) -> None:
        """Make a stream."""

    def delete_stream(self, name: str) -> None:
        """Remove a stream and all that is in it."""

    def create_topic(self, place: TopicName, partition_count: int, *, is_synced: bool = False) -> None:
        """Make a topic. ``is_synced`` asks for acknowledgements after a sync."""

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        """How many partitions and messages a topic has."""

    def create_group(self, place: TopicName, name: str) -> None:
        """Make a consumer group."""

    def join_group(self, place: TopicName, name: str) -> None:
        """Become a member."""

    def assigned(self, place: TopicName, name: str) -> list[int] | None:
        """The partitions of this member; None if the server chooses one of them for each poll."""

    def make_send(self, place: TopicName, partition_id: int | None, sample: Sample) -> SendRequest:
        """A request for ``send``. Without a partition the server takes them in turn."""

    def stamp(self, request: SendRequest, microseconds: int) -> None:
        """Let all messages be made at this time."""

    def send(self, request: SendRequest) -> None:
        """Send messages and wait for the acknowledgement."""

    def make_poll(
        self, place: TopicName, partition_id: int | None, *, group: str | None = None, auto_commit: bool = False
    ) -> PollRequest:
        """A request for ``poll``."""

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> Polled:
        """Read messages into the buffer of the connection."""

    def payload_size(self, polled: Polled) -> int:
        """Bytes of the payloads that the last poll returned (and of their headers)."""

    def close(self) -> None:
        """Close the connection."""


def text8(text: str) -> bytes:
    """A text with its length in one byte, as both wires have it."""
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def name_of(text: str) -> bytes:
    """A stream or a group by its name."""
    return b"\x02" + text8(text)


def topic_of(place: TopicName) -> bytes:
    """A topic by its names."""
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
