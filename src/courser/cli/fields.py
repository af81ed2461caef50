"""Fields of records: the columns of tables, and how their values are shown."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TypeAlias

from courser.model.quantities import format_duration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ABSENT = "-"


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
    """A time in the local zone, to the second; ``-`` for 0, the plain number if it is out of range."""
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


# --- values of a record ---

Record: TypeAlias = Mapping[str, object]


def plain(value: object) -> str:
    """The default format of a value in a table."""
    match value:
        case None | "" | [] | ():
            return ABSENT
        case True:
            return "yes"
        case False:
            return "no"
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def as_time(value: object) -> str:
    """Microseconds since 1970 as local time."""
    return local_time_text(value) if isinstance(value, int) else ABSENT


def as_size(value: object) -> str:
    """Bytes with a readable unit."""
    return size_text(value) if isinstance(value, int) else ABSENT


def _as_expiry(value: object) -> str:
    return local_time_text(value) if isinstance(value, int) and value else "never"


def _as_percent(value: object) -> str:
    return f"{value:.1f} %" if isinstance(value, float) else ABSENT


def _as_run_time(value: object) -> str:
    seconds = value // 1_000_000 if isinstance(value, int) else 0
    return format_duration(seconds * 1_000_000)


ValueText: TypeAlias = Callable[[object], str]
_TEXTS: Mapping[str, ValueText] = MappingProxyType(
    {
        "expires_at": _as_expiry,
        "run_time": _as_run_time,
        "cpu_usage": _as_percent,
        **dict.fromkeys(("_at", "_time", "_timestamp"), as_time),
        **dict.fromkeys(("size", "_usage", "memory", "_space", "_bytes"), as_size),
    }
)
"""How values are shown, by how their keys end."""


@dataclass(frozen=True, slots=True)
class Field:
    """One named value of a record, and the column in which a table shows it."""

    key: str
    """The name in JSON and CSV."""
    name: str = ""
    """The name in a table; by default the key with spaces."""
    text: ValueText = plain
    is_number: bool = False
    rank: int = 0
    """On a narrow terminal, columns with the highest rank are left out first. Columns of rank 0 always stay."""

    @property
    def title(self) -> str:
        return self.name or self.key.replace("_", " ")

    def show(self, record: Record) -> str:
        """The text of a cell."""
        return self.text(record.get(self.key))


Fields: TypeAlias = Sequence[Field]
_FIELD = re.compile(r"(\w+)(?:=(.+?))?(#)?(?:/(\d))?")


def fields(listed: str, **shown: ValueText) -> tuple[Field, ...]:
    """A list of fields, such as ``name, size#, created_at=created/1``.

    Each is a key or ``key=title``, then ``#`` if it is a number, then ``/`` and its rank. ``shown`` says how values are
    shown, by how their keys end. Times and sizes need not be named.
    """
    return tuple(_field(text, {**shown, **_TEXTS}) for text in listed.split(", "))


def _field(text: str, shown: Mapping[str, ValueText]) -> Field:
    found = _FIELD.fullmatch(text)
    assert found is not None, text
    key, title, is_number, rank = found.groups()
    as_text = next((shown[end] for end in shown if key.endswith(end)), plain)
    return Field(key, title or "", as_text, is_number is not None, int(rank or 0))
