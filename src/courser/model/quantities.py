"""Durations and sizes as people write them: ``2 days 4 hours``, ``1 GiB``, ``never_expire``.

The grammars are those of Iggy's files and clients. Every parser raises ``ValueError`` with a message that says what is
expected; every formatter returns a text that its parser reads without loss.
"""

import math
import re
from fractions import Fraction

SECOND = 1_000_000
"""Microseconds."""
NEVER = 2**64 - 1
"""As an expiry: messages are kept forever. As the size of a topic: unlimited."""
EXPIRY_MAX = (2**32 - 1) * SECOND
"""Microseconds: the maximum that clients can express."""
CALENDAR_END = 253_402_300_799_999_999
"""Microseconds since 1970: the last one of the year 9999, where the calendars of Python and Spark end. Times of
messages can be later: they have 64 bits, and producers choose them. Where a calendar is needed, later times become this
one."""

_TEXT_LENGTH_MAX = 100
_QUANTITY_MAX = 2**64 - 1

_MICRO = 1_000
_NANOSECONDS = {
    **dict.fromkeys(("nanos", "nsec", "ns"), 1),
    **dict.fromkeys(("usec", "us", "\u00b5s", "\u03bcs"), _MICRO),
    **dict.fromkeys(("millis", "msec", "ms"), 1_000 * _MICRO),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), SECOND * _MICRO),
    **dict.fromkeys(("minutes", "minute", "mins", "min", "m"), 60 * SECOND * _MICRO),
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), 3_600 * SECOND * _MICRO),
    **dict.fromkeys(("days", "day", "d"), 86_400 * SECOND * _MICRO),
    **dict.fromkeys(("weeks", "week", "wks", "wk", "w"), 7 * 86_400 * SECOND * _MICRO),
    **dict.fromkeys(("months", "month", "M"), 2_630_016 * SECOND * _MICRO),
    **dict.fromkeys(("years", "year", "yrs", "yr", "y"), 31_557_600 * SECOND * _MICRO),
}
_PAIR = re.compile(r"\s*([0-9]+)\s*([a-zA-Z\u00b5\u03bc]+)\s*")

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_BYTES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtpe", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtpe", 1)},
}

_ZERO_WORDS = {"0", "none", "disabled", "unlimited"}
_NEVER_WORDS = {"none", "unlimited", "never_expire"}
_DEFAULT_WORDS = {"default", "server_default"}

DURATION_EXPECTED = 'a duration such as "30s", "1 m" or "2 days 4 hours", or "none"'
EXPIRY_EXPECTED = 'a duration such as "7 days", or "none"'
SIZE_EXPECTED = 'a size such as "1 GiB", "512 MB" or a number of bytes'
TOPIC_SIZE_EXPECTED = 'a size such as "10 GiB", or "unlimited"'


def parse_duration(text: str) -> int:
    """Microseconds, rounded up; 0 for ``none``, ``disabled``, ``unlimited`` and ``0``. Case does not matter."""
    word = text.strip().lower()
    return 0 if word in _ZERO_WORDS else _sum_of_pairs(word, DURATION_EXPECTED)


def parse_seconds(text: str) -> float:
    """Seconds: a number of them, or a duration."""
    try:
        return float(text)
    except ValueError:
        return parse_duration(text) / SECOND


def parse_expiry(text: str) -> int | None:
    """Microseconds after which messages or tokens expire; ``NEVER``; None for the server's default.

    Case matters for one unit: ``M`` is a month, ``m`` a minute.
    """
    word = text.strip()
    if word.lower() in _NEVER_WORDS:
        return NEVER
    if word.lower() in _DEFAULT_WORDS:
        return None
    expiry = _sum_of_pairs(word, EXPIRY_EXPECTED)
    if not 0 < expiry <= EXPIRY_MAX:
        raise ValueError(f'{EXPIRY_EXPECTED}, more than 0 and at most {EXPIRY_MAX // SECOND} seconds, not "{text}"')
    return expiry


def parse_byte_size(text: str) -> int:
    """Bytes, rounded up. KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024. ``none`` and ``unlimited`` are 0."""
    word = text.strip().lower()
    if word in _ZERO_WORDS:
        return 0
    match = _SIZE.fullmatch(word) if len(word) <= _TEXT_LENGTH_MAX else None
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{SIZE_EXPECTED}, not {_shown(text)}")
    size = math.ceil(Fraction(match[1]) * _BYTES[match[2]])
    if size > _QUANTITY_MAX:
        raise ValueError(f"{SIZE_EXPECTED}, below 16 EiB, not {_shown(text)}")
    return size


def parse_max_topic_size(text: str) -> int | None:
    """Bytes over all partitions; ``NEVER`` for ``unlimited``; None for the server's default (also ``0``)."""
    word = text.strip().lower()
    if word in _DEFAULT_WORDS:
        return None
    if word in ("unlimited", "none"):
        return NEVER
    try:
        return parse_byte_size(word) or None
    except ValueError:
        raise ValueError(f"{TOPIC_SIZE_EXPECTED}, not {_shown(text)}") from None


def format_duration(microseconds: int) -> str:
    """A text that ``parse_duration`` reads as the same number: ``1h 30m``."""
    if microseconds == 0:
        return "0"
    rest = microseconds * _MICRO
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _NANOSECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def format_byte_size(size: int) -> str:
    """A text that ``parse_byte_size`` reads as the same number, in the largest unit that gives a whole number."""
    for unit in ("EiB", "EB", "PiB", "PB", "TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB"):
        factor = _BYTES[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _sum_of_pairs(text: str, expected: str) -> int:
    nanoseconds = position = 0
    while len(text) <= _TEXT_LENGTH_MAX and (pair := _PAIR.match(text, position)):
        factor = _NANOSECONDS.get(pair[2])
        if factor is None:
            raise ValueError(f'{expected}; "{pair[2]}" is not a unit of time')
        nanoseconds += int(pair[1]) * factor
        position = pair.end()
    if not text or position != len(text):
        raise ValueError(f"{expected}, not {_shown(text)}")
    microseconds = -(-nanoseconds // _MICRO)
    if microseconds > _QUANTITY_MAX:
        raise ValueError(f"{expected}, below 584,000 years, not {_shown(text)}")
    return microseconds


def _shown(text: str) -> str:
    return f'"{text}"' if len(text) <= _TEXT_LENGTH_MAX else f'"{text[:40]}..."'
