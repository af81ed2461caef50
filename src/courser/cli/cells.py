"""Format values for a table: times, sizes, ranges. Control characters are removed."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    is_number: bool = False
    rank: int = 0
    """On a narrow terminal, columns with the highest rank are left out first. Columns of rank 0 always stay."""


def time_text(microseconds: int) -> str:
    """A time in UTC; ``-`` for 0, the plain number if it is out of range."""
    if not microseconds:
        return ABSENT
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def local_time_text(microseconds: int) -> str:
    """The same in local time, to the second."""
    if not microseconds:
        return ABSENT
    try:
        moment = (_EPOCH + timedelta(seconds=microseconds // 1_000_000)).astimezone()
    except (OverflowError, OSError, ValueError):
        return str(microseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def optional(value: object) -> str:
    """The value, or ``-``."""
    return ABSENT if value is None else str(value)


def range_text(first: int | None, end: int | None) -> str:
    """The range from ``first`` to ``end - 1``."""
    if first is None:
        return ABSENT
    if end is None:
        return f"{first}.."
    if end <= first:
        return ABSENT
    return str(first) if end == first + 1 else f"{first}..{end - 1}"


def harmless(text: str) -> str:
    """Text without control characters: a payload or a file name must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def size_text(size: int) -> str:
    """A size with a readable unit."""
    if size < 1000:
        return f"{size} B"
    amount = size / 1000
    for unit in ("kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
