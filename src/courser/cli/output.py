"""Rows to stdout: as a table for people, as JSON for programs. Every command that shows data goes through here."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from courser.cli.cells import ABSENT, Column, harmless
from courser.cli.failures import Failure, OutputClosed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMATS = ("table", "json", "jsonl")
_CHUNK_COUNT = 500
"""Rows that share the widths of their columns: a table of a large file is shown while it is read."""
_NARROW_WIDTH = 60
"""Columns of a terminal below which a row is shown as lines instead."""
_SENTENCE_WIDTH = 30
"""Columns that a sentence needs to be readable."""
_GAP = "  "

output_option = click.option(
    "-o",
    "--output",
    "output",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="A table for people, one JSON document, or one JSON object per line.",
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a command has to show."""

    columns: tuple[Column, ...]
    cells: Callable[[object], tuple[str, ...]]
    """A row's text for each column."""
    rows: Iterable[object]
    is_alarming: Callable[[object], bool]
    """Whether a row is to be seen at once."""
    head: object
    summary: Callable[[], object | None]
    """Asked when all rows are out."""
    names: tuple[str, str] = ("file", "rows")
    """What head and rows are called in a JSON document."""


def emit(report: Report, output: str) -> None:
    """Write the whole report to stdout.

    Raises:
        OutputClosed: nobody reads it.
        Failure: it cannot be written.
    """
    match output:
        case "json":
            _emit_json(report)
        case "jsonl":
            _emit_json_lines(report)
        case _:
            _emit_table(report)


def write(text: str) -> None:
    """Write to stdout, telling a reader that went away from a full disk."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise Failure(
            f"cannot write the output: {error.strerror or error}", "make room, or write it elsewhere"
        ) from error


# --- JSON ---


def to_json(value: object) -> object:
    """Plain values for the JSON encoder. Whole numbers stay exact, bytes become hex."""
    if is_dataclass(value) and not isinstance(value, type):
        return _fields_of(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def _fields_of(value: "DataclassInstance") -> dict[str, object]:
    return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}


def kind_of(row: object) -> str:
    """A word that tells rows apart: ``ZeroTailRow`` is a ``zero_tail``."""
    name = type(row).__name__.removesuffix("Row")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _row_json(row: object) -> str:
    contents = to_json(row)
    assert isinstance(contents, dict)
    return json.dumps({"kind": kind_of(row), **contents})


def _emit_json(report: Report) -> None:
    head_name, rows_name = report.names
    write(f'{{"{head_name}": {json.dumps(to_json(report.head))},\n "{rows_name}": [')
    separator = "\n  "
    for row in report.rows:
        write(separator + _row_json(row))
        separator = ",\n  "
    write(f'],\n "summary": {json.dumps(to_json(report.summary()))}}}\n')


def _emit_json_lines(report: Report) -> None:
    contents = to_json(report.head)
    assert isinstance(contents, dict)
    write(json.dumps({"kind": report.names[0], **contents}) + "\n")
    for row in report.rows:
        write(_row_json(row) + "\n")
    summary = to_json(report.summary())
    if isinstance(summary, dict):
        write(json.dumps({"kind": "summary", **summary}) + "\n")


# --- tables ---


def _emit_table(report: Report) -> None:
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns
    rows = iter(report.rows)
    widths: list[int] = []
    while chunk := list(islice(rows, _CHUNK_COUNT)):
        lines = [tuple(harmless(cell) for cell in report.cells(row)) for row in chunk]
        alarms = [report.is_alarming(row) for row in chunk]
        if not is_terminal:
            is_first = not widths
            widths = widths or _widths(report.columns, lines)
            _write_plain(report.columns, lines, widths, with_titles=is_first)
        elif width < _NARROW_WIDTH:
            _write_narrow(report.columns, lines)
        else:
            # Rich takes a while to import: only a terminal pays for it.
            from courser.cli.drawing import draw_table  # noqa: PLC0415

            try:
                draw_table(*_fitting(report.columns, lines, width), alarms)
            except BrokenPipeError as error:
                raise OutputClosed from error


def _widths(columns: tuple[Column, ...], lines: list[tuple[str, ...]]) -> list[int]:
    return [max(len(column.title), *map(len, cells)) for column, *cells in zip(columns, *lines, strict=True)]


def _write_plain(
    columns: tuple[Column, ...], lines: list[tuple[str, ...]], widths: list[int], *, with_titles: bool
) -> None:
    """Aligned text without lines and colours: for pipes and files."""
    titles = [tuple(column.title.upper() for column in columns)] if with_titles else []
    for line in (*titles, *lines):
        write(_GAP.join(_align(columns, line, widths)).rstrip() + "\n")


def _align(columns: tuple[Column, ...], line: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    for column, cell, width in zip(columns, line, widths, strict=True):
        yield cell.rjust(width) if column.is_number else cell.ljust(width)


def _fitting(
    columns: tuple[Column, ...], lines: list[tuple[str, ...]], width: int
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """The columns that a terminal has room for. Empty ones go first, then those that matter least."""
    widths = _widths(columns, lines)
    # The last column holds sentences, which may go over several lines.
    widths[-1] = min(widths[-1], _SENTENCE_WIDTH)
    kept = [
        number
        for number, column in enumerate(columns)
        if not column.rank or any(line[number] not in ("", ABSENT) for line in lines)
    ]
    while sum(widths[number] + len(_GAP) for number in kept) - len(_GAP) > width:
        least = max(kept, key=lambda number: columns[number].rank)
        if not columns[least].rank:
            break
        kept.remove(least)
    return [columns[number] for number in kept], [tuple(line[number] for number in kept) for line in lines]


def _write_narrow(columns: tuple[Column, ...], lines: list[tuple[str, ...]]) -> None:
    """A line per value: no table fits into twenty columns."""
    for line in lines:
        for column, cell in zip(columns, line, strict=True):
            if cell:
                write(f"{column.title}: {cell}\n")
        write("\n")
