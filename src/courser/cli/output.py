"""Write what commands found to stdout: as a table for people, as JSON or CSV for programs.

A record is a mapping from names to values; JSON contains all of it. Its fields select the columns of a table and a CSV
file. In JSON and CSV, times are microseconds since 1970 and sizes are bytes. A ``Report`` is for the rows of a file,
which are of several kinds.
"""

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from courser.cli.failures import OutputClosed
from courser.cli.fields import ABSENT, Field, Fields, Record
from courser.cli.terminal import flush, harmless, say, write

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True, slots=True)
class JsonText:
    """A value that is JSON already: JSON and CSV contain it unchanged."""

    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """A list that is part of a thing, such as the partitions of a topic."""

    key: str
    """The name in the JSON of the thing."""
    fields: Fields


def emit_list(fields: Fields, records: Iterable[Record], output: str, *, empty: str = "") -> None:
    """Write a list of things. If there are none, a table shows the text ``empty`` instead."""
    if output == "table":
        listed = list(records)
        write_table(fields, ((_cells(fields, record), False) for record in listed))
        if not listed and empty:
            say(empty)
        return
    writer = RecordWriter(fields, output)
    for record in records:
        writer.put(record)
    writer.close()


def emit_thing(fields: Fields, record: Record, output: str, parts: Sequence[Section] = ()) -> None:
    """Write one thing: a line per value, then its parts as tables. CSV omits the parts."""
    match output:
        case "json":
            write(json.dumps(to_json(dict(record)), indent=2) + "\n")
        case "jsonl":
            write(_line(record) + "\n")
        case "csv":
            writer = RecordWriter(fields, output)
            writer.put(record)
        case _:
            write_facts((field.title, field.show(record)) for field in fields)
            for part in parts:
                _write_part(part, record)


def _write_part(part: Section, record: Record) -> None:
    rows = record.get(part.key)
    if isinstance(rows, list) and rows:
        write("\n")
        write_table(part.fields, ((_cells(part.fields, row), False) for row in rows))


def emit_deed(sentence: str, record: Record, output: str) -> None:
    """Report a completed action: a sentence for people, a record for programs."""
    if output == "table":
        say(sentence)
        return
    emit_thing([Field(key) for key, value in record.items() if not isinstance(value, list | dict)], record, output)


class RecordWriter:
    """Writes a stream of records in a format for programs."""

    def __init__(self, fields: Fields, output: str) -> None:
        self._keys = [field.key for field in fields]
        self._output = output
        self._is_first = True

    def put(self, record: Record) -> None:
        """Write a record, after the header if it is the first."""
        match self._output:
            case "json":
                write(("[" if self._is_first else ",\n ") + _line(record))
            case "jsonl":
                write(_line(record) + "\n")
            case _:
                if self._is_first:
                    write_csv_line(self._keys)
                write_csv_line(_csv_value(record.get(key)) for key in self._keys)
        self._is_first = False

    def close(self) -> None:
        """Complete the output, which is a document even without records."""
        if self._output == "json":
            write("[]\n" if self._is_first else "]\n")
        elif self._output == "csv" and self._is_first:
            write_csv_line(self._keys)
        flush()


def _line(record: Record) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {_json(value)}" for key, value in record.items()) + "}"


def _json(value: object) -> str:
    if not isinstance(value, JsonText):
        return json.dumps(to_json(value))
    if sys.stdout.isatty() or sys.stdout.encoding.lower() != "utf-8":
        # Other characters could control the terminal, or not be encoded. In JSON they occur only in strings.
        return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], value.text)
    return value.text


def _csv_value(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case JsonText():
            return value.text
        case list() | tuple() | dict():
            return json.dumps(to_json(value))
        case _:
            return to_json(value)


def _cells(fields: Fields, record: Record) -> tuple[str, ...]:
    return tuple(field.show(record) for field in fields)


# --- reports ---


@dataclass(frozen=True, slots=True)
class Report:
    """The output of a command."""

    columns: Fields
    cells: Callable[[object], tuple[str, ...]]
    """A row's text for each column."""
    rows: Iterable[object]
    is_alarming: Callable[[object], bool]
    """Whether to highlight a row."""
    head: object
    summary: Callable[[], object | None]
    """Called after the last row."""
    names: tuple[str, str] = ("file", "rows")
    """The names of head and rows in a JSON document."""


def emit(report: Report, output: str) -> None:
    """Write the whole report to stdout.

    Raises:
        OutputClosed: the reader is gone.
        Failure: stdout cannot be written.
    """
    match output:
        case "json":
            _emit_json(report)
        case "jsonl":
            _emit_json_lines(report)
        case "csv":
            _emit_csv(report)
        case _:
            write_table(report.columns, ((report.cells(row), report.is_alarming(row)) for row in report.rows))


# --- JSON ---


def to_json(value: object) -> object:
    """Convert to plain values for the JSON encoder. Integers stay exact, bytes become hex."""
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


def _kind_of(row: object) -> str:
    """The kind of a row, from its class: ``ZeroTailRow`` is a ``zero_tail``. A dictionary may name its own."""
    name = type(row).__name__.removesuffix("Row")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _row_json(row: object) -> str:
    contents = to_json(row)
    assert isinstance(contents, dict)
    return json.dumps({"kind": _kind_of(row), **contents})


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


# --- CSV ---


def _emit_csv(report: Report) -> None:
    """Write the table's cells of all columns: rows of different kinds have no other fields in common."""
    write_csv_line([column.title.replace(" ", "_") for column in report.columns])
    for row in report.rows:
        write_csv_line(report.cells(row))


class _Stdout:
    """The file object for the CSV writer."""

    def write(self, text: str) -> None:
        # Line ends within quotes are data; other control characters could control the terminal.
        write("\n".join(map(harmless, text.split("\n"))) if sys.stdout.isatty() else text)


def write_csv_line(values: Iterable[object]) -> None:
    """Write one line, with quotes where necessary."""
    csv.writer(_Stdout(), lineterminator="\n").writerow(list(values))


# --- tables ---

_CHUNK_COUNT = 500
"""Rows that share column widths. The table of a large file is written while the file is read."""
_NARROW_WIDTH = 60
"""Below this terminal width, a row is shown as one line per value."""
_SENTENCE_WIDTH = 30
"""The minimum width of a readable sentence."""
_GAP = "  "


def write_table(columns: Fields, rows: Iterable[tuple[tuple[str, ...], bool]]) -> None:
    """Write rows, each with a flag whether to highlight it."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns
    remaining = iter(rows)
    widths: list[int] = []
    while chunk := list(islice(remaining, _CHUNK_COUNT)):
        lines = [tuple(harmless(cell) for cell in cells) for cells, _ in chunk]
        if not is_terminal:
            is_first = not widths
            widths = widths or _widths(columns, lines)
            _write_plain(columns, lines, widths, with_titles=is_first)
        elif width < _NARROW_WIDTH:
            _write_narrow(columns, lines)
        else:
            # rich is slow to import: import it only at a terminal.
            from courser.cli.drawing import draw_table  # noqa: PLC0415

            try:
                draw_table(*fitting(columns, lines, width), [is_alarming for _, is_alarming in chunk])
            except BrokenPipeError as error:
                raise OutputClosed from error


def write_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Write one thing: one line per name and value."""
    lines = [(name, harmless(value)) for name, value in facts]
    width = max((len(name) for name, _ in lines), default=0)
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < _NARROW_WIDTH:
        width = 0
    for name, value in lines:
        write(f"{name.ljust(width)}{_GAP}{value}".rstrip() + "\n")


def _widths(columns: Fields, lines: list[tuple[str, ...]]) -> list[int]:
    return [max(len(column.title), *map(len, cells)) for column, *cells in zip(columns, *lines, strict=True)]


def _write_plain(columns: Fields, lines: list[tuple[str, ...]], widths: list[int], *, with_titles: bool) -> None:
    """Aligned text without lines and colors, for pipes and files."""
    titles = [tuple(column.title.upper() for column in columns)] if with_titles else []
    for line in (*titles, *lines):
        write(_GAP.join(_align(columns, line, widths)).rstrip() + "\n")


def _align(columns: Fields, line: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    for column, cell, width in zip(columns, line, widths, strict=True):
        yield cell.rjust(width) if column.is_number else cell.ljust(width)


def fitting(columns: Fields, lines: list[tuple[str, ...]], width: int) -> tuple[list[Field], list[tuple[str, ...]]]:
    """The columns that fit on the terminal. Empty columns are left out first, then those with the highest rank."""
    widths = _widths(columns, lines)
    # The last column holds sentences, which may wrap.
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


def _write_narrow(columns: Fields, lines: list[tuple[str, ...]]) -> None:
    """Write one line per value: the terminal is too narrow for a table."""
    for line in lines:
        for column, cell in zip(columns, line, strict=True):
            if cell:
                write(f"{column.title}: {cell}\n")
        write("\n")
