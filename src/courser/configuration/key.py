"""A configuration key: path, spellings, grammar, default, and how far the server supports it.

A key that is the value of a field in a dataclass of settings is stated there, by ``setting``. Keys that switch a part
on, or that make up a value together with others, are constants beside such a dataclass.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias

from courser.model.setting_kinds import ANYTHING, SettingKind, Value

_SYSTEM = "system."
_KEY = "key"
"""Where the metadata of a field has its key."""


class KeyStatus(Enum):
    """How far the server supports a key."""

    LIVE = "live"
    """It takes effect."""
    IGNORED = "ignored"
    """A key of Iggy's stock files that Courser does not use: logs one warning."""


@dataclass(frozen=True, slots=True, eq=False)
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


AnyKey: TypeAlias = Key[Any]
"""A key whose value type does not matter."""


def value_of(key: Key[Value]) -> Value:
    """A field, of a dataclass of settings, that has the value of this key."""
    return field(default_factory=lambda: key.default, repr=not key.is_secret, metadata={_KEY: key})


def setting(
    path: str,
    kind: SettingKind[Value],
    default: Value,
    description: str,
    *,
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Value:
    """A field, of a dataclass of settings, that has the value of a key which is stated here and nowhere else."""
    return value_of(Key(path, kind, default, description, aliases=aliases, is_secret=is_secret))


def fields_with_keys(settings: type) -> Mapping[str, AnyKey]:
    """The fields of a dataclass of settings that have keys, by name."""
    return {field.name: field.metadata[_KEY] for field in fields(settings) if _KEY in field.metadata}


def key_of(settings: type, name: str) -> AnyKey:
    """The key of a field, for those who check its value."""
    return fields_with_keys(settings)[name]


def keys_in(names: Mapping[str, object]) -> Iterator[AnyKey]:
    """The keys that a module states, given its names: its constants, and the fields of its settings."""
    for value in names.values():
        if isinstance(value, Key):
            yield value
        elif isinstance(value, type) and is_dataclass(value) and value.__module__ == names["__name__"]:
            yield from fields_with_keys(value).values()


def variable_name(path: str) -> str:
    """The environment variable of a path, without its prefix."""
    return path.upper().replace(".", "_")


def unused_key(path: str, *, is_secret: bool = False, has_any_below: bool = False) -> Key[object]:
    """A key of Iggy's stock files that has no effect here."""
    status = KeyStatus.IGNORED
    return Key(path, ANYTHING, None, "not used", status=status, is_secret=is_secret, has_any_below=has_any_below)
