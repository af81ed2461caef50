"""Writes whose drivers are killed: what is in the source is in the sink, once.

A usual run kills the driver of a pipeline (``tests/pipelines/test_kills.py``).
"""

import json
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from courser.client.sync import SyncClient
from courser.spark.releases import HAS_ADMISSION_CONTROL
from tests.servers import ROOT, RunningServer
from tests.spark.test_write import everything, stream_from
from tests.spark.topics import client_of, make_topic, numbered, options_of, send
from tests.spark_fixtures import TEST_SETTINGS

PATIENCE = 600.0

DRIVER = """
import json, sys
from courser.spark.session import spark_session
from tests.spark.held_writer import started
source, target, checkpoint, settings = json.loads(sys.argv[1])
spark = spark_session("held", "local[2]", settings)
started(spark, source, target, checkpoint).awaitTermination()
"""


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    with client_of(server) as client:
        yield client


def killed_driver(server: RunningServer, place: Path, moment: str) -> None:
    """Run a driver up to a moment of its commit, and kill it there."""
    sign = place / moment
    os.mkfifo(sign)
    pipe = os.open(sign, os.O_RDONLY | os.O_NONBLOCK)
    source = options_of(server, "kill source", startingOffsets="earliest", maxOffsetsPerTrigger=400)
    target = options_of(server, "killed", holdAt=moment, sign=sign)
    arguments = json.dumps([source, target, str(place / "checkpoint"), TEST_SETTINGS])
    with (place / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        assert select.select([pipe], [], [], PATIENCE)[0], f"no sign of {moment}"
    finally:
        os.close(pipe)
        driver.kill()
        driver.wait()


@pytest.mark.slow
def test_drivers_killed_before_and_behind_the_publish(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "kill source", 2)
    make_topic(client, "killed", 2)
    send(client, "kill source", 0, numbered(300))
    send(client, "kill source", 1, numbered(300, first=300))
    # All tasks have staged, and nobody publishes.
    killed_driver(server, tmp_path, "staged")
    assert everything(client, "killed") == []
    # It is published, and nobody notes it. The next driver runs the same batch with new tasks.
    killed_driver(server, tmp_path, "published")
    assert len(everything(client, "killed")) == 400
    # Before Spark 4.2, a run that ends is one batch: the first one, again.
    for _ in range(1 if HAS_ADMISSION_CONTROL else 2):
        stream_from(spark, server, "kill source", "killed", tmp_path / "checkpoint")
    assert Counter(everything(client, "killed")) == Counter(numbered(600))
