"""Every benchmark runs, with next to nothing to do: they shall not rot. Nothing here looks at a clock."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import spark_releases
from benchmarks.__main__ import CASES, main
from benchmarks.harness import TINY, Bench, Bound, Case, Row, Target, Weight, percentile
from benchmarks.report import HEADINGS, cells, format_number, table


@pytest.fixture(autouse=True)
def no_sync_of_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for what other tests have written."""
    monkeypatch.setattr(os, "sync", lambda: None)


WITHOUT_SPARK = [case for case in CASES if not case.name.startswith("spark")]
"""The other one runs with the tests of Spark, in the process that has a session."""


@pytest.mark.parametrize("case", WITHOUT_SPARK, ids=lambda case: case.name)
def test_the_case_gives_figures_and_leaves_nothing_behind(case: Case, tmp_path: Path) -> None:
    rows = list(case.run(Bench(tmp_path, TINY)))
    assert rows
    for row in rows:
        assert row.measure
        assert row.unit
        assert all(math.isfinite(figure) and figure >= 0 for figure in (*row.engine, *row.bare)), row
        assert len(cells(row)) == len(HEADINGS)
    assert not list(tmp_path.iterdir())


def test_the_names_of_the_cases_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_command_lists_the_cases(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [case.name for case in CASES]


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--quick", "--only", "reading", "--rounds", "2", "--directory", str(tmp_path), "--json", str(file)]
    main(arguments, quick=TINY)
    assert "sequential read" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert list(written["cases"]) == ["reading"]
    assert len(written["cases"]["reading"][0]["ratios"]) == 2
    assert written["machine"]["file system"]


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    assert "nothing" in capsys.readouterr().err


ROW = Row(measure="sends", unit="MB/s", engine=[80, 60, 70], bare=[100, 100, 100])


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target(Bound.RATIO_AT_LEAST, 0.7), "met"),
        (Target(Bound.RATIO_AT_LEAST, 0.71), "MISSED"),
        (Target(Bound.RATIO_AT_MOST, 0.6), "MISSED"),
        (Target(Bound.AT_LEAST, 70), "met"),
        (Target(Bound.AT_MOST, 69), "MISSED"),
        (Target(Bound.EXCESS_AT_MOST, -30), "met"),
        (Target(Bound.AT_LEAST, 100, Weight.AIM), "BELOW THE AIM"),
        (Target(Bound.AT_LEAST, 100, Weight.CLAIM), "not as claimed"),
    ],
)
def test_a_row_is_judged_by_the_median_of_its_rounds(target: Target, verdict: str) -> None:
    assert target.verdict(ROW) == verdict


def test_the_table_shows_the_spread() -> None:
    assert "0.70 (0.60..0.80)" in table([ROW])


def test_another_release_of_spark_is_shown_beside_this_one(tmp_path: Path) -> None:
    other = tmp_path / "python"
    reads_there = {"measure": "reads", "engine": [90, 70], "bare": [50, 50]}
    found = {"release": "4.1", "rows": [reads_there, {"measure": "starts", "engine": [3], "bare": []}]}
    other.write_text(f"#!/bin/sh\necho '{json.dumps(found)}' > \"$4\"\n")
    other.chmod(0o755)
    reads = Row(measure="reads", unit="MB/s", engine=[100, 100], bare=[100, 100], bare_name="Parquet")
    own = [reads, replace(reads, bare_name="ready batches"), Row(measure="starts", unit="s", engine=[2])]
    rows = list(spark_releases.rows_beside(other, Bench(tmp_path, TINY), own))
    assert [(row.measure, row.ratios, row.verdict, row.note) for row in rows] == [
        ("reads, Spark 4.1", [0.9, 0.7], "MISSED", "without Courser 0.50"),
        ("starts, Spark 4.1", [1.5], "MISSED", ""),
    ]


def test_percentiles_are_values_that_occurred() -> None:
    values = list(range(1, 101))
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([3.0], 0.5) == 3.0


@pytest.mark.parametrize(
    ("number", "text"), [(1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012"), (8.0, "8")]
)
def test_numbers_have_about_three_digits(number: float, text: str) -> None:
    assert format_number(number) == text
