"""Rows as a table and as JSON, and the facts about the machine without which they say nothing."""

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.harness import Bound, Row, Target, Weight
from courser.records import frame_walk

HEADINGS = ("measure", "unit", "engine", "bare", "ratio (min..max)", "target", "verdict", "compared with; note")


def machine_facts(directory: Path) -> dict[str, str]:
    """What the figures depend on."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(directory),
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in ("uvloop", "numpy", "xxhash")),
        "frame walk": "compiled" if frame_walk.is_compiled else "in Python",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()) + " (1, 5 and 15 minutes)",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _file_system(directory: Path) -> str:
    """Kind and options of the mount that the directory is on."""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    for mount in mounts:
        fields, _, source = mount.partition(" - ")
        if fields.split()[2] == number:
            return f"{source.split()[0]} ({fields.split()[5]})"
    return "unknown"


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
