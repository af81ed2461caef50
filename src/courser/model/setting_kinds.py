"""Kinds of setting values: how each is read from TOML, read from plain text, and written as TOML.

The server's configuration and pipeline files share them. Every reader raises ``ValueError`` for a value that it does
not accept; ``SettingKind.expected`` is the text for the user.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from courser.model.quantities import (
    SIZE_EXPECTED,
    format_byte_size,
    format_duration,
    parse_byte_size,
    parse_duration,
)

Value = TypeVar("Value")

_TEXT_LENGTH_MAX = 4096
"""Characters. Longer values are mistakes, such as a file pasted into a setting."""


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[Value]):
    """How values of one type are parsed and printed."""

    name: str
    """For the reference: "size", "duration"."""
    expected: str
    """What a valid value looks like."""
    from_toml: Callable[[object], Value]
    from_text: Callable[[str], Value]
    """For environment variables and the command line."""
    to_toml: Callable[[Value], str]
    row_fields: frozenset[str] = frozenset()
    """Of a list of tables: their fields. Each has environment variables of its own, such as ``NAME_0_FIELD``."""


def quoted(text: str) -> str:
    # TOML accepts every JSON escape, but does not allow a raw DEL, which JSON leaves unescaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# --- switches, numbers, quantities --------------------------------------------------------------------


def _bool_from_toml(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _bool_from_text(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def bool_to_toml(value: bool) -> str:
    """As TOML spells it."""
    return "true" if value else "false"


BOOL = SettingKind("switch", "true or false", _bool_from_toml, _bool_from_text, bool_to_toml)
OPTIONAL_BOOL: SettingKind[bool | None] = SettingKind(
    "switch",
    "true or false",
    _bool_from_toml,
    _bool_from_text,
    lambda value: "" if value is None else bool_to_toml(value),
)
"""None if the setting is absent; then it is not written either."""


def integer(low: int, high: int) -> SettingKind[int]:
    """A whole number within bounds."""

    def check(number: int) -> int:
        if not low <= number <= high:
            raise ValueError(number)
        return number

    def from_toml(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(value)
        return check(value)

    def from_text(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,20}", text.strip()):
            raise ValueError(text)
        return check(int(text))

    return SettingKind("number", f"a whole number from {low:,} to {high:,}", from_toml, from_text, str)


def size(low: int = 0, high: int = 2**63, *, multiple: int = 1) -> SettingKind[int]:

    def check(number: int) -> int:
        if not low <= number <= high or number % multiple:
            raise ValueError(number)
        return number

    def from_toml(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return check(value)
        return check(parse_byte_size(checked_text(value)))

    bounds = f", at least {format_byte_size(low)}" if low else ""
    bounds += f", at most {format_byte_size(high)}" if high < 2**63 else ""
    bounds += f", a multiple of {multiple}" if multiple > 1 else ""
    return SettingKind(
        "size", SIZE_EXPECTED + bounds, from_toml, lambda text: check(parse_byte_size(text)), _size_to_toml
    )


def _size_to_toml(value: int) -> str:
    return quoted(format_byte_size(value))


def duration(low: int = 0, *, or_zero: bool = False) -> SettingKind[int]:
    """Microseconds, at least ``low``. ``or_zero``: 0, which turns the feature off, is allowed too."""

    def from_text(text: str) -> int:
        microseconds = parse_duration(text)
        if microseconds < low and (microseconds or not or_zero):
            raise ValueError(text)
        return microseconds

    def from_toml(value: object) -> int:
        # A number without a unit is ambiguous, unless it is 0.
        return from_text("0" if value == 0 and not isinstance(value, bool) else checked_text(value))

    bounds = f" of at least {format_duration(low)}" if low else ""
    nothing = ', or "none"' if or_zero or not low else ""
    expected = f'a duration{bounds} such as "30s", "1 m" or "2 days 4 hours"{nothing}'
    return SettingKind("duration", expected, from_toml, from_text, lambda value: quoted(format_duration(value)))


# --- texts --------------------------------------------------------------------------------------------


def checked_text(value: object) -> str:
    """The value, which must be text. Raises ``ValueError``."""
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def checked_words(value: object) -> str:
    """The value, which must be printable text and not blank. Raises ``ValueError``."""
    text = checked_text(value)
    if not text.strip() or len(text) > _TEXT_LENGTH_MAX or not text.isprintable():
        raise ValueError(value)
    return text


def _path(value: object) -> Path:
    try:
        return Path(checked_words(value)).expanduser()
    except RuntimeError as error:
        # "~name/..." for a user who does not exist.
        raise ValueError(value) from error


def _path_or_nothing(value: object) -> Path | None:
    return _path(value) if value != "" else None


PATH = SettingKind("path", "the path of a directory", _path, _path, lambda value: quoted(str(value)))
FILE: SettingKind[Path | None] = SettingKind(
    "path", "the path of a file", _path_or_nothing, _path_or_nothing, lambda value: quoted(str(value or ""))
)
TEXT = SettingKind("text", "a text that is not empty", checked_words, checked_words, quoted)
OPTIONAL_TEXT = SettingKind("text", "a text", checked_text, checked_text, quoted)
"""May be empty: as in stock files, where it means that there is none."""


def choice(*words: str) -> SettingKind[str]:
    """One of a list of words."""

    def from_text(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(text)
        return text.strip().lower()

    expected = ", ".join(quoted(word) for word in words[:-1]) + f" or {quoted(words[-1])}"
    return SettingKind("word", expected, lambda value: from_text(checked_text(value)), from_text, quoted)


# --- values that are not checked ----------------------------------------------------------------------


def _anything_to_toml(value: object) -> str:
    if isinstance(value, bool):
        return bool_to_toml(value)
    return str(value) if isinstance(value, int | float) else quoted(str(value))


ANYTHING: SettingKind[object] = SettingKind(
    "any", "an Iggy key that Courser does not use", lambda value: value, lambda text: text, _anything_to_toml
)
"""For keys that Courser does not use."""
