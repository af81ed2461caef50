"""Readable values of the catalog: fields by name, with secrets masked."""

import re
from collections.abc import Callable, Mapping

import msgspec

HIDDEN = "***"
"""Replaces a secret."""

_PASSWORD = re.compile(
    r"\$(argon2(?:id|i|d))\$(?:v=[0-9]{1,10}\$)?(m=[0-9]{1,10},t=[0-9]{1,10},p=[0-9]{1,10})"
    r"\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+"
)
"""An argon2 string. Parts are shown only if the whole string matches."""


def password_text(password_hash: object) -> str:
    """The algorithm and its parameters, without salt and hash. A string of another form is masked."""
    found = _PASSWORD.fullmatch(password_hash) if isinstance(password_hash, str) else None
    return f"{found[1]} {found[2]}" if found is not None else HIDDEN


SECRETS: Mapping[str, Callable[[object], str]] = {"password_hash": password_text, "token_hash": lambda _: HIDDEN}
"""Secret fields, and functions that return the text to show instead."""


def readable(value: object) -> object:
    """Convert to plain values: structures become dicts, bytes become hex, secrets are masked."""
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
    """The fields of a change or an entity, by name."""
    fields: dict[str, object] = {}
    for name in structure.__struct_fields__:
        value = getattr(structure, name)
        mask = SECRETS.get(name)
        fields[name] = mask(value) if mask is not None else readable(value)
    return fields
