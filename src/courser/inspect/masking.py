"""Values of the catalog for people: fields by their names, ids and uuids as they are, secrets never."""

import re
from collections.abc import Callable, Mapping

import msgspec

HIDDEN = "***"
"""Stands where a secret is."""

_PASSWORD = re.compile(
    r"\$(argon2(?:id|i|d))\$(?:v=[0-9]{1,10}\$)?(m=[0-9]{1,10},t=[0-9]{1,10},p=[0-9]{1,10})"
    r"\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+"
)
"""An argon2 string. Only what matches it whole has parts that may be shown."""


def password_text(password_hash: object) -> str:
    """The algorithm and its parameters; nothing of salt and hash, and nothing at all of what is not understood."""
    found = _PASSWORD.fullmatch(password_hash) if isinstance(password_hash, str) else None
    return f"{found[1]} {found[2]}" if found is not None else HIDDEN


def _hide(_secret: object) -> str:
    return HIDDEN


SECRETS: Mapping[str, Callable[[object], str]] = {"password_hash": password_text, "token_hash": _hide}
"""Fields that are never shown as they are, and what is shown instead."""


def readable(value: object) -> object:
    """Plain values: structures become dicts by field name, bytes become hex, secrets are masked."""
    if isinstance(value, msgspec.Struct):
        return readable_fields(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    return value


def readable_fields(structure: msgspec.Struct) -> dict[str, object]:
    """The fields of a command or an entity, by name."""
    fields: dict[str, object] = {}
    for name in structure.__struct_fields__:
        value = getattr(structure, name)
        mask = SECRETS.get(name)
        fields[name] = mask(value) if mask is not None else readable(value)
    return fields
