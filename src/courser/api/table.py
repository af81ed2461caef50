"""What is said once about each command: its row, written above its class in ``commands``.

Everything that depends on the command alone is derived from its row and its fields: which codes exist, how requests and
replies are read and written on both sides of both wires, who may send it, whether it leaves a line in the audit log.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import msgspec

from courser.api.replies import Reply
from courser.model.permissions import Action

PRIVATE_CODE_MIN = 60_000
"""Codes from here on are Courser's own (docs/formats/private-commands.md); Iggy's end at 606."""


@dataclass(frozen=True, slots=True)
class CommandRow:
    """What is known about a command besides its fields."""

    kind: type["Command"]
    code: int
    """Its number on the classic wire, and on the wire of SDK 0.9 if it has no operation."""
    reply: type[Reply] | None
    """None: the client learns only that it was done."""
    operation: int
    """Its number on the wire of SDK 0.9, if it has one there; 0: it travels under its code."""
    actions: tuple[Action, ...]
    """Permissions of which one is required, at what the command names. Empty: the handler decides."""
    is_public: bool
    """Whether it is allowed before login."""
    is_audited: bool
    """Whether it leaves a line in the audit log: what cannot be undone, and what concerns access."""
    order: tuple[str, ...]
    """Its fields in the order in which they travel."""

    @property
    def is_private(self) -> bool:
        """Whether it is Courser's own."""
        return self.code >= PRIVATE_CODE_MIN


class Command(msgspec.Struct, frozen=True, gc=False):
    """The base of all commands."""

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
) -> Callable[[type[AnyCommand]], type[AnyCommand]]:
    """Give a command its row. ``order`` is needed only if its fields travel in another order than they are declared."""

    def add_row(kind: type[AnyCommand]) -> type[AnyCommand]:
        fields = order or kind.__struct_fields__
        kind.row = CommandRow(kind, code, reply, operation, actions, is_public, is_audited, fields)
        return kind

    return add_row
