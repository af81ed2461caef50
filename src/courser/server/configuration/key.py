"""What a key is: its path, its spellings, its grammar, its default, and what becomes of it here."""

from dataclasses import dataclass
from enum import Enum
from typing import Generic

from courser.server.configuration.kinds import Kind, Value

_SYSTEM = "system."


class Status(Enum):
    """What becomes of a key."""

    LIVE = "live"
    """It takes effect."""
    IGNORED = "ignored"
    """A key of Iggy's stock files that has no meaning here: one warning."""
    REFUSED = "refused"
    """It switches on what is not built yet and what data would depend on: the start is refused."""
    LATER = "later"
    """It switches on a transport that is not built yet, and stock files do: one warning."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Key(Generic[Value]):
    """One row of the table."""

    path: str
    kind: Kind[Value]
    default: Value
    description: str
    aliases: tuple[str, ...] = ()
    """Other places where the same thing is set in the wild."""
    status: Status = Status.LIVE
    is_secret: bool = False
    has_any_below: bool = False
    """Whether the path is that of a table, or of an array of tables, whose contents nobody looks at."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every path by which it may be called. Iggy's newest files have no table ``system``."""
        paths = (self.path, *self.aliases)
        flat = (path.removeprefix(_SYSTEM) for path in paths if path.startswith(_SYSTEM))
        return tuple(dict.fromkeys((*paths, *flat)))

    def show(self, value: Value) -> str:
        """The value as TOML; a secret as stars."""
        return '"***"' if self.is_secret and value else self.kind.to_toml(value)


def variable_name(path: str) -> str:
    """The environment variable of a path, without its prefix."""
    return path.upper().replace(".", "_")
