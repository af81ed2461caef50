"""Backfill on Spark: files into a topic, each row once, by the partition of its key."""

import json
from pathlib import Path

import polars
import pytest
import xxhash
from pyspark.sql import SparkSession

from courser.jobs.backfill import BackfillRefused, BackfillReport, ColumnMapping, backfill
from courser.jobs.job_book import BookRefused, JobBook
from tests.jobs.topics import all_messages, connected, options_of
from tests.servers import RunningServer

PARTITIONS = 3


class Interrupted(Exception):
    """The driver dies."""


def orders(first: int, count: int) -> polars.DataFrame:
    numbers = range(first, first + count)
    return polars.DataFrame(
        {
            "number": list(numbers),
            "customer": [f"customer-{number % 7}" for number in numbers],
            "amount": [number / 4 for number in numbers],
            "at": [f"2026-05-01 12:00:{number % 60:02d}" for number in numbers],
        }
    )


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name[:150]
    return name


def run(
    spark: SparkSession, server: RunningServer, topic: str, files: list[Path], books: Path, **others: object
) -> BackfillReport:
    target = options_of(server, topic, createTopic=str(PARTITIONS))
    return backfill(spark, files, target, job=topic, books=books, **others)  # type: ignore[arg-type]


def numbers_in(server: RunningServer, topic: str) -> list[int]:
    with connected(server) as client:
        return sorted(
            json.loads(one.payload)["number"] for part in range(PARTITIONS) for one in all_messages(client, topic, part)
        )


def test_rows_of_parquet_become_json_in_the_partition_of_their_key(
    spark: SparkSession, server: RunningServer, topic: str, tmp_path: Path
) -> None:
    orders(0, 100).write_parquet(tmp_path / "a.parquet")
    mapped = ColumnMapping(key="customer", origin_timestamp="at", order="number")
    report = run(spark, server, topic, [tmp_path / "a.parquet"], tmp_path / "books", mapped=mapped)
    assert (report.file_count, report.message_count, report.step_count) == (1, 100, 1)
    assert numbers_in(server, topic) == list(range(100))
    with connected(server) as client:
        for part in range(PARTITIONS):
            messages = all_messages(client, topic, part)
            assert {xxhash.xxh32_intdigest(one.key or b"") % PARTITIONS for one in messages} <= {part}
            rows = [json.loads(one.payload) for one in messages]
            assert [row["number"] for row in rows] == sorted(row["number"] for row in rows)
            assert all(
                one.key == row["customer"].encode()
                and one.origin_timestamp == 1_777_636_800_000_000 + row["number"] % 60 * 10**6
                for one, row in zip(messages, rows, strict=True)
            )


def test_csv_and_json_lines_are_read_and_one_column_can_be_the_message(
    spark: SparkSession, server: RunningServer, topic: str, tmp_path: Path
) -> None:
    orders(0, 10).write_csv(tmp_path / "a.csv")
    orders(10, 10).write_ndjson(tmp_path / "b.jsonl")
    schema = "number INT, customer STRING, amount DOUBLE, at STRING"
    run(spark, server, topic, [tmp_path / "a.csv"], tmp_path / "books", schema=schema)
    assert numbers_in(server, topic) == list(range(10))
    other = f"{topic} customers"
    run(spark, server, other, [tmp_path / "b.jsonl"], tmp_path / "books", mapped=ColumnMapping(payload="customer"))
    with connected(server) as client:
        found = sorted(one.text() for part in range(PARTITIONS) for one in all_messages(client, other, part))
    assert found == sorted(f"customer-{number % 7}" for number in range(10, 20))


def test_a_run_under_the_same_name_sends_what_is_new(
    spark: SparkSession, server: RunningServer, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    orders(0, 10).write_parquet(folder / "a.parquet")
    run(spark, server, topic, [folder], tmp_path / "books")
    orders(10, 10).write_parquet(folder / "b.parquet")
    (folder / ".c.parquet.partial").write_bytes(b"half")
    report = run(spark, server, topic, [folder], tmp_path / "books")
    assert (report.file_count, report.skipped_count, report.message_count) == (1, 1, 10)
    assert run(spark, server, topic, [folder], tmp_path / "books").step_count == 0
    assert numbers_in(server, topic) == list(range(20))


def test_a_run_that_dies_behind_a_step_goes_on_with_the_next(
    spark: SparkSession, server: RunningServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"{name}.parquet" for name in "abc"]
    for number, path in enumerate(files):
        orders(number * 10, 10).write_parquet(path)
    save = JobBook.save

    def die_once_something_is_published(book: JobBook) -> None:
        if book.done_count == 2:
            raise Interrupted
        save(book)

    with monkeypatch.context() as patch:
        patch.setattr(JobBook, "save", die_once_something_is_published)
        with pytest.raises(Interrupted):
            run(spark, server, topic, files, tmp_path / "books", step_size=1)
    report = run(spark, server, topic, files, tmp_path / "books", step_size=1)
    assert (report.file_count, report.message_count) == (1, 10)
    assert numbers_in(server, topic) == list(range(30))


def test_what_cannot_be_sent_is_said_before_anything_is(
    spark: SparkSession, server: RunningServer, topic: str, tmp_path: Path
) -> None:
    one, other = tmp_path / "a.parquet", tmp_path / "b.csv"
    orders(0, 10).write_parquet(one)
    orders(0, 10).write_csv(other)
    books = tmp_path / "books"
    with pytest.raises(BackfillRefused, match="one format at a time"):
        run(spark, server, topic, [one, other], books)
    with pytest.raises(BackfillRefused, match="does not exist"):
        run(spark, server, topic, [tmp_path / "nothing.csv"], books)
    with pytest.raises(BackfillRefused, match='no column "custmer"; did you mean "customer"'):
        run(spark, server, topic, [one], books, mapped=ColumnMapping(key="custmer"))
    orders(0, 11).write_parquet(one)
    with pytest.raises(BookRefused, match="was changed after the job started"):
        run(spark, server, topic, [one], books)


def test_names_are_no_patterns(spark: SparkSession, server: RunningServer, topic: str, tmp_path: Path) -> None:
    orders(0, 5).write_ndjson(tmp_path / "orders[1].jsonl")
    orders(5, 5).write_ndjson(tmp_path / "orders{1,2}*?.jsonl")
    orders(90, 5).write_ndjson(tmp_path / "orders1.jsonl")
    chosen = [tmp_path / "orders[1].jsonl", tmp_path / "orders{1,2}*?.jsonl"]
    assert run(spark, server, topic, chosen, tmp_path / "books").message_count == 10
    assert numbers_in(server, topic) == list(range(10))


@pytest.mark.parametrize("name", ["_orders.jsonl", ".orders.jsonl"])
def test_a_file_that_spark_does_not_see_is_refused(
    name: str, spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    orders(0, 5).write_ndjson(tmp_path / name)
    with pytest.raises(BackfillRefused, match=r'begin with "\." or "_"; rename '):
        run(spark, server, "hidden", [tmp_path / name], tmp_path / "books")
