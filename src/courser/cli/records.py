"""What the server answers, to stdout: lists of alike things, single things with what belongs to them, and deeds.

A record is a mapping from names to values; JSON shows it whole. Its fields say which names a table and a CSV file
have, and how a value looks in a table. Times are microseconds since 1970 and sizes are bytes, unless people read them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from courser.cli.cells import ABSENT, Column, local_time_text, size_text
from courser.cli.output import to_json, write_csv_line
from courser.cli.tables import write_facts, write_table
from courser.cli.terminal import flush, say, write

Record: TypeAlias = Mapping[str, object]


def plain(value: object) -> str:
    """A value as a table shows it, if nothing else is said."""
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
    """Microseconds since 1970 as a calendar of this place has them."""
    return local_time_text(value) if isinstance(value, int) else ABSENT


def as_size(value: object) -> str:
    """Bytes for people."""
    return size_text(value) if isinstance(value, int) else ABSENT


@dataclass(frozen=True, slots=True)
class Field:
    """One named value of a record."""

    key: str
    """In JSON and CSV."""
    title: str = ""
    """In a table; the key with blanks if it is empty."""
    text: Callable[[object], str] = plain
    is_number: bool = False
    rank: int = 0
    """As in ``Column``."""

    @property
    def column(self) -> Column:
        """How a table has it."""
        return Column(self.title or self.key.replace("_", " "), self.is_number, self.rank)

    def show(self, record: Record) -> str:
        """The text of a cell."""
        return self.text(record.get(self.key))


Fields: TypeAlias = Sequence[Field]


@dataclass(frozen=True, slots=True)
class Part:
    """A list that belongs to a thing: the partitions of a topic."""

    key: str
    """In the JSON of the thing."""
    fields: Fields


def emit_list(fields: Fields, records: Iterable[Record], output: str, *, empty: str = "") -> None:
    """Write alike things. ``empty`` is said if there are none and a person asked."""
    if output == "table":
        listed = list(records)
        write_table(tuple(field.column for field in fields), ((_cells(fields, record), False) for record in listed))
        if not listed and empty:
            say(empty)
        return
    writer = RecordWriter(fields, output)
    for record in records:
        writer.put(record)
    writer.close()


def emit_thing(fields: Fields, record: Record, output: str, parts: Sequence[Part] = ()) -> None:
    """Write one thing: a line per value, then its parts as tables. CSV leaves the parts out."""
    match output:
        case "json":
            write(json.dumps(to_json(dict(record)), indent=2) + "\n")
        case "jsonl":
            write(_line(record))
        case "csv":
            writer = RecordWriter(fields, output)
            writer.put(record)
        case _:
            write_facts((field.column.title, field.show(record)) for field in fields)
            for part in parts:
                _write_part(part, record)


def _write_part(part: Part, record: Record) -> None:
    rows = record.get(part.key)
    if isinstance(rows, list) and rows:
        write("\n")
        columns = tuple(field.column for field in part.fields)
        write_table(columns, ((_cells(part.fields, row), False) for row in rows))


def emit_deed(sentence: str, record: Record, output: str) -> None:
    """Tell that something was done: a sentence for people, the facts for programs."""
    if output == "table":
        say(sentence)
        return
    emit_thing([Field(key) for key, value in record.items() if not isinstance(value, list | dict)], record, output)


class RecordWriter:
    """Writes records one by one, in a format for programs: they may come in for hours."""

    def __init__(self, fields: Fields, output: str) -> None:
        self._keys = [field.key for field in fields]
        self._output = output
        self._is_first = True

    def put(self, record: Record) -> None:
        """Write one."""
        match self._output:
            case "json":
                write(("[" if self._is_first else ",\n ") + _line(record).rstrip("\n"))
            case "jsonl":
                write(_line(record))
            case _:
                if self._is_first:
                    write_csv_line(self._keys)
                write_csv_line(_csv_value(record.get(key)) for key in self._keys)
        self._is_first = False

    def close(self) -> None:
        """Write the end: what was written is a whole document then."""
        if self._output == "json":
            write("[]\n" if self._is_first else "]\n")
        elif self._output == "csv" and self._is_first:
            write_csv_line(self._keys)
        flush()


def _line(record: Record) -> str:
    return json.dumps(to_json(dict(record))) + "\n"


def _csv_value(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list() | tuple() | dict():
            return json.dumps(to_json(value))
        case _:
            return to_json(value)


def _cells(fields: Fields, record: Record) -> tuple[str, ...]:
    return tuple(field.show(record) for field in fields)
