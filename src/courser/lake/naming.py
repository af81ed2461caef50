"""Names in a lake: files after the offsets that they hold, folders after the values that their rows share.

A name is a function of what the file holds and of nothing else, so whoever writes the same rows again writes the same
file again.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

PARQUET_SUFFIX = ".parquet"
PARTIAL_SUFFIX = ".partial"
"""Of files that are being written. No reader takes them for Parquet, and the leading dot hides them besides."""
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What every tool reads as "no value" in the name of a folder."""

_OFFSET_DIGITS = 20
"""Digits of the largest offset, so that names sort as offsets do."""
_PLAIN = " !$&()+,-.;@_~"
"""Letters besides the alphanumeric ones that need no percent sign in the name of a folder."""


def range_file_name(first_offset: int, last_offset: int) -> str:
    """The file that holds what came of the offsets from ``first_offset`` to ``last_offset``, both included."""
    if not 0 <= first_offset <= last_offset:
        raise ValueError(f"no offsets lie from {first_offset} to {last_offset}")
    return f"{first_offset:0{_OFFSET_DIGITS}d}-{last_offset:0{_OFFSET_DIGITS}d}{PARQUET_SUFFIX}"


def range_of_name(name: str) -> tuple[int, int] | None:
    """First and last offset of a file, or None if its name is no such name."""
    first, separator, last = name.removesuffix(PARQUET_SUFFIX).partition("-")
    is_range = separator and all(
        len(part) == _OFFSET_DIGITS and part.isascii() and part.isdigit() for part in (first, last)
    )
    return (int(first), int(last)) if is_range and name.endswith(PARQUET_SUFFIX) else None


def folder_name(column: str, value: str | None) -> str:
    """``column=value``, as Hive, Spark, duckdb and polars write and read it."""
    text = NULL_VALUE if value is None or value == "" else quote(value, safe=_PLAIN)
    return f"{quote(column, safe=_PLAIN)}={text}"


def folder_path(root: Path, columns: Sequence[str], values: Sequence[str | None]) -> Path:
    """The folder of the rows that have these values in these columns."""
    return root.joinpath(*(folder_name(column, value) for column, value in zip(columns, values, strict=True)))


def value_of_folder(name: str) -> tuple[str, str | None] | None:
    """Column and value in a folder's name, or None if it is no such name."""
    column, separator, value = name.partition("=")
    if not separator:
        return None
    return unquote(column), None if value == NULL_VALUE else unquote(value)
