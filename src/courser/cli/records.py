"""Write replies of the server to stdout: lists of things, single things with their parts, and completed actions.

A record is a mapping from names to values; JSON contains all of it. Its fields select the columns of a table and a CSV
file, and format values for a table. In JSON and CSV, times are microseconds since 1970 and sizes are bytes.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from courser.cli.cells import Field, Fields, Record
from courser.cli.output import to_json, write_csv_line
from courser.cli.tables import write_facts, write_table
from courser.cli.terminal import flush, say, write

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
