"""Write rows to stdout: as a table for people, as JSON or CSV for programs.

``Report`` is for files, whose rows are of several kinds; the module ``records`` is for the server's replies.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from courser.cli.cells import Fields, harmless
from courser.cli.tables import write_table
from courser.cli.terminal import write

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
