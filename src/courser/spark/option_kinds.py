"""What options take: how their texts become values, and what is said of texts that do not.

Offsets and times may be given by topic and partition, as JSON.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from courser.model.quantities import parse_byte_size, parse_duration
from courser.spark.topic_names import parse_topics

_SECOND = 1_000_000
OFFSET_MAX = 2**63 - 1
"""What Spark's BIGINT holds. Offsets of the server have 64 bits without a sign; larger ones are refused."""
EARLIEST = -2
LATEST = -1
"""In offsets by partition, as Kafka's source writes them."""
ONLY_TOPIC = ""
"""Stands for the one topic of a read, where offsets are given by partition alone: no topic has this name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a text becomes a value."""

    name: str
    """For people."""
    parse: Callable[[str], Any]
    """Raises ``ValueError`` with what was expected."""


def _text(text: str) -> str:
    if not text:
        raise ValueError("a text that is not empty")
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
        return float(text)
    except ValueError:
        try:
            return parse_duration(text) / _SECOND
        except ValueError:
            raise ValueError('seconds, or a duration such as "30s"') from None


def _time(text: str) -> int:
    """Microseconds since 1970."""
    if text.strip().isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(_TIMES_EXPECTED) from None
    moment = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (moment.days * 86_400 + moment.seconds) * _SECOND + moment.microseconds


def choice(*words: str) -> Kind:
    """One of some words."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(" or ".join(words))
        return word

    return Kind(", ".join(f"`{word}`" for word in words), parse)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("names with commas between them")
    return names


Given = int | Mapping[int, int]
"""Of one topic: an offset (``EARLIEST``, ``LATEST``) or a time for all partitions, or one for each that is named."""
ByTopic = int | Mapping[str, Given]
"""The same for all topics, or by topic."""

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


TEXT = Kind("text", _text)
FLAG = Kind("`true` or `false`", _flag)
COUNT = Kind("number above 0", _count)
NUMBER = Kind("number", _number)
SIZE = Kind("bytes, or such as `128 MiB`", _size)
DURATION = Kind("seconds, or such as `30s`", _duration)
TIMES = Kind('ISO time, microseconds since 1970, or JSON `{"orders": "2026-05-01T12:00:00Z"}`', _times)
NAMES = Kind("names with commas between them", _names)
TOPICS = Kind("names with commas between them", parse_topics)
OFFSETS = Kind('`earliest`, `latest`, or JSON `{"orders": {"0": 23, "1": -2}}`', _offsets)
