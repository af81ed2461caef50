"""The session: what it is told, and what its workers run on."""

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from courser.spark.session import session_settings
from tests.spark_fixtures import PATIENCE


def test_times_are_utc_and_shuffles_small(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    # Two for tests; four by default, which a command that shares this session may have set.
    assert spark.conf.get("spark.sql.shuffle.partitions") in {"2", "4"}
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"


def test_workers_run_on_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    def executable(numbers: object) -> list[str]:
        return [sys.executable]

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(executable).collect() == [sys.executable]


def test_what_is_asked_for_wins_over_the_defaults() -> None:
    settings = session_settings("mine", "local[1]", {"spark.sql.shuffle.partitions": "9"})
    assert settings["spark.sql.shuffle.partitions"] == "9"
    assert settings["spark.driver.host"] == "127.0.0.1"


def test_a_driver_of_a_real_cluster_is_not_bound_to_loopback() -> None:
    assert "spark.driver.host" not in session_settings("mine", "spark://10.0.0.1:7077", {})


def test_a_java_that_does_not_start_is_said_with_the_reason_and_the_log(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from courser.spark.session import spark_session
options = {{"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:+UseParallelGC"}}
spark_session("broken", "local[1]", options, log=Path("{tmp_path}/java.log"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("courser.spark.session.JavaFailed: could not start Spark: ")
    assert "Conflicting collector" in last or "Multiple garbage collectors" in last
    assert str(tmp_path / "java.log") in last
