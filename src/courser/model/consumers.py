"""Kinds of consumers: a single consumer or a group."""

from enum import IntEnum


class ConsumerKind(IntEnum):
    """Offsets of single consumers and of groups are separate."""

    CONSUMER = 1
    GROUP = 2
