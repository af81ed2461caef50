"""What is measured: loads, and the rows that each of them gives.

A connection waits for each reply before its next request, and has a stream of its own. A load is described by requests;
each program turns it into its own options.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum


class Unit(Enum):
    """What a figure counts, and which figures are better."""

    SPEED = "MB/s"
    REQUESTS = "requests/s"
    CPU = "us"

    @property
    def is_less_better(self) -> bool:
        return self is Unit.CPU


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table."""

    title: str
    unit: Unit

    def __str__(self) -> str:
        return f"{self.title}, {self.unit.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of so many connections, and the rows that they give."""

    name: str
    connection_count: int
    message_count: int
    """Messages in a request."""
    message_sizes: tuple[int, int]
    """Bytes of the smallest and of the largest message; chosen at random if they differ."""
    request_count: int
    """Requests of each connection."""
    sent: Measure
    polled: Measure | None = None
    """What was sent is read again, in requests of the same size."""
    cpu: Measure | None = None
    """CPU time of the server for each send."""

    @property
    def mean_size(self) -> float:
        """Bytes of a message."""
        return sum(self.message_sizes) / 2

    @property
    def total_size(self) -> int:
        """Bytes of all messages."""
        return int(self.connection_count * self.request_count * self.message_count * self.mean_size)

    @property
    def is_single(self) -> bool:
        return self.message_count == 1

    def scaled(self, share: float) -> "Load":
        return replace(self, request_count=int(self.request_count * share))


SEND_1 = Measure("1 producer, 1,000 x 1,000 B", Unit.SPEED)
SEND_8 = Measure("8 producers, 1,000 x 1,000 B", Unit.SPEED)
POLL_1 = Measure("1 consumer, 1,000 x 1,000 B", Unit.SPEED)
POLL_8 = Measure("8 consumers, 1,000 x 1,000 B", Unit.SPEED)
SEND_SMALL = Measure("1 producer, 1,000 x 100 B", Unit.SPEED)
SEND_MIXED = Measure("1 producer, 1,000 x 200 to 1,800 B", Unit.SPEED)
SINGLE_1 = Measure("1 producer, single messages", Unit.REQUESTS)
SINGLE_8 = Measure("8 producers, single messages", Unit.REQUESTS)
SINGLE_64 = Measure("64 producers, single messages", Unit.REQUESTS)
SINGLE_POLL = Measure("1 consumer, single messages", Unit.REQUESTS)
CPU_1 = Measure("server CPU for a single send, 1 connection", Unit.CPU)
CPU_8 = Measure("server CPU for a single send, 8 connections", Unit.CPU)
CPU_64 = Measure("server CPU for a single send, 64 connections", Unit.CPU)

MEASURES: Sequence[Measure] = (
    SEND_1,
    SEND_8,
    POLL_1,
    POLL_8,
    SEND_SMALL,
    SEND_MIXED,
    SINGLE_1,
    SINGLE_8,
    SINGLE_64,
    SINGLE_POLL,
    CPU_1,
    CPU_8,
    CPU_64,
)
"""In the order of the table."""


def _batches(name: str, connections: int, requests: int, sizes: tuple[int, int], **rows: Measure) -> Load:
    return Load(
        name=name,
        connection_count=connections,
        message_count=1_000,
        message_sizes=sizes,
        request_count=requests,
        sent=rows["sent"],
        polled=rows.get("polled"),
    )


def _singles(connections: int, requests: int, sent: Measure, cpu: Measure, polled: Measure | None = None) -> Load:
    return Load(
        name=f"single-{connections}",
        connection_count=connections,
        message_count=1,
        message_sizes=(1_000, 1_000),
        request_count=requests,
        sent=sent,
        polled=polled,
        cpu=cpu,
    )


_KILOBYTE = (1_000, 1_000)

LOADS: Sequence[Load] = (
    _batches("batches-1", 1, 2_000, _KILOBYTE, sent=SEND_1, polled=POLL_1),
    _batches("batches-8", 8, 250, _KILOBYTE, sent=SEND_8, polled=POLL_8),
    _batches("small", 1, 6_000, (100, 100), sent=SEND_SMALL),
    _batches("mixed", 1, 2_000, (200, 1_800), sent=SEND_MIXED),
    _singles(1, 20_000, SINGLE_1, CPU_1, SINGLE_POLL),
    _singles(8, 8_000, SINGLE_8, CPU_8),
    _singles(64, 1_000, SINGLE_64, CPU_64),
)
