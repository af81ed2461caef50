"""Names of files and folders in a lake: files are named after their offsets, folders after the values of their rows.

A name depends only on the contents of the file, so writing the same rows again overwrites the same file.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

PARQUET_SUFFIX = ".parquet"
PARTIAL_SUFFIX = ".partial"
"""Suffix of files that are being written. Readers do not take them for Parquet, and a leading dot hides them too."""
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Stands for a null value in folder names; all tools understand it."""

_OFFSET_DIGITS = 20
"""Digits of the largest offset, so that names sort like offsets."""
_PLAIN = " !$&()+,-.;@_~"
"""Characters besides letters and digits that are not percent-encoded in folder names."""


def range_file_name(first_offset: int, last_offset: int) -> str:
    """The name of the file for the offsets from ``first_offset`` to ``last_offset``, inclusive."""
    if not 0 <= first_offset <= last_offset:
        raise ValueError(f"invalid range of offsets: {first_offset} to {last_offset}")
    return f"{first_offset:0{_OFFSET_DIGITS}d}-{last_offset:0{_OFFSET_DIGITS}d}{PARQUET_SUFFIX}"


def range_of_name(name: str) -> tuple[int, int] | None:
    """The first and last offset in a file name, or None if it is not such a name."""
    first, separator, last = name.removesuffix(PARQUET_SUFFIX).partition("-")
    is_range = separator and all(
        len(part) == _OFFSET_DIGITS and part.isascii() and part.isdigit() for part in (first, last)
    )
    return (int(first), int(last)) if is_range and name.endswith(PARQUET_SUFFIX) else None


def folder_name(column: str, value: str | None) -> str:
    """``column=value``, as Hive, Spark, DuckDB and Polars read and write it."""
    text = NULL_VALUE if value is None or value == "" else quote(value, safe=_PLAIN)
    return f"{quote(column, safe=_PLAIN)}={text}"


def folder_path(root: Path, columns: Sequence[str], values: Sequence[str | None]) -> Path:
    """The folder of rows with these values in these columns."""
    return root.joinpath(*(folder_name(column, value) for column, value in zip(columns, values, strict=True)))


def value_of_folder(name: str) -> tuple[str, str | None] | None:
    """The column and value in a folder name, or None if it is not such a name."""
    column, separator, value = name.partition("=")
    if not separator:
        return None
    return unquote(column), None if value == NULL_VALUE else unquote(value)
