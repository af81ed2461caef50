"""Partitioning of sends, and where a poll starts."""

from enum import IntEnum
from typing import TypeAlias

import msgspec


class Balanced(msgspec.Struct, frozen=True, gc=False):
    """The topic's partitions in turn, one batch each."""


class ToPartition(msgspec.Struct, frozen=True, gc=False):
    """The partition that the client names."""

    partition_id: int


class ByKey(msgspec.Struct, frozen=True, gc=False):
    """XXH32 of the key modulo the number of partitions."""

    key: bytes


Partitioning: TypeAlias = Balanced | ToPartition | ByKey


class PollingKind(IntEnum):
    """Where a poll starts; the numbers are those of the wire."""

    OFFSET = 1
    """At the offset given as value."""
    TIMESTAMP = 2
    """At the first message whose server time is not before the value, in microseconds."""
    FIRST = 3
    """At the oldest message."""
    LAST = 4
    """So that the newest messages are returned, up to the requested count."""
    NEXT = 5
    """After the stored offset of the consumer; like ``FIRST`` if there is none."""


class Transport(IntEnum):
    """How a client is connected; the numbers are those of the wire."""

    TCP = 1
    QUIC = 2
    HTTP = 3
    WEBSOCKET = 4
