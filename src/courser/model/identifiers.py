"""How clients name things: by number or by name."""

from typing import NamedTuple, TypeAlias

import msgspec

from courser.model.consumers import ConsumerKind

Identifier: TypeAlias = int | str
"""A number, or a name. A name never finds a number: "0" is not 0."""


class TopicAddress(NamedTuple):
    """Where a topic is found: what the parts of a broker tell each other."""

    stream_id: int
    topic_id: int


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """Who polls or stores an offset, as the client says it."""

    kind: ConsumerKind
    identifier: Identifier
