"""How clients name things: by number or by name."""

from typing import TypeAlias

import msgspec

from courser.model.consumers import ConsumerKind

Identifier: TypeAlias = int | str
"""A number, or a name. A name never finds a number: "0" is not 0."""


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """Who polls or stores an offset, as the client says it."""

    kind: ConsumerKind
    identifier: Identifier
