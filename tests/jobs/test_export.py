"""Export on Spark: every message once, whoever reads the lake and however often the export is begun."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars
import pytest
from pyspark.sql import SparkSession

from courser.jobs.export import RangeWork, export, stage_range
from courser.jobs.export_manifest import BOOKS, STAGING, ManifestRefused, load_manifest, save_manifest
from courser.jobs.merge import merge
from courser.lake.locks import FolderInUse, only_writer
from courser.lake.staged_parquet import move_into_place
from courser.spark.errors import DataLost
from tests.jobs.topics import ORIGIN, connected, file_options, fill_topic, make_topic, options_of
from tests.lake.rows import ask_duckdb
from tests.servers import RunningServer

COUNT = 1200


def rows_of(lake: Path) -> list[tuple[int, ...]]:
    return ask_duckdb(lake, 'select "partition", "offset" from lake order by 1, 2')


def expected(count: int, *, partitions: int = 2) -> list[tuple[int, ...]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


def data_files(lake: Path) -> set[str]:
    return {str(path.relative_to(lake)) for path in lake.rglob("*.parquet")}


@pytest.fixture
def orders(server: RunningServer, request: pytest.FixtureRequest) -> str:
    """A topic of this test's own, with two partitions."""
    topic: str = request.node.name[:200]
    with connected(server) as client:
        make_topic(client, topic)
        fill_topic(client, topic, COUNT)
    return topic


def test_every_field_arrives_for_every_reader(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    report = export(spark, options_of(server, orders), tmp_path, include_headers=True)
    assert (report.row_count, report.resumed_count, report.ends) == (2 * COUNT, 0, {0: COUNT, 1: COUNT})
    assert rows_of(tmp_path) == expected(COUNT)
    frame = polars.read_parquet(tmp_path / "**" / "*.parquet", hive_partitioning=True).sort("partition", "offset")
    assert frame.height == 2 * COUNT
    row = frame.row(COUNT + 3, named=True)
    assert (row["stream"], row["topic"], row["partition"], row["offset"]) == ("shop", orders, 1, 3)
    assert row["payload"] == b"1:3:xxx"
    assert row["key"] == b"customer-3"
    assert int.from_bytes(row["id"], "little") == 1_000_004
    assert row["origin_timestamp"] == datetime.fromtimestamp((ORIGIN + 3000) / 1e6, UTC)
    names = ask_duckdb(tmp_path, 'select map_keys(headers) from lake where "partition" = 1 and "offset" in (3, 4)')
    assert sorted(names, key=str) == [(None,), (["number", "shop"],)]
    assert str(row["day"]) == row["timestamp"].strftime("%Y-%m-%d")
    assert spark.read.parquet(str(tmp_path)).count() == 2 * COUNT


def test_files_are_named_after_their_offsets_and_small_tasks_make_many(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    options = options_of(server, orders, maxBytesPerPartition="64 KiB")
    report = export(spark, options, tmp_path, by="none", compression="snappy")
    assert report.range_count == report.file_count == len(data_files(tmp_path)) > 2
    assert rows_of(tmp_path) == expected(COUNT)
    folder = f"stream=shop/topic={orders}/partition=0"
    first = min(name for name in data_files(tmp_path) if name.startswith(folder))
    end = min(part.end for part in load_manifest(report.folder).ranges if part.start == 0)  # type: ignore[union-attr]
    assert first == f"{folder}/{0:020d}-{end - 1:020d}.parquet"


def test_segment_files_are_exported_without_a_server(spark: SparkSession, tmp_path: Path) -> None:
    with RunningServer(tmp_path / "server") as server, connected(server) as client:
        make_topic(client, "orders")
        fill_topic(client, "orders", COUNT)
    report = export(spark, file_options(server.data, "orders"), tmp_path / "lake", by="hour")
    assert report.row_count == 2 * COUNT
    assert rows_of(tmp_path / "lake") == expected(COUNT)


def test_the_next_export_brings_what_is_new(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    export(spark, options_of(server, orders), tmp_path)
    before = data_files(tmp_path)
    nothing = export(spark, options_of(server, orders), tmp_path)
    assert (nothing.range_count, nothing.row_count) == (0, 0)
    with connected(server) as client:
        fill_topic(client, orders, 10, first=COUNT)
    report = export(spark, options_of(server, orders), tmp_path)
    assert report.row_count == 20
    assert before < data_files(tmp_path)
    assert rows_of(tmp_path) == expected(COUNT + 10)


def test_again_overwrites_the_same_files(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    export(spark, options_of(server, orders, maxBytesPerPartition="64 KiB"), tmp_path)
    before = data_files(tmp_path)
    # Another split does not matter: the ranges are those of the first time.
    report = export(spark, options_of(server, orders), tmp_path, again=True)
    assert report.row_count == 2 * COUNT
    assert data_files(tmp_path) == before
    assert rows_of(tmp_path) == expected(COUNT)


def test_what_a_crash_left_unfinished_is_written_again_and_the_rest_is_not(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    options = options_of(server, orders, maxBytesPerPartition="64 KiB")
    folder = export(spark, options, tmp_path).folder
    manifest = load_manifest(folder)
    assert manifest is not None
    # As if the driver had died while it moved files into place: one range is done, and one has its file.
    _, visible, *hidden = manifest.ranges
    save_manifest(folder, replace(manifest, unfinished=frozenset((visible, *hidden))))
    for path in folder.rglob("*.parquet"):
        first = int(path.name.partition("-")[0])
        if any((part.partition, part.start) == (partition_of(path), first) for part in hidden):
            path.unlink()
    (folder / STAGING / "0").mkdir(parents=True)
    (folder / STAGING / "0" / "rows.staged").touch()
    report = export(spark, options, tmp_path)
    assert (report.resumed_count, report.range_count) == (len(hidden) + 1, len(hidden) + 1)
    assert rows_of(tmp_path) == expected(COUNT)
    assert not (folder / STAGING).exists()


def partition_of(path: Path) -> int:
    return int(path.parent.name.partition("=")[2])


def test_an_export_makes_its_files_visible_step_by_step(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(server, orders, maxBytesPerPartition="16 KiB")
    seen: list[int] = []

    def move(lake: Path, moves: Mapping[str, Path]) -> None:
        manifest = load_manifest(lake)
        assert manifest is not None
        seen.append(len(manifest.unfinished))
        move_into_place(lake, moves)

    monkeypatch.setattr("courser.jobs.export.move_into_place", move)
    report = export(spark, options, tmp_path, step_size=32 * 1024)
    assert seen[0] == report.range_count
    assert len(seen) > 2
    assert seen == sorted(seen, reverse=True)
    assert rows_of(tmp_path) == expected(COUNT)


def test_two_exports_into_one_folder_exclude_each_other(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    folder = export(spark, options_of(server, orders), tmp_path).folder
    with only_writer(folder / BOOKS), pytest.raises(FolderInUse, match="another run is writing"):
        export(spark, options_of(server, orders), tmp_path)


def test_a_task_that_outlives_its_export_brings_no_row_twice(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(server, orders, maxBytesPerPartition="64 KiB")
    sent: list[RangeWork] = []

    class Killed(Exception):
        """The driver is gone, and a worker of it is not."""

    def die(_spark: SparkSession, _work: object, items: list[RangeWork], **_: object) -> None:
        sent.extend(items)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("courser.jobs.export.run_in_tasks", die)
        with pytest.raises(Killed):
            export(spark, options, tmp_path)
    export(spark, options, tmp_path)
    merge(spark, tmp_path)
    assert stage_range(sent[0])
    assert rows_of(tmp_path) == expected(COUNT)
    merge(spark, tmp_path)
    assert not list(tmp_path.rglob("rows.staged"))


def test_what_does_not_go_together_is_refused(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    options = options_of(server, orders)
    export(spark, options, tmp_path)
    with pytest.raises(ManifestRefused, match="folders by day/partition, not by day/hour/partition"):
        export(spark, options, tmp_path, by="hour")
    with pytest.raises(ManifestRefused, match="no column headers"):
        export(spark, options, tmp_path, include_headers=True)
    with connected(server) as client:
        client.delete_topic("shop", orders)
        make_topic(client, orders)
    with pytest.raises(ManifestRefused, match="deleted and recreated"):
        export(spark, options, tmp_path)


def test_messages_that_retention_took_before_the_export_stop_it(
    spark: SparkSession, server: RunningServer, orders: str, tmp_path: Path
) -> None:
    folder = export(spark, options_of(server, orders, endingOffsets=json.dumps({orders: {"0": 10}})), tmp_path).folder
    with connected(server) as client:
        client.purge_topic("shop", orders)
        fill_topic(client, orders, 5, first=COUNT)
        earliest = client.get_partition_bounds("shop", orders).partitions[0].first_offset
    assert load_manifest(folder).ends()[0] == 10 < earliest  # type: ignore[union-attr]
    with pytest.raises(DataLost, match=f"{earliest - 10} messages are gone"):
        export(spark, options_of(server, orders), tmp_path)
    report = export(spark, options_of(server, orders, failOnDataLoss="false"), tmp_path)
    assert report.row_count == 10
