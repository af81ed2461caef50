"""The row of each command, written above its class in ``commands``: everything that is defined once per command.

Everything that depends on the command alone is derived from its row and its fields: which codes exist, how requests and
replies are read and written on both sides of both wires, who may send it, whether it leaves a line in the audit log.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import msgspec

from courser.api.replies import Reply
from courser.model.permissions import Action

PRIVATE_CODE_MIN = 60_000
"""Codes from here on are Courser's own (docs/formats/private-commands.md); Iggy's end at 606."""


INTERNAL = 0
"""The code of commands that no client can send."""

NO_CONTENT, OK = 204, 200

SDK_0_5, SDK_0_10 = (0, 5), (0, 10)
"""Releases of the SDK that commands came with."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a command is sent over HTTP.

    A field that the path names comes from there. Of GET and DELETE the other fields come from the query, of POST and
    PUT from the JSON body.
    """

    method: str
    path: str
    """With fields in braces: ``/streams/{stream}``."""
    names: Mapping[str, str]
    """The fields that HTTP calls otherwise, by their name here."""
    status: int
    """Of a success."""

    def name_of(self, field: str) -> str:
        """What HTTP calls a field."""
        return self.names.get(field, field)


@dataclass(frozen=True, slots=True)
class CommandRow:
    """The facts about a command besides its fields."""

    kind: type["Command"]
    code: int
    """Its number on the classic wire, and on the wire of SDK 0.9 if it has no operation; or ``INTERNAL``."""
    reply: type[Reply] | None
    """None: the reply only says that the command was carried out."""
    operation: int
    """Its operation number on the wire of SDK 0.9; 0 if it has none and is sent with its code."""
    actions: tuple[Action, ...]
    """One of these permissions is required for what the command names. Empty: the handler checks."""
    is_public: bool
    """Whether it is allowed before login."""
    is_audited: bool
    """Whether it is written to the audit log: commands that cannot be undone, or that concern access."""
    order: tuple[str, ...]
    """Its fields in the order on the wire."""
    route: Route | None
    """None: it cannot be sent over HTTP."""
    since: tuple[int, int]
    """The first release of the SDK that has it: the wires of older ones do not know its code."""

    @property
    def is_private(self) -> bool:
        """Whether it is Courser's own."""
        return self.code >= PRIVATE_CODE_MIN


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of all commands."""

    row: ClassVar[CommandRow]


AnyCommand = TypeVar("AnyCommand", bound=Command)


def command(
    code: int,
    reply: type[Reply] | None = None,
    *actions: Action,
    operation: int = 0,
    is_public: bool = False,
    is_audited: bool = False,
    order: tuple[str, ...] = (),
    http: str = "",
    http_names: Mapping[str, str] | None = None,
    http_status: int = 0,
    since: tuple[int, int] = SDK_0_5,
) -> Callable[[type[AnyCommand]], type[AnyCommand]]:
    """Give a command its row. ``order`` is needed only if the fields have another order on the wire.

    ``http`` is a method and a path, such as ``GET /streams/{stream}``. The status of a success is 200 with a reply and
    204 without, unless ``http_status`` says otherwise.
    """
    route = None
    if http:
        method, path = http.split()
        route = Route(method, path, http_names or {}, http_status or (OK if reply is not None else NO_CONTENT))

    def add_row(kind: type[AnyCommand]) -> type[AnyCommand]:
        fields = order or kind.__struct_fields__
        kind.row = CommandRow(kind, code, reply, operation, actions, is_public, is_audited, fields, route, since)
        return kind

    return add_row
