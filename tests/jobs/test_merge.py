"""Merge on Spark: fewer files with the same rows, and no way to lose or double one."""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from courser.jobs import merge as merge_module
from courser.jobs.export import export
from courser.jobs.export_manifest import BOOKS, STAGING, ManifestRefused
from courser.jobs.merge import UNSETTLED_SECONDS, MergeReport, merge
from courser.lake import staged_parquet
from courser.lake.file_names import range_file_name
from courser.lake.parquet_files import StagingFolder
from tests.jobs.topics import connected, fill_topic, make_topic, options_of
from tests.lake.rows import SCHEMA, ask_duckdb, batch_of, offsets_by_duckdb, offsets_by_polars, write_parquet
from tests.servers import RunningServer

STEP = 10


def small_files(lake: Path, count: int, *, partition: int = 0) -> None:
    """Files of ten rows each, all but the last one two hours old."""
    for number in range(count):
        name = range_file_name(number * STEP, number * STEP + STEP - 1)
        root = lake / f"partition={partition}"
        for file in write_parquet(root, name, [batch_of(number * STEP, STEP)], SCHEMA, folder_columns=["day"]):
            if number < count - 1:
                age(file)


def age(path: Path) -> None:
    then = path.stat().st_mtime - 2 * UNSETTLED_SECONDS
    os.utime(path, (then, then))


def names_below(lake: Path) -> list[str]:
    return sorted(path.name for path in lake.rglob("*.parquet"))


def test_small_files_become_one_and_no_row_changes(spark: SparkSession, tmp_path: Path) -> None:
    small_files(tmp_path, 6)
    before = ask_duckdb(tmp_path, "select * from lake order by all")
    report = merge(spark, tmp_path)
    assert (report.folder_count, report.merged_count, report.file_count, report.row_count) == (1, 5, 1, 50)
    assert names_below(tmp_path) == [range_file_name(0, 49), range_file_name(50, 59)]
    assert ask_duckdb(tmp_path, "select * from lake order by all") == before
    assert offsets_by_polars(tmp_path) == list(range(60))
    assert spark.read.parquet(str(tmp_path)).count() == 60


def test_a_second_merge_finds_nothing_to_do(spark: SparkSession, tmp_path: Path) -> None:
    small_files(tmp_path, 6)
    merge(spark, tmp_path)
    assert merge(spark, tmp_path).file_count == 0


def test_the_newest_files_of_a_writer_that_stands_still_are_never_merged(spark: SparkSession, tmp_path: Path) -> None:
    small_files(tmp_path, 6)
    # The last batch of a pipeline, two tasks' files, that stopped hours ago: it is repeated when the pipeline goes on.
    last = [next(tmp_path.rglob(range_file_name(first, first + STEP - 1))) for first in (40, 50)]
    written_at = last[1].stat().st_mtime
    os.utime(last[0], (written_at, written_at))
    for path in tmp_path.rglob("*.parquet"):
        age(path)
    assert merge(spark, tmp_path).file_count == 1
    assert merge(spark, tmp_path).file_count == 0
    assert all(path.exists() for path in last)


def test_folders_stay_apart(spark: SparkSession, tmp_path: Path) -> None:
    # The first hour's rows are of one day, all others of the next.
    small_files(tmp_path, 9)
    small_files(tmp_path, 9, partition=1)
    assert merge(spark, tmp_path).folder_count == 4
    days = ask_duckdb(tmp_path, 'select "partition", day, count(*) from lake group by all order by all')
    assert [row[2] for row in days] == [60, 30, 60, 30]


def test_large_files_and_the_newest_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    small_files(tmp_path, 4)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.parquet")]
    assert merge(spark, tmp_path, small_size=min(sizes)).file_count == 0
    assert merge(spark, tmp_path, target_size=2 * min(sizes)).file_count == 1
    assert range_file_name(30, 39) in names_below(tmp_path)
    assert offsets_by_duckdb(tmp_path) == list(range(40))


def test_files_that_overlap_or_are_named_otherwise_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    small_files(tmp_path, 1)
    for name in (range_file_name(5, 9), range_file_name(0, 4), "part-0.parquet", "part-1.parquet"):
        for file in write_parquet(tmp_path / "partition=0", name, [batch_of(0, 5)], SCHEMA, folder_columns=["day"]):
            age(file)
    before = names_below(tmp_path)
    # The two together would take the name of the one that holds other rows.
    age(next(tmp_path.rglob(range_file_name(0, 9))))
    write_parquet(tmp_path / "partition=0", range_file_name(50, 59), [batch_of(50, 5)], SCHEMA, folder_columns=["day"])
    assert merge(spark, tmp_path).file_count == 0
    assert set(before) < set(names_below(tmp_path))


def planned(lake: Path) -> list[merge_module._Work]:
    """What a merge gives to its tasks."""
    runs = merge_module._plan(lake, None, merge_module.SMALL_SIZE, merge_module.TARGET_SIZE)
    return [merge_module._Work(lake, run, "zstd") for run in runs]


class Killed(Exception):
    """The process is gone."""


def killed_before(step: str) -> Callable[..., object]:
    def die(*_: object, **__: object) -> None:
        raise Killed(step)

    return die


STEPS = {
    "before the new file is whole": (StagingFolder, "finish"),
    "before the note": (merge_module, "write_atomically"),
    "before the new name": (merge_module, "_finish_note"),
    "before the old files go": (merge_module, "remove_files"),
    "before the new name is durable": (staged_parquet, "sync_folder"),
}


@pytest.mark.parametrize("moment", STEPS)
def test_a_merge_that_was_killed_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(tmp_path, 6)
    [work] = planned(tmp_path)
    with monkeypatch.context() as patch:
        if moment == "before the new file is whole":
            patch.setattr(*STEPS[moment], killed_before(moment))
        with pytest.raises(Killed) if moment == "before the new file is whole" else nullcontext():
            staged = merge_module._stage_merged(work)
    if moment != "before the new file is whole":
        with monkeypatch.context() as patch:
            patch.setattr(*STEPS[moment], killed_before(moment))
            with pytest.raises(Killed):
                merge_module._replace_files(work, staged)
    seen = offsets_by_duckdb(tmp_path)
    assert set(seen) == set(range(60)), "no reader ever misses a row"
    report: MergeReport = merge(spark, tmp_path)
    assert report.finished_count == (0 if moment in ("before the new file is whole", "before the note") else 1)
    assert offsets_by_duckdb(tmp_path) == offsets_by_polars(tmp_path) == list(range(60))
    assert names_below(tmp_path) == [range_file_name(0, 49), range_file_name(50, 59)]
    assert not (tmp_path / STAGING).exists()
    assert not list((tmp_path / BOOKS).rglob("*.json"))


def test_a_merge_that_an_earlier_version_left_is_finished(spark: SparkSession, tmp_path: Path) -> None:
    """It wrote the new file beside the old ones, and its note does not say where."""
    small_files(tmp_path, 6)
    [work] = planned(tmp_path)
    staged = merge_module._stage_merged(work)
    folder = work.files[0].path.parent
    Path(staged.place).rename(folder / f".{work.name}.merged")
    note = {"folder": str(folder.relative_to(tmp_path)), "name": work.name}
    notes = tmp_path / BOOKS / "merging"
    notes.mkdir(parents=True)
    (notes / "note.json").write_text(json.dumps({**note, "replaces": [file.path.name for file in work.files]}))
    (folder / f"..{range_file_name(50, 59)}.merged.0.partial").touch()
    assert merge(spark, tmp_path).finished_count == 1
    assert offsets_by_duckdb(tmp_path) == offsets_by_polars(tmp_path) == list(range(60))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".merged", ".partial", ".json")]


def test_a_task_that_outlives_its_merge_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    small_files(tmp_path, 6)
    [work] = planned(tmp_path)
    files = [file.path.read_bytes() for file in work.files]
    merge(spark, tmp_path)
    for file, data in zip(work.files, files, strict=True):
        # It had opened them before they were removed.
        file.path.with_name(f"{file.path.name}.opened").write_bytes(data)
    late = replace(work, files=tuple(replace(file, path=Path(f"{file.path}.opened")) for file in work.files))
    assert merge_module._stage_merged(late).rows == 50
    assert offsets_by_duckdb(tmp_path) == list(range(60))
    merge(spark, tmp_path)
    assert not (tmp_path / STAGING).exists()


def test_a_merged_export_goes_on_but_cannot_be_written_again(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    with connected(server) as client:
        make_topic(client, "merged")
        fill_topic(client, "merged", 400)
    options = options_of(server, "merged", maxBytesPerPartition="16 KiB")
    folder = export(spark, options, tmp_path).folder
    report = merge(spark, tmp_path)
    assert report.file_count == 2
    assert json.loads((folder / BOOKS / "export.json").read_bytes())["is_merged"]
    with pytest.raises(ManifestRefused, match="its files were merged"):
        export(spark, options, tmp_path, again=True)
    with connected(server) as client:
        fill_topic(client, "merged", 5, first=400)
    export(spark, options, tmp_path)
    rows = ask_duckdb(tmp_path, 'select "partition", "offset" from lake order by 1, 2')
    assert rows == [(partition, offset) for partition in range(2) for offset in range(405)]
