"""Kinds of setting values: how each is read from TOML, read from plain text, and written as TOML.

The server's configuration and pipeline files share them. Every reader raises ``ValueError`` for a value that it does
not accept; ``SettingKind.expected`` is the text for the user.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from courser.model.quantities import (
    EXPIRY_EXPECTED,
    NEVER,
    SIZE_EXPECTED,
    TOPIC_SIZE_EXPECTED,
    format_byte_size,
    format_duration,
    parse_byte_size,
    parse_duration,
    parse_expiry,
    parse_max_topic_size,
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


def _expiry_from_text(text: str) -> int:
    expiry = parse_expiry(text)
    if expiry is None:
        # This is the server's default itself, so "server_default" would refer to itself.
        raise ValueError(text)
    return expiry


def _expiry_to_toml(value: int) -> str:
    return quoted("none" if value == NEVER else format_duration(value))


EXPIRY = SettingKind(
    "expiry", EXPIRY_EXPECTED, lambda value: _expiry_from_text(checked_text(value)), _expiry_from_text, _expiry_to_toml
)


def topic_size(low: int) -> SettingKind[int]:
    """Bytes of a topic, at least ``low``, or ``NEVER``."""

    def from_text(text: str) -> int:
        limit = parse_max_topic_size(text)
        if limit is None or limit < low:
            raise ValueError(text)
        return limit

    def from_toml(value: object) -> int:
        return from_text(str(value) if isinstance(value, int) and not isinstance(value, bool) else checked_text(value))

    def to_toml(value: int) -> str:
        return quoted("unlimited" if value == NEVER else format_byte_size(value))

    return SettingKind(
        "size", f"{TOPIC_SIZE_EXPECTED}, and at least {format_byte_size(low)}", from_toml, from_text, to_toml
    )


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


def named(values: Mapping[str, Value]) -> SettingKind[Value]:
    """One of a list of words, each of which stands for a value."""

    def from_text(text: str) -> Value:
        word = text.strip().lower()
        if word not in values:
            raise ValueError(text)
        return values[word]

    def to_toml(value: Value) -> str:
        return next(quoted(word) for word, meant in values.items() if meant == value)

    *others, last = map(quoted, values)
    expected = f"{', '.join(others)} or {last}"
    return SettingKind("word", expected, lambda value: from_text(checked_text(value)), from_text, to_toml)


def choice(*words: str) -> SettingKind[str]:
    """One of a list of words."""
    return named({word: word for word in words})


def _words_from_toml(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return _words_from_text(checked_text(value))
    # Stock files have empty texts in their lists.
    return tuple(word for word in (checked_text(item).strip() for item in value) if word)


def _words_from_text(text: str) -> tuple[str, ...]:
    words = (word.strip().strip('"') for word in text.strip().removeprefix("[").removesuffix("]").split(","))
    return tuple(word for word in words if word)


WORDS: SettingKind[tuple[str, ...]] = SettingKind(
    "list",
    'a list of texts such as ["GET", "POST"], or a text with commas',
    _words_from_toml,
    _words_from_text,
    lambda value: "[" + ", ".join(map(quoted, value)) + "]",
)


# --- addresses -------------------------------------------------------------------------------------------

_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen at."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> Address:
    host, colon, port = checked_words(value).strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(value)
    if not colon or not host or " " in host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _PORT_MAX:
        raise ValueError(value)
    return Address(host, int(port))


ADDRESS = SettingKind(
    "address",
    f'host and port such as "127.0.0.1:8090" or "[::1]:8090", with a port from 0 to {_PORT_MAX}',
    _address,
    _address,
    lambda value: quoted(str(value)),
)


# --- values that are not checked ----------------------------------------------------------------------


def value_to_toml(value: object) -> str:
    """A truth value, a number or a text as TOML spells it."""
    if isinstance(value, bool):
        return bool_to_toml(value)
    return str(value) if isinstance(value, int | float) else quoted(str(value))


ANYTHING: SettingKind[object] = SettingKind(
    "any", "an Iggy key that Courser does not use", lambda value: value, lambda text: text, value_to_toml
)
"""For keys that Courser does not use."""
