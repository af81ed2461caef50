"""Runners that are killed: the whole command, with SIGKILL, at the worst moments. Every row arrives once."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.scenes import PATIENCE, STREAM, Scene, order, orders_source
from tests.servers import ROOT, RunningServer
from tests.spark_fixtures import JAVA_OPTIONS

ORDERS = range(1000)
MORE = range(1000, 1200)
LIMIT = "max_messages_per_trigger = 200"
COURSER = [str(Path(sys.executable).parent / "courser")]


pytestmark = pytest.mark.timeout(900)
"""Seconds: on a machine that is busy with other things Java takes a minute to start."""


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer) -> Scene:
    """Without a session: the commands have their own."""
    return Scene(tmp_path, server)


def start(scene: Scene, program: list[str], *arguments: str) -> subprocess.Popen[str]:
    """A command that runs pipelines."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COURSER_", "IGGY_"))}
    environment |= {"COURSER_STATE_HOME": str(scene.folder / "state"), "PYTHONPATH": str(ROOT)}
    with (scene.folder / "out.txt").open("a") as output:
        return subprocess.Popen(
            [*program, "pipeline", "run", *arguments, "--master", "local[2]"],
            cwd=scene.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def end_of(scene: Scene, runner: "subprocess.Popen[str]") -> int:
    try:
        return runner.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        runner.kill()
        runner.wait()
        raise AssertionError(f"the run does not end:\n{(scene.folder / 'out.txt').read_text()}") from None


def kill_when(scene: Scene, runner: "subprocess.Popen[str]", moment: Callable[[], bool]) -> None:
    """Wait for a moment, and kill it there."""
    deadline = time.monotonic() + PATIENCE
    try:
        while not moment():
            # Looking is all that this process does meanwhile: the moment is short.
            output = (scene.folder / "out.txt").read_text()
            assert runner.poll() is None, f"the run ended with {runner.returncode}:\n{output}"
            assert time.monotonic() < deadline, f"the moment does not come:\n{output}"
    finally:
        runner.kill()
        runner.wait()


def define(scene: Scene, orders: str, copy: str, *, is_raw: bool = False) -> list[str]:
    """One pipeline into a lake, one into a topic."""
    scene.make_topic(orders)
    scene.make_topic(copy)
    scene.send_orders(orders, ORDERS)
    java = f'[spark]\n"spark.driver.extraJavaOptions" = "{JAVA_OPTIONS}"\n'
    raw = f'[source]\nstream = "{STREAM}"\ntopic = "{orders}"\n{LIMIT}\n'
    source = raw if is_raw else orders_source(orders, LIMIT)
    scene.define("lake", f'{source}[sink]\ntype = "parquet"\npath = "lake"\n{java}')
    scene.define("copy", f'{raw}[sink]\ntype = "topic"\nstream = "{STREAM}"\ntopic = "{copy}"\n{java}')
    return ["lake.toml", "copy.toml"]


def batches(scene: Scene, name: str, folder: str) -> set[int]:
    """The batches that Spark has planned (``offsets``) or finished (``commits``)."""
    place = scene.folder / "checkpoints" / name / "generation-1" / "spark" / folder
    names = [path.name for path in place.iterdir()] if place.is_dir() else []
    return {int(name) for name in names if name.isdecimal()}


def check(scene: Scene, copy: str, orders: range) -> None:
    column = "json_extract(decode(payload), '$.id')::BIGINT" if list(scene.folder.glob("lake/partition=*")) else "id"
    assert scene.count("lake", column) == Counter(orders)
    assert Counter(scene.payloads(copy)) == Counter(map(order, orders))


def test_killed_in_the_middle_of_publishing_a_batch(scene: Scene) -> None:
    files = define(scene, "orders", "copy")
    # Two files a batch: the second batch has one in the lake, and the other one not.
    dying = [sys.executable, "-m", "tests.pipelines.dying", "courser.pipelines.publishing.sync_folder", "3"]
    runner = start(scene, dying, *files, "--once")
    assert end_of(scene, runner) == -signal.SIGKILL
    assert len(list(scene.folder.glob("lake/**/*.parquet"))) == 3
    assert 1 in batches(scene, "lake", "offsets") - batches(scene, "lake", "commits")

    assert end_of(scene, start(scene, COURSER, *files, "--once")) == 0
    check(scene, "copy", ORDERS)


@pytest.mark.slow
def test_killed_again_and_again(scene: Scene) -> None:
    files = define(scene, "orders-slow", "copy-slow", is_raw=True)
    between = start(scene, COURSER, *files)
    kill_when(scene, between, lambda: 0 in batches(scene, "copy", "commits"))
    within = start(scene, COURSER, *files)
    kill_when(scene, within, lambda: bool(batches(scene, "copy", "offsets") - batches(scene, "copy", "commits")))
    scene.send_orders("orders-slow", MORE)
    # Everything of a batch is published, but Spark does not know.
    name = "courser.pipelines.publishing._forget_older"
    assert end_of(scene, start(scene, [sys.executable, "-m", "tests.pipelines.dying", name, "1"], *files)) == -9
    assert end_of(scene, start(scene, COURSER, *files, "--once")) == 0
    check(scene, "copy-slow", range(MORE.stop))
