"""The list of deliberate differences, as ``docs/differences.md`` states it. Nothing else may differ.

A row of the table names exchanges (``section/name``, with ``*`` for anything) and fields. It excuses a difference in
such a field of such an exchange, provided that what it says of the original and of Courser is true: for an outcome and
for the fate of a connection both have to stand in the row as code; for other fields Courser's value counts if the row
has it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.replay.captures import Exchange, Wire
from tests.replay.comparison import Difference

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "differences.md"

STATED = frozenset({"outcome", "connection"})
"""Fields whose values have to stand in the row."""

_HEADINGS = ["row", "wire", "exchanges", "field", "the original", "Courser", "why"]
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """One deliberate difference."""

    name: str
    wires: frozenset[Wire]
    patterns: tuple[str, ...]
    fields: tuple[str, ...]
    original: tuple[str, ...]
    """What stands as code in the cell about the original."""
    courser: tuple[str, ...]

    def matching(self, exchange: Exchange) -> list[str]:
        """The patterns that an exchange matches."""
        if exchange.wire not in self.wires:
            return []
        return [pattern for pattern in self.patterns if is_match(pattern, exchange.title)]

    def excuses(self, difference: Difference) -> bool:
        """Whether the row tells the truth about a difference in one of its exchanges."""
        name = difference.field
        if name not in self.fields:
            return False
        if name in STATED:
            return difference.recorded in self.original and difference.ours in self.courser
        stated = [text.removeprefix(f"{name} ") for text in self.courser if text.startswith(f"{name} ")]
        return not stated or difference.ours in stated


def is_match(pattern: str, title: str) -> bool:
    """Whether a title fits a pattern in which ``*`` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), title) is not None


def read_rows(text: str) -> list[Row]:
    """The rows of every table in a document that has the right headings."""
    rows: list[Row] = []
    is_inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == _HEADINGS:
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not set(line) <= set("|-: "):
            assert len(cells) == len(_HEADINGS), f"a row of {len(cells)} cells: {line}"
            rows.append(_row(cells))
    names = [row.name for row in rows]
    assert len(set(names)) == len(names), "two rows have one name"
    return rows


def _row(cells: list[str]) -> Row:
    name, wire, exchanges, fields, original, courser, why = cells
    assert why, f"{name} has no reason"
    patterns, names = _CODE.findall(exchanges), _CODE.findall(fields)
    assert patterns, f"{name} names no exchange"
    assert names, f"{name} names no field"
    wires = frozenset(Wire) if wire == "both" else frozenset({Wire(wire)})
    said = (tuple(_CODE.findall(cell)) for cell in (original, courser))
    return Row(name.strip("`"), wires, tuple(patterns), tuple(names), *said)


def documented_rows() -> list[Row]:
    """The rows of the document."""
    return read_rows(DOCUMENT.read_text(encoding="utf-8"))


Finding = tuple[Exchange, Difference]


class Judgement:
    """Which differences are excused, and which parts of the list were needed for that."""

    def __init__(self, rows: Iterable[Row], findings: Iterable[Finding]) -> None:
        rows = list(rows)
        self.unexcused: list[Finding] = []
        needed: set[tuple[str, str]] = set()
        for exchange, difference in findings:
            excusing = [row for row in rows if row.matching(exchange) and row.excuses(difference)]
            if not excusing:
                self.unexcused.append((exchange, difference))
            for row in excusing:
                needed |= {(row.name, pattern) for pattern in row.matching(exchange)}
                needed.add((row.name, difference.field))
        self.idle = [
            f"{row.name}: `{part}` is not needed"
            for row in rows
            for part in (*row.patterns, *row.fields)
            if (row.name, part) not in needed
        ]

    @property
    def report(self) -> str:
        """What differs without an excuse."""
        return "\n".join(f"{exchange.title}: {difference}" for exchange, difference in self.unexcused)
