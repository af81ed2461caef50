"""The rows of the case ``spark`` on another release of Spark, beside those of this one.

A process has one release, so the other one runs in a process and an environment of its own, with the same scale. Its
rows come as JSON. ``make test-spark-4.1`` makes such an environment.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from benchmarks import spark
from benchmarks.harness import FULL, Bench, Bound, Row, Target

_LEAST = 0.85
"""What the other release must reach of this one's speed."""


def rows_beside(python: Path, bench: Bench, own: Sequence[Row]) -> Iterator[Row]:
    """Run the case with another interpreter. Each of its figures is shown beside that of this process."""
    with tempfile.TemporaryDirectory() as place:
        given, found = Path(place, "scale"), Path(place, "rows")
        given.write_text(json.dumps(asdict(bench.scale)))
        command = [str(python), "-m", "benchmarks.spark_releases", str(given), str(found), str(bench.directory)]
        subprocess.run(command, check=True)
        other = json.loads(found.read_text())
    figures = {row["measure"]: row for row in other["rows"]}
    for row in {row.measure: row for row in own}.values():
        there = figures[row.measure]
        note = f"without Courser {median(there['bare']) / median(row.bare):.2f}" if row.bare else ""
        yield replace(
            row,
            measure=f"{row.measure}, Spark {other['release']}",
            engine=there["engine"],
            bare=row.engine,
            bare_name=f"Spark {_release()}",
            target=_target(row.unit),
            note=note,
        )


def _target(unit: str) -> Target:
    if unit.endswith("/s"):
        return Target(Bound.RATIO_AT_LEAST, _LEAST)
    return Target(Bound.RATIO_AT_MOST, 1 / _LEAST)


def _release() -> str:
    from courser.spark.releases import SPARK  # noqa: PLC0415 -- optional, and slow to import

    return ".".join(map(str, SPARK))


def _run(scale: Path, found: Path, directory: Path) -> None:
    bench = Bench(directory, replace(FULL, **json.loads(scale.read_text())))
    rows = [{"measure": row.measure, "engine": row.engine, "bare": row.bare} for row in spark.run(bench)]
    found.write_text(json.dumps({"release": _release(), "rows": rows}))


if __name__ == "__main__":
    _run(*map(Path, sys.argv[1:]))
