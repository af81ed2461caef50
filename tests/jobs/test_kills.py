"""Drivers that are really killed in the middle: the next run ends with every message once."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from courser.jobs.export import export
from courser.jobs.replay import replay
from courser.spark.session import prepare_environment
from tests.jobs.topics import all_messages, connected, facts_of, fill_topic, make_topic, options_of
from tests.lake.rows import ask_duckdb, offsets_by_polars
from tests.servers import ROOT, RunningServer
from tests.sessions import kill_session
from tests.spark_fixtures import TEST_SETTINGS, running_cluster

PATIENCE = 600.0
COUNT = 6000
SMALL = {"maxBytesPerPartition": "16 KiB"}

DRIVER = f"""
import sys
from pathlib import Path
from courser.jobs.export import export
from courser.jobs.replay import replay
from courser.spark.session import spark_session
spark = spark_session("killed", "local[2]", {TEST_SETTINGS!r})
"""


@contextlib.contextmanager
def driver(code: str, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with a session of its own that runs a job; with all that it started, it is gone at the end."""
    environment = dict(os.environ)
    prepare_environment(environment, "local[2]")
    with (directory / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER + code],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_session(process)


def kill_when(process: "subprocess.Popen[bytes]", moment: Callable[[], bool]) -> None:
    """SIGKILL for the driver, its Java and its workers, as when a machine dies."""
    deadline = time.monotonic() + PATIENCE
    while not moment():
        assert time.monotonic() < deadline, "the moment never came"
        assert process.poll() is None, "the driver ended before it could be killed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.002)
    kill_session(process)


def test_an_export_that_is_killed_between_files(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    with connected(server) as client:
        make_topic(client, "exported")
        fill_topic(client, "exported", COUNT)
    options = options_of(server, "exported", **SMALL)
    lake = tmp_path / "lake"
    with driver(f"export(spark, {options!r}, Path({str(lake)!r}), step_size=30_000)", tmp_path) as process:
        kill_when(process, lambda: sum(1 for _ in lake.rglob("*.parquet")) >= 5)
    before = len(list(lake.rglob("*.parquet")))
    report = export(spark, options, tmp_path / "lake")
    assert 0 < report.resumed_count == report.range_count
    assert before >= 5
    rows = ask_duckdb(tmp_path / "lake", 'select "partition", "offset" from lake order by 1, 2')
    assert rows == [(partition, offset) for partition in range(2) for offset in range(COUNT)]
    assert len(offsets_by_polars(tmp_path / "lake")) == 2 * COUNT
    assert not list((tmp_path / "lake").rglob("*.partial"))


@pytest.mark.slow
def test_a_replay_that_is_killed_between_steps(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    with connected(server) as client:
        make_topic(client, "replayed")
        fill_topic(client, "replayed", COUNT)
        make_topic(client, "copy")
    read, write = options_of(server, "replayed", **SMALL), options_of(server, "copy")
    settings = {"job": "killed", "step_size": 30_000}
    call = f"replay(spark, {read!r}, {write!r}, books=Path({str(tmp_path)!r}), **{settings!r})"
    with connected(server) as client:
        with driver(call, tmp_path) as process:
            kill_when(process, lambda: (client.get_sink("replay killed").batch or 0) >= 3)
        published = sum(row.message_count for row in client.get_partition_bounds("shop", "copy").partitions)
        assert 0 < published < 2 * COUNT
        report = replay(spark, read, write, books=tmp_path, job="killed", step_size=30_000)
        assert report.resumed_count == report.step_count > 0
        for partition in range(2):
            wanted = list(map(facts_of, all_messages(client, "replayed", partition)))
            assert list(map(facts_of, all_messages(client, "copy", partition))) == wanted


CLUSTER_EXPORT = """
from pathlib import Path
from courser.jobs.export import export
options = dict(item.split("=", 1) for item in sys.argv[2:])
report = export(spark, options, Path(sys.argv[1]), step_size=30_000)
print(report.range_count, report.row_count)
"""


@pytest.mark.slow
def test_an_export_on_a_cluster_whose_executor_is_killed_in_mid_task(
    server: RunningServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with connected(server) as client:
        make_topic(client, "clustered")
        fill_topic(client, "clustered", COUNT)
    lake = tmp_path / "lake"
    options = [f"{name}={value}" for name, value in options_of(server, "clustered", **SMALL).items()]
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        process = cluster.start_driver(CLUSTER_EXPORT, str(lake), *options)
        try:
            deadline = time.monotonic() + PATIENCE
            while sum(1 for _ in lake.rglob("*.parquet")) < 3:
                assert time.monotonic() < deadline, "no range was finished"
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.002)
                    raise AssertionError(f"the driver ended too early: {process.communicate()}")
            executors = children_of(cluster.workers[0].pid)
            assert executors, "a worker has an executor while it works"
            for executor in executors:
                os.kill(executor, signal.SIGKILL)
            output, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert int(output.split()[1]) == 2 * COUNT
    rows = ask_duckdb(lake, 'select "partition", "offset" from lake order by 1, 2')
    assert rows == [(partition, offset) for partition in range(2) for offset in range(COUNT)]


def children_of(parent: int) -> list[int]:
    """Processes that a process has started."""
    found = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(number) for path in found for number in path.read_text().split()]
