"""The session: what it is told, and what its workers run on."""

import sys

from pyspark.sql import SparkSession

from courser.spark.session import session_settings
from tests.spark_fixtures import Cluster


def test_times_are_utc_and_shuffles_small(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
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


def test_a_cluster_runs_tasks_in_processes_of_both_workers(cluster: Cluster) -> None:
    code = """
    import os

    def parent(numbers):
        return [os.getppid()]

    print(len(set(spark.sparkContext.parallelize(range(8), 8).mapPartitions(parent).collect())))
    """
    assert cluster.run(code).split() == ["2"]
