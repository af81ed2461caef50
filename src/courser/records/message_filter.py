"""Filters: conditions on the payload, the key and the headers of a message, written as text.

The server and the client evaluate the same text. ``docs/formats/private-commands.md`` describes the language.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from courser.errors import InvalidBatch
from courser.records.message_keys import KEY_HEADER, text_of_key
from courser.records.user_headers import iterate_user_headers, read_value

FILTER_COUNT_MAX = 16
FILTER_SIZE_MAX = 4096
"""Characters of one condition."""

_Path: TypeAlias = tuple[str | int, ...]
"""Names of members and numbers of elements."""
_ABSENT = object()
"""A key, header or JSON value that a message does not have."""

_CONDITION = re.compile(
    # No part can match in two ways, or a long condition would take the server a long time.
    r"(?:(?P<part>text|key)\s*|header\.(?P<header>[^=!~<>\s][^=!~<>]*)|(?P<path>[.$][^=!~<>]*))"
    r"(?P<sign>!=|!~|>=|<=|==|=|~|>|<)\s*(?P<value>.*)",
    re.DOTALL,
)
_STEP = re.compile(r"""\.?\[(?P<number>\d{1,9})\]|\.?\["(?P<quoted>[^"]*)"\]|\.(?P<name>[^.\[\]"]+)""")
_EXPONENT = re.compile(rb"[:,\[\s]-?[0-9]+(?:\.[0-9]+)?[eE]")
"""A number such as 1e3: its text does not contain the digits of 1000."""
_NEARLY_WHOLE = b".999"
"""A number such as 6.99999999999999999 is read as 7."""
_NEARLY_WHOLE_MAX = 10**13
"""Numbers up to here have at least three digits after the point, so others are only read as one of them with such an
end."""
_EXACT_LENGTH_MAX = 15
"""Digits of a number that a float has exactly."""
_REPLACEMENT = "\ufffd"
"""Stands for bytes that are no text."""
_CONSTANTS = ("true", "false", "null")
_PLAIN = re.compile(r"""[^"\\/\[{\x00-\x1f\x7f][^"\\/\x00-\x1f\x7f]*""")
"""A text that a JSON string contains as it is, unless it is written with \\u. No list and no object."""
_WORD = re.compile(r"[\w-]*[^\W\deE_][\w-]*")
"""Letters and digits that are not a part of a number."""
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Subject:
    """A message whose parts are decoded when a condition needs them."""

    def __init__(self, payload: bytes, block: bytes) -> None:
        self.payload = payload
        self._block = block

    @cached_property
    def headers(self) -> dict[str, object]:
        """Headers by name, as text if they are bytes. The key is the header without a name."""
        found: dict[str, object] = {}
        try:
            entries = iterate_user_headers(self._block)
        except InvalidBatch:  # it is encrypted
            return found
        for entry in entries:
            if entry.key == KEY_HEADER:
                found[""] = text_of_key(entry.value)
                continue
            value = read_value(entry.value_kind, entry.value)
            found[entry.name] = value.hex() if isinstance(value, bytes) else value
        return found

    @cached_property
    def document(self) -> object:
        """The payload as JSON."""
        try:
            return msgspec.json.decode(self.payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return _ABSENT

    def value_at(self, path: _Path) -> object:
        """A value inside the JSON."""
        value = self.document
        for step in path:
            match step, value:
                case int(), list() if step < len(value):
                    value = value[step]
                case str(), dict():
                    value = value.get(step, _ABSENT)
                case _:
                    return _ABSENT
        return value


class _Part(Enum):
    """What a condition is about."""

    PAYLOAD = auto()
    JSON = auto()
    """A value inside the JSON."""
    DOCUMENT = auto()
    """All of the JSON."""
    HEADER = auto()
    """A user header, or the key."""


class _Condition:
    """One comparison of a part of the message with a constant."""

    def __init__(
        self, part: _Part, find: Callable[[_Subject], object], sign: str, value: str, path: _Path = ()
    ) -> None:
        """``path`` is that of a value inside the JSON."""
        self.part = part
        self._path = path
        self._find = find
        self._is_negated = sign in ("!=", "!~")
        self._sign = sign.removeprefix("!") if self._is_negated else sign
        self._text = value
        self._bytes = value.encode()
        self._number = _number(value)

    def holds(self, subject: _Subject) -> bool:
        """Whether the message satisfies it. What a message does not have is equal to nothing."""
        actual = self._find(subject)
        return (actual is not _ABSENT and self._compare(actual)) is not self._is_negated

    def may_hold(self, data: bytes) -> bool:
        """Whether a message in these bytes can satisfy it. False is certain; it is found out without decoding."""
        if self._candidates is not None:
            return b"\\u" in data or any(map(self._may_be, self._candidates.findall(data)))
        if not self._is_literal or self._bytes in data:
            return True
        if self.part is not _Part.JSON:
            return False
        # In JSON, a letter can be written with \\u, and a number with an exponent, or with too many digits.
        if b"\\u" in data:
            return True
        return self._number is not None and (_NEARLY_WHOLE in data or _EXPONENT.search(data) is not None)

    @cached_property
    def _candidates(self) -> re.Pattern[bytes] | None:
        """For a condition such as ``.total > 99``: finds what stands behind each ``"total":``, wherever it is.

        Only a number or a text is greater or less than something.
        """
        name = self._path[-1] if self._path else None
        if self._is_negated or self._sign not in _ORDERS or not isinstance(name, str) or not _PLAIN.fullmatch(name):
            return None
        return re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*("|-?[0-9][0-9.eE+-]*)' % re.escape(name.encode()))

    def _may_be(self, value: bytes) -> bool:
        """Whether a value that begins like this can satisfy it."""
        if value == b'"' or len(value) > _EXACT_LENGTH_MAX:
            return True
        if self._number is None:
            return False
        try:
            return _ORDERS[self._sign](float(value), self._number)
        except ValueError:
            # Not JSON; that is decided elsewhere.
            return True

    @cached_property
    def _is_literal(self) -> bool:
        """Whether a message that satisfies it contains the bytes of the value, if they are written in the usual way."""
        if self._is_negated or self._sign not in ("=", "~"):
            return False
        match self.part:
            case _Part.PAYLOAD:
                return True
            case _Part.DOCUMENT:
                return False
            case _Part.HEADER:
                # Numbers are binary there, and bytes that are no text are compared as hexadecimal digits.
                is_text = self._number is None and self._text not in _CONSTANTS and _REPLACEMENT not in self._text
                return self._sign == "=" and is_text and _HEX.fullmatch(self._text) is None
        if self._sign == "~":
            # Lists and objects are compared without the spaces that they may have.
            return _WORD.fullmatch(self._text) is not None
        if self._number is None:
            return _PLAIN.fullmatch(self._text) is not None
        return isinstance(self._number, int) and str(self._number) == self._text and _is_distinct(self._number)

    def _compare(self, actual: object) -> bool:
        is_number = isinstance(actual, int | float) and not isinstance(actual, bool) and self._number is not None
        match self._sign:
            case "=":
                if isinstance(actual, bytes):
                    return actual == self._bytes
                return actual == self._number if is_number else _text(actual) == self._text
            case "~":
                return self._bytes in actual if isinstance(actual, bytes) else self._text in _text(actual)
        order = _ORDERS[self._sign]
        if is_number:
            return order(actual, self._number)
        if isinstance(actual, bytes):
            return order(actual, self._bytes)
        return isinstance(actual, str) and order(actual, self._text)


class MessageFilter:
    """Conditions that a message must satisfy, all of them."""

    def __init__(self, conditions: Sequence[str]) -> None:
        """Raises ``ValueError`` if a condition has a wrong form, or there are too many."""
        if len(conditions) > FILTER_COUNT_MAX:
            raise ValueError(f"{len(conditions)} conditions are more than the limit of {FILTER_COUNT_MAX}")
        self.conditions = tuple(conditions)
        self._parsed = tuple(map(_parse, conditions))
        self.texts = tuple(condition for condition in conditions if _CONDITION.fullmatch(condition) is None)
        """The conditions that compare nothing: texts to find in the payload."""

    @property
    def needs_json(self) -> bool:
        """Whether a condition is about a value inside the JSON."""
        return any(condition.part in (_Part.JSON, _Part.DOCUMENT) for condition in self._parsed)

    def may_match(self, data: bytes) -> bool:
        """Whether one of the messages in ``data``, which has all of their bytes, can match. Much faster than to try."""
        return all(condition.may_hold(data) for condition in self._parsed)

    def matches(self, payload: bytes, headers: bytes) -> bool:
        """Whether a message with this payload and this block of user headers satisfies all conditions."""
        subject = _Subject(payload, headers)
        return all(condition.holds(subject) for condition in self._parsed)


# --- parsing ---


def _parse(condition: str) -> _Condition:
    if len(condition) > FILTER_SIZE_MAX:
        raise ValueError(f"a condition of {len(condition)} characters is longer than the limit of {FILTER_SIZE_MAX}")
    found = _CONDITION.fullmatch(condition)
    if found is None:
        if not condition:
            raise ValueError("a condition must not be empty")
        return _Condition(_Part.PAYLOAD, lambda subject: subject.payload, "~", condition)
    sign, value = found["sign"].replace("==", "="), found["value"]
    if found["part"] == "text":
        return _Condition(_Part.PAYLOAD, lambda subject: subject.payload, sign, value)
    if found["path"] is not None:
        path = _parse_path(found["path"].strip())
        part = _Part.JSON if path else _Part.DOCUMENT
        return _Condition(part, lambda subject: subject.value_at(path), sign, value, path)
    name = (found["header"] or "").strip()
    return _Condition(_Part.HEADER, lambda subject: subject.headers.get(name, _ABSENT), sign, value)


def _parse_path(text: str) -> _Path:
    rest = text.removeprefix("$")
    if rest in ("", "."):
        return ()
    steps: list[str | int] = []
    position = 0
    while position < len(rest):
        found = _STEP.match(rest, position)
        if found is None:
            raise ValueError(f'"{text}" is not a JSON path such as .customer.name or .items[0].price')
        steps.append(int(found["number"]) if found["number"] else found["name"] or found["quoted"])
        position = found.end()
    return tuple(steps)


# --- values ---


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _is_distinct(number: int) -> bool:
    """Whether no number with other digits before the point is read as equal to it, except one that is nearly whole."""
    if abs(number) < _NEARLY_WHOLE_MAX:
        return True
    try:
        return int(float(number)) != number
    except OverflowError:
        return True


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
