"""Rows as a table and as JSON."""

import json
from collections.abc import Sequence
from statistics import median

from benchmarks.harness import Bound, Row, Target, Weight

HEADINGS = ("measure", "unit", "engine", "bare", "ratio (min..max)", "target", "verdict", "compared with; note")


def format_number(value: float) -> str:
    """About three digits."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _format_target(target: Target | None) -> str:
    if target is None:
        return ""
    who = "" if target.weight is Weight.MUST else f"{target.weight.value} "
    space = "" if target.bound is Bound.EXCESS_AT_MOST else " "
    return f"{who}{target.bound.value}{space}{format_number(target.number)}"


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""
    ratios = row.ratios
    spread = f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else ""
    return (
        row.measure,
        row.unit,
        format_number(median(row.engine)),
        format_number(median(row.bare)) if row.bare else "",
        spread,
        _format_target(row.target),
        row.verdict,
        "; ".join(filter(None, (row.bare_name, row.note))),
    )


def table(rows: Sequence[Row]) -> str:
    """All rows, columns aligned."""
    lines = [HEADINGS, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = {2, 3}
    text = []
    for line in lines:
        parts = [
            cell.rjust(width) if number in numeric else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(parts).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def as_json(facts: dict[str, str], found: dict[str, list[Row]]) -> str:
    """Everything, every round."""
    cases = {
        name: [
            {
                "measure": row.measure,
                "unit": row.unit,
                "engine": list(row.engine),
                "bare": list(row.bare),
                "bare_name": row.bare_name,
                "ratios": row.ratios,
                "target": _format_target(row.target),
                "verdict": row.verdict,
                "note": row.note,
            }
            for row in rows
        ]
        for name, rows in found.items()
    }
    return json.dumps({"machine": facts, "cases": cases}, indent=2, ensure_ascii=False)
