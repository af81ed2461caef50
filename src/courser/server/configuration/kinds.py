"""The kinds of values that a key may have: how each is read from TOML, from plain text, and written as TOML.

Every reader raises ``ValueError`` for what it does not take; the sentence for the operator is ``Kind.expected``.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from courser.model.quantities import (
    EXPIRY_EXPECTED,
    SIZE_EXPECTED,
    TOPIC_SIZE_EXPECTED,
    format_byte_size,
    format_duration,
    parse_byte_size,
    parse_duration,
    parse_expiry,
    parse_max_topic_size,
)
from courser.model.topic_options import NEVER
from courser.records.classic_layout import Dialect
from courser.server.configuration.log_levels import LOG_LEVELS_EXPECTED, LogLevels, parse_log_levels
from courser.storage.segment_index import IndexCache

Value = TypeVar("Value")

_PORT_MAX = 65_535
_TEXT_LENGTH_MAX = 4096


@dataclass(frozen=True, slots=True)
class Kind(Generic[Value]):
    """One grammar."""

    name: str
    """For the reference: "size", "duration"."""
    expected: str
    """What a good value looks like."""
    from_toml: Callable[[object], Value]
    from_text: Callable[[str], Value]
    """Of an environment variable, or of the command line."""
    to_toml: Callable[[Value], str]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def quoted(text: str) -> str:
    """A TOML string."""
    # JSON's escapes are all TOML's too, but for this one character, which JSON leaves as it is.
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


def _bool_to_toml(value: bool) -> str:
    return "true" if value else "false"


BOOL = Kind("switch", "true or false", _bool_from_toml, _bool_from_text, _bool_to_toml)
OPTIONAL_BOOL: Kind[bool | None] = Kind(
    "switch",
    "true or false",
    _bool_from_toml,
    _bool_from_text,
    lambda value: "" if value is None else _bool_to_toml(value),
)
"""None if nobody said anything; written as nothing."""


def integer(low: int, high: int) -> Kind[int]:
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

    return Kind("number", f"a whole number from {low:,} to {high:,}", from_toml, from_text, str)


def size(low: int = 0, high: int = 2**63, *, multiple: int = 1) -> Kind[int]:
    """Bytes within bounds."""

    def check(number: int) -> int:
        if not low <= number <= high or number % multiple:
            raise ValueError(number)
        return number

    def from_toml(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return check(value)
        return check(parse_byte_size(_text(value)))

    bounds = f", at least {format_byte_size(low)}" if low else ""
    bounds += f", at most {format_byte_size(high)}" if high < 2**63 else ""
    bounds += f", a multiple of {multiple}" if multiple > 1 else ""
    return Kind("size", SIZE_EXPECTED + bounds, from_toml, lambda text: check(parse_byte_size(text)), _size_to_toml)


def _size_to_toml(value: int) -> str:
    return quoted(format_byte_size(value))


def duration(low: int = 0, *, or_zero: bool = False) -> Kind[int]:
    """Microseconds; ``or_zero`` if nothing, which switches something off, is allowed besides ``low`` and more."""

    def from_text(text: str) -> int:
        microseconds = parse_duration(text)
        if microseconds < low and (microseconds or not or_zero):
            raise ValueError(text)
        return microseconds

    def from_toml(value: object) -> int:
        # A number without a unit could mean anything, except for 0.
        return from_text("0" if value == 0 and not isinstance(value, bool) else _text(value))

    bounds = f" of at least {format_duration(low)}" if low else ""
    nothing = ', or "none"' if or_zero or not low else ""
    expected = f'a duration{bounds} such as "30s", "1 m" or "2 days 4 hours"{nothing}'
    return Kind("duration", expected, from_toml, from_text, lambda value: quoted(format_duration(value)))


def _expiry_from_text(text: str) -> int:
    expiry = parse_expiry(text)
    if expiry is None:
        # The server's default cannot be the server's default.
        raise ValueError(text)
    return expiry


def _expiry_to_toml(value: int) -> str:
    return quoted("none" if value == NEVER else format_duration(value))


EXPIRY = Kind(
    "expiry", EXPIRY_EXPECTED, lambda value: _expiry_from_text(_text(value)), _expiry_from_text, _expiry_to_toml
)


def topic_size(low: int) -> Kind[int]:
    """Bytes of a topic, at least ``low``, or ``NEVER``."""

    def from_text(text: str) -> int:
        limit = parse_max_topic_size(text)
        if limit is None or limit < low:
            raise ValueError(text)
        return limit

    def from_toml(value: object) -> int:
        return from_text(str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value))

    def to_toml(value: int) -> str:
        return quoted("unlimited" if value == NEVER else format_byte_size(value))

    return Kind("size", f"{TOPIC_SIZE_EXPECTED}, and at least {format_byte_size(low)}", from_toml, from_text, to_toml)


# --- texts --------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _words(value: object) -> str:
    text = _text(value)
    if not text.strip() or len(text) > _TEXT_LENGTH_MAX or not text.isprintable():
        raise ValueError(value)
    return text


def _path(value: object) -> Path:
    try:
        return Path(_words(value)).expanduser()
    except RuntimeError as error:
        # "~name/...", and there is no such user.
        raise ValueError(value) from error


def _path_or_nothing(value: object) -> Path | None:
    return _path(value) if value != "" else None


PATH = Kind("path", "the path of a directory", _path, _path, lambda value: quoted(str(value)))
FILE: Kind[Path | None] = Kind(
    "path", "the path of a file", _path_or_nothing, _path_or_nothing, lambda value: quoted(str(value or ""))
)
TEXT = Kind("text", "a text that is not empty", _words, _words, quoted)


def choice(*words: str) -> Kind[str]:
    """One of some words."""

    def from_text(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(text)
        return text.strip().lower()

    expected = ", ".join(quoted(word) for word in words[:-1]) + f" or {quoted(words[-1])}"
    return Kind("word", expected, lambda value: from_text(_text(value)), from_text, quoted)


def _address(value: object) -> Address:
    host, colon, port = _words(value).strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(value)
    if not colon or not host or " " in host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _PORT_MAX:
        raise ValueError(value)
    return Address(host, int(port))


ADDRESS = Kind(
    "address",
    f'host and port such as "127.0.0.1:8090" or "[::1]:8090", with a port from 0 to {_PORT_MAX}',
    _address,
    _address,
    lambda value: quoted(str(value)),
)


def _levels(value: object) -> LogLevels:
    return parse_log_levels(_text(value))


LOG_LEVELS = Kind("log levels", LOG_LEVELS_EXPECTED, _levels, _levels, lambda value: quoted(value.text))


def _cache_from_toml(value: object) -> IndexCache:
    if isinstance(value, bool):
        return IndexCache.ALL if value else IndexCache.NONE
    return _cache_from_text(_text(value))


def _cache_from_text(text: str) -> IndexCache:
    word = text.strip().lower()
    return IndexCache({"true": "all", "false": "none"}.get(word, word))


INDEX_CACHE = Kind(
    "word",
    'true or "all", "open_segment", false or "none"',
    _cache_from_toml,
    _cache_from_text,
    lambda value: quoted(value.value),
)


# --- dialects of old clients --------------------------------------------------------------------------

_DIALECT_WORDS = ", ".join(quoted(dialect.value) for dialect in Dialect)


def _dialect(value: object) -> Dialect:
    return Dialect(_text(value).strip())


def _dialects_from_toml(value: object) -> Mapping[str, Dialect]:
    if not isinstance(value, dict):
        return _dialects_from_text(_text(value))
    return {str(user): _dialect(dialect) for user, dialect in value.items()}


def _dialects_from_text(text: str) -> Mapping[str, Dialect]:
    pairs = [pair.rpartition("=") for pair in text.split(",") if pair.strip()]
    if not all(user.strip() and equals for user, equals, _ in pairs):
        raise ValueError(text)
    return {user.strip(): _dialect(dialect) for user, _, dialect in pairs}


def _dialects_to_toml(value: Mapping[str, Dialect]) -> str:
    pairs = ", ".join(f"{quoted(user)} = {quoted(dialect.value)}" for user, dialect in value.items())
    return f"{{ {pairs} }}" if pairs else "{}"


DIALECT = Kind("word", f"one of {_DIALECT_WORDS}", _dialect, _dialect, lambda value: quoted(value.value))
DIALECTS = Kind(
    "table",
    f'a table of user names with one of {_DIALECT_WORDS} each, or a text such as "alice=0.6,bob=0.5"',
    _dialects_from_toml,
    _dialects_from_text,
    _dialects_to_toml,
)


# --- what is not looked at ----------------------------------------------------------------------------


def _anything_to_toml(value: object) -> str:
    if isinstance(value, bool):
        return _bool_to_toml(value)
    return str(value) if isinstance(value, int | float) else quoted(str(value))


ANYTHING: Kind[object] = Kind(
    "any", "a key of Iggy without a meaning here", lambda value: value, lambda text: text, _anything_to_toml
)
"""Of keys without a meaning here."""
