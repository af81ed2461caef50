"""How clients refer to streams, topics and consumers: by number or by name."""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

import msgspec

Identifier: TypeAlias = int | str
"""A number or a name. The name "0" is not the number 0."""


class TopicAddress(NamedTuple):
    """Where a topic is found: what the parts of a broker tell each other."""

    stream_id: int
    topic_id: int


class ConsumerKind(IntEnum):
    """Offsets of single consumers and of groups are separate."""

    CONSUMER = 1
    GROUP = 2


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """The consumer that polls or stores an offset, as named by the client."""

    kind: ConsumerKind
    identifier: Identifier
