"""The benchmark of Spark runs, with next to nothing to do: it shall not rot."""

import math
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import spark as case
from benchmarks import spark_archive
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
    check(rows, tmp_path)
    assert SparkSession.getActiveSession() is spark


@pytest.mark.slow
def test_the_archive_is_measured_on_both_stores(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sync", lambda: None)
    rows = list(spark_archive.run(Bench(tmp_path, TINY)))
    assert [(row.measure, row.bare_name) for row in rows] == [
        (f"batch read of the archive, {store}", beside)
        for store in ("disk", "S3 (SeaweedFS)")
        for beside in ("segment files", "a bare loop of range reads")
    ]
    check(rows, tmp_path)
    assert SparkSession.getActiveSession() is spark


def check(rows: list[Row], place: Path) -> None:
    for row in rows:
        assert all(math.isfinite(figure) and figure >= 0 for figure in (*row.engine, *row.bare)), row
        assert len(cells(row)) == len(HEADINGS)
    assert not list(place.iterdir())
