"""What an actor asks of a server, whichever wire it speaks.

The wires share no code with the server's codecs: a mistake there cannot hide here.
"""

from dataclasses import dataclass
from typing import Protocol

from courser.bench.samples import SampleBatch

OFFSET, FIRST, NEXT = 1, 3, 5
"""Where a poll begins."""


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
class PollResult:
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

    def make_send(self, place: TopicName, partition_id: int | None, sample: SampleBatch) -> SendRequest:
        """A request for ``send``. Without a partition the server takes them in turn."""

    def stamp(self, request: SendRequest, microseconds: int) -> None:
        """Let all messages be made at this time."""

    def send(self, request: SendRequest) -> None:
        """Send messages and wait for the acknowledgement."""

    def make_poll(
        self, place: TopicName, partition_id: int | None, *, group: str | None = None, auto_commit: bool = False
    ) -> PollRequest:
        """A request for ``poll``."""

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> PollResult:
        """Read messages into the buffer of the connection."""

    def payload_size(self, polled: PollResult) -> int:
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
