"""Spark Connect when something dies: the Spark server, or the command. Every row arrives once."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from tests.pipelines.remote import output_of, start
from tests.pipelines.runs import batches
from tests.pipelines.scenes import PATIENCE, STREAM, Scene, order, orders_source
from tests.servers import ROOT, RunningServer
from tests.spark_fixtures import SparkServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LIMIT = "max_messages_per_trigger = 100"


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer) -> Scene:
    return Scene(tmp_path, server)


@pytest.fixture
def spark_server(tmp_path: Path) -> Iterator[SparkServer]:
    with SparkServer(tmp_path / "spark-server") as running:
        yield running


def define(scene: Scene, topic: str) -> list[str]:
    """One pipeline into a lake, one into a topic, many small batches each."""
    copy = f"{topic}-copy"
    scene.make_topic(topic)
    scene.make_topic(copy, 1)
    scene.send_orders(topic, range(800))
    raw = f'[source]\nstream = "{STREAM}"\ntopic = "{topic}"\n{LIMIT}\n'
    scene.define("lake", f'{orders_source(topic, LIMIT)}[sink]\ntype = "parquet"\npath = "lake"\n')
    scene.define("copy", f'{raw}[sink]\ntype = "topic"\nstream = "{STREAM}"\ntopic = "{copy}"\n')
    return ["lake.toml", "copy.toml"]


def check(scene: Scene, topic: str) -> None:
    assert scene.count("lake", "id") == Counter(range(800))
    assert Counter(scene.payloads(f"{topic}-copy", 1)) == Counter(map(order, range(800)))


def wait_until(scene: Scene, runner: "subprocess.Popen[str]", moment: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not moment():
        assert runner.poll() is None, f"the run ended with {runner.returncode}:\n{output_of(scene)}"
        assert time.monotonic() < deadline, f"the moment does not come:\n{output_of(scene)}"


def test_the_spark_server_is_killed_in_the_middle_and_comes_back(scene: Scene, spark_server: SparkServer) -> None:
    files = define(scene, "server")
    runner = start(scene, spark_server.url, *files)
    try:
        wait_until(scene, runner, lambda: len(batches(scene, "lake", "commits")) >= 2)
        spark_server.kill()
        spark_server.start()
        assert runner.wait(PATIENCE) == 0, output_of(scene)
    finally:
        runner.kill()
    assert '"restarting"' in output_of(scene)
    check(scene, "server")


def test_the_command_is_killed_and_the_next_run_takes_its_queries_over(scene: Scene, spark_server: SparkServer) -> None:
    files = define(scene, "command")
    runner = start(scene, spark_server.url, *files, "--continuous")
    try:
        wait_until(scene, runner, lambda: len(batches(scene, "lake", "commits")) >= 2)
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait(PATIENCE)
    # Its queries are still running in the Spark server.
    second = start(scene, spark_server.url, *files, "--once")
    try:
        assert second.wait(PATIENCE) == 0, output_of(scene)
    finally:
        second.kill()
    check(scene, "command")


def test_pyspark_client_suffices_for_pipelines(scene: Scene, spark_server: SparkServer, tmp_path: Path) -> None:
    """An environment as the guide says: Courser with the extra ``connect``, no Java and no Spark."""
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # A client may be older than its server.
    wanted = [f"{ROOT}[connect]", f"pyspark-client<={pyspark.__version__}"]
    subprocess.run([*pip, *wanted], check=True, timeout=PATIENCE)
    assert not list(place.glob("lib/python*/site-packages/pyspark/jars"))
    courser = place / "bin" / "courser"
    runner = start(scene, spark_server.url, *define(scene, "client"), program=courser)
    assert runner.wait(PATIENCE) == 0, output_of(scene)
    check(scene, "client")
    refused = subprocess.run(
        [courser, "pipeline", "run", "lake.toml"], cwd=scene.folder, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "error: pyspark-client contains no Spark of its own; name a Spark server" in refused.stderr
