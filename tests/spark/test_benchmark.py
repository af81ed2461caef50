"""The benchmark of Spark runs, with next to nothing to do: it shall not rot."""

import math
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import spark as case
from benchmarks.harness import TINY, Bench, Row
from benchmarks.report import HEADINGS, cells


@pytest.mark.slow
def test_the_case_gives_figures_and_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sync", lambda: None)
    # Two more starts of Java, for a figure that nobody looks at.
    start = Row(measure="session start", unit="s", engine=[1.0])
    monkeypatch.setattr(case, "_session_start", lambda: start)
    rows = list(case.run(Bench(tmp_path, TINY)))
    assert {row.measure.partition(",")[0] for row in rows} == {
        "batch read of segment files",
        "batch read from the server",
        "streaming catch-up",
        "decoding",
        "micro-batch of one message",
        "export to Parquet (zstd)",
        "write to a topic",
        "the same with the logs synced",
        "session start",
    }
    for row in rows:
        assert all(math.isfinite(figure) and figure >= 0 for figure in (*row.engine, *row.bare)), row
        assert len(cells(row)) == len(HEADINGS)
    assert not list(tmp_path.iterdir())
    assert SparkSession.getActiveSession() is spark
