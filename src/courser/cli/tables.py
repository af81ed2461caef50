"""Write a table: drawn on a terminal, plain text in a pipe, one line per value on a very narrow terminal."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

from courser.cli.cells import ABSENT, Field, Fields, harmless
from courser.cli.failures import OutputClosed
from courser.cli.terminal import write

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
