"""A configuration key: path, spellings, grammar, default, and how far the server supports it."""

from dataclasses import dataclass
from enum import Enum
from typing import Generic

from courser.model.setting_kinds import ANYTHING, SettingKind, Value

_SYSTEM = "system."


class KeyStatus(Enum):
    """How far the server supports a key."""

    LIVE = "live"
    """It takes effect."""
    IGNORED = "ignored"
    """A key of Iggy's stock files that Courser does not use: logs one warning."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Key(Generic[Value]):
    """One row of the table."""

    path: str
    kind: SettingKind[Value]
    default: Value
    description: str
    aliases: tuple[str, ...] = ()
    """Other paths that existing files use for the same setting."""
    status: KeyStatus = KeyStatus.LIVE
    is_secret: bool = False
    has_any_below: bool = False
    """Whether the path names a table, or an array of tables, whose contents are not checked."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every path that sets this key. Iggy's newest files have no table ``system``."""
        paths = (self.path, *self.aliases)
        flat = (path.removeprefix(_SYSTEM) for path in paths if path.startswith(_SYSTEM))
        return tuple(dict.fromkeys((*paths, *flat)))

    def show(self, value: Value) -> str:
        """The value as TOML; a secret is masked."""
        return '"***"' if self.is_secret and value else self.kind.to_toml(value)


def variable_name(path: str) -> str:
    """The environment variable of a path, without its prefix."""
    return path.upper().replace(".", "_")


def unused_key(path: str, *, is_secret: bool = False, has_any_below: bool = False) -> Key[object]:
    """A key of Iggy's stock files that has no effect here."""
    return Key(
        path=path,
        kind=ANYTHING,
        default=None,
        description="not used",
        status=KeyStatus.IGNORED,
        is_secret=is_secret,
        has_any_below=has_any_below,
    )
