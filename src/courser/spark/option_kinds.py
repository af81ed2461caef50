"""Kinds of option values: how text is parsed, and what the error message says was expected.

Offsets and times can be given per topic and partition, as JSON.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import dropwhile
from typing import Any

from courser.client.messages import microseconds
from courser.model.quantities import parse_byte_size, parse_seconds

OFFSET_MAX = 2**63 - 1
"""The largest BIGINT. The server's offsets are unsigned 64-bit numbers; larger ones are refused."""
EARLIEST = -2
LATEST = -1
"""Special offsets, as in Kafka's data source."""
ONLY_TOPIC = ""
"""Stands for the only topic of a read if offsets are given by partition alone. No topic can have this name."""


@dataclass(frozen=True, slots=True)
class SourceOptionKind:
    """How the text of an option is parsed."""

    name: str
    """For the reference."""
    parse: Callable[[str], Any]
    """Raises ``ValueError`` with what was expected."""


def _text(text: str) -> str:
    if not text:
        raise ValueError("a non-empty text")
    return text


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("a number above 0")
    return int(text)


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("a number, 0 or more")
    return int(text)


def _size(text: str) -> int:
    try:
        size = parse_byte_size(text.replace("_", ""))
    except ValueError:
        size = 0
    if size < 1:
        raise ValueError('a number of bytes, or a size such as "128 MiB"')
    return size


def _duration(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError:
        raise ValueError('seconds, or a duration such as "30s"') from None


def _time(text: str) -> int:
    """Parse a time as microseconds since 1970."""
    if text.strip().isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(_TIMES_EXPECTED) from None
    return microseconds(time if time.tzinfo is not None else time.replace(tzinfo=UTC))


# --- topic names --------------------------------------------------------------------------------------

_ATOM = re.compile(r"\\[,\\\s]|.", re.DOTALL)
_ESCAPED = re.compile(r"[,\\]|\A\s|\s\Z")


def parse_topics(text: str) -> tuple[str, ...]:
    r"""The names in a comma-separated list. Raises ``ValueError`` with what was expected.

    Topic names may contain anything. A comma inside a name is written ``\,``, and a backslash before such a character
    ``\\``. Blanks around a name are ignored unless they are escaped too.
    """
    names: list[list[str]] = [[]]
    for atom in _ATOM.findall(text):
        if atom == ",":
            names.append([])
        else:
            names[-1].append(atom)
    topics = tuple(map(_unescaped, names))
    if not all(topics) or len(set(topics)) != len(topics):
        raise ValueError(r'a comma-separated list of distinct names; write a comma inside a name as "\,"')
    return topics


def _unescaped(atoms: list[str]) -> str:
    kept = list(dropwhile(str.isspace, atoms))
    while kept and kept[-1].isspace():
        kept.pop()
    return "".join(atom[-1] for atom in kept)


def topic_text(*topics: str) -> str:
    """These names as the option ``topic`` spells them: commas, backslashes and outer blanks are escaped."""
    return ",".join(_ESCAPED.sub(lambda found: f"\\{found[0]}", topic) for topic in topics)


def listed(topics: Iterable[str]) -> str:
    """For error messages: ``"orders", "payments"``."""
    return ", ".join(f'"{topic}"' for topic in topics)


# --- choices, offsets, times ---------------------------------------------------------------------------


def choice(*words: str) -> SourceOptionKind:
    """One of several words."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(" or ".join(words))
        return word

    return SourceOptionKind(", ".join(f"`{word}`" for word in words), parse)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("a comma-separated list of names")
    return names


Given = int | Mapping[int, int]
"""For one topic: an offset (or ``EARLIEST``, ``LATEST``) or a time, for all partitions or by partition."""
ByTopic = int | Mapping[str, Given]
"""The same, for all topics or by topic."""

_OFFSETS_EXPECTED = (
    'earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}, "payments": "latest"} (-2 earliest, -1 latest)'
)
_TIMES_EXPECTED = (
    'microseconds since 1970, a time such as "2026-05-01T12:00:00Z", or JSON such as '
    '{"orders": "2026-05-01T12:00:00Z", "payments": {"0": 1777636800000000}}'
)
_SPECIAL = {"earliest": EARLIEST, "latest": LATEST}


def _offsets(text: str) -> ByTopic:
    word = text.strip().lower()
    if word in _SPECIAL:
        return _SPECIAL[word]
    try:
        given = json.loads(text)
        if given and all(type(offset) is int for offset in given.values()):
            given = {ONLY_TOPIC: given}
        return {topic: _offsets_of_topic(offsets) for topic, offsets in given.items()}
    except (ValueError, AttributeError, KeyError):
        raise ValueError(_OFFSETS_EXPECTED) from None


def _offsets_of_topic(given: Any) -> Given:
    if isinstance(given, str):
        return _SPECIAL[given]
    return {_partition(partition): _offset(offset) for partition, offset in given.items()}


def _times(text: str) -> ByTopic:
    if not text.lstrip().startswith("{"):
        return _time(text)
    try:
        return {topic: _times_of_topic(given) for topic, given in json.loads(text).items()}
    except (ValueError, AttributeError):
        raise ValueError(_TIMES_EXPECTED) from None


def _times_of_topic(given: Any) -> Given:
    if isinstance(given, dict):
        return {_partition(partition): _moment(moment) for partition, moment in given.items()}
    return _moment(given)


def _partition(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _offset(value: object) -> int:
    if type(value) is not int or not EARLIEST <= value <= OFFSET_MAX:
        raise ValueError
    return value


def _moment(value: object) -> int:
    if type(value) not in (int, str):
        raise ValueError
    return _time(str(value))


TEXT = SourceOptionKind("text", _text)
FLAG = SourceOptionKind("`true` or `false`", _flag)
COUNT = SourceOptionKind("number above 0", _count)
NUMBER = SourceOptionKind("number", _number)
SIZE = SourceOptionKind("bytes, or a size like `128 MiB`", _size)
DURATION = SourceOptionKind("seconds, or a duration like `30s`", _duration)
TIMES = SourceOptionKind('ISO time, microseconds since 1970, or JSON `{"orders": "2026-05-01T12:00:00Z"}`', _times)
NAMES = SourceOptionKind("comma-separated names", _names)
TOPICS = SourceOptionKind("comma-separated names", parse_topics)
OFFSETS = SourceOptionKind('`earliest`, `latest`, or JSON `{"orders": {"0": 23, "1": -2}}`', _offsets)
