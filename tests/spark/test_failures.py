"""What somebody reads whose job failed: one line, and everything else in a log."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from courser.errors import ClientFailure
from courser.spark.failures import is_slow_start, keep_trace, one_line
from courser.spark.java import JavaMissing
from tests.spark_fixtures import PATIENCE

SUGGESTION = "Did you mean one of the following? [`a`] (line 1, position 7)"


def failing(kind: str) -> Any:
    """A function for ``mapInArrow`` that fails in the worker."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        if kind == "ours":
            raise JavaMissing(("JAVA_HOME=/old has Java 8",))
        if kind == "chained":
            try:
                next(iter(()))
            except StopIteration as error:
                raise ValueError("the row has no amount") from error
        if kind == "dies":
            os._exit(3)
        if kind == "full":
            raise OSError(28, "No space left on device", "/data/x")
        yield from batches

    return work


def failure_of(frame: DataFrame) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- what Spark raises is the question
        frame.collect()
    return caught.value


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("ours", str(JavaMissing(("JAVA_HOME=/old has Java 8",)))),
        ("chained", "ValueError: the row has no amount"),
        ("full", "OSError: [Errno 28] No space left on device: '/data/x'"),
    ],
)
def test_an_error_in_a_worker_is_its_last_line(spark: SparkSession, kind: str, line: str) -> None:
    assert one_line(failure_of(spark.range(1).mapInArrow(failing(kind), "id long"))) == line


def test_a_worker_that_dies_is_said_to_have_died(spark: SparkSession) -> None:
    line = one_line(failure_of(spark.range(1).mapInArrow(failing("dies"), "id long")))
    assert line.startswith("Python worker exited unexpectedly")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("selekt 1", "Syntax error at or near 'selekt' (line 1, position 0)"),
        (
            "SELECT nope FROM (SELECT 1 AS a)",
            "A column, variable, or function parameter with name `nope` cannot be resolved. " + SUGGESTION,
        ),
    ],
)
def test_a_wrong_query_is_a_sentence_with_its_place(
    spark: SparkSession, query: str, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        spark.sql(query)
    assert one_line(caught.value) == line
    # Nor has Spark printed a page before.
    assert capfd.readouterr() == ("", "")


def test_a_failed_query_of_a_stream_is_the_line_of_its_function(spark: SparkSession, tmp_path: Path) -> None:
    def refuse(batch: DataFrame, number: int) -> None:
        raise ValueError(f"batch {number} is refused")

    stream = spark.readStream.format("rate").load().writeStream.foreachBatch(refuse)
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        query.awaitTermination(int(PATIENCE))
    assert one_line(caught.value) == "ValueError: batch 0 is refused"


def test_our_own_errors_are_their_sentence() -> None:
    error = ClientFailure("the server is gone")
    assert one_line(error) == str(error)


def test_other_errors_have_their_name() -> None:
    assert one_line(ValueError("no\nsuch   thing")) == "ValueError: no such thing"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_process_that_was_not_up_in_time_is_worth_another_try() -> None:
    assert is_slow_start(RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back."))
    assert not is_slow_start(RuntimeError("Python worker exited unexpectedly (crashed)"))


def test_a_line_has_an_end() -> None:
    assert len(one_line(ValueError("long " * 1000))) < 600


def test_the_log_has_the_line_and_both_traces(spark: SparkSession, tmp_path: Path) -> None:
    error = failure_of(spark.range(1).mapInArrow(failing("full"), "id long"))
    log = tmp_path / "logs" / "failures.log"
    keep_trace(error, log, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    text = log.read_text()
    assert text.startswith("2026-01-02T03:04:05+00:00 OSError: [Errno 28]")
    assert "Traceback (most recent call last)" in text
    assert "\tat org.apache.spark" in text
