"""Runners that are killed: the whole command, with SIGKILL, at the worst moments. Every row arrives once."""

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.runs import COURSER, JAVA, batches, dying, end_of, output_of, start
from tests.pipelines.scenes import PATIENCE, STREAM, Scene, order, orders_source
from tests.servers import RunningServer
from tests.sessions import kill_session

FEW_ORDERS = range(400)
ORDERS = range(1000)
MORE = range(1000, 1200)
LIMIT = "max_messages_per_trigger = 200"


pytestmark = pytest.mark.timeout(900)
"""Seconds: on a machine that is busy with other things Java takes a minute to start."""


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer) -> Scene:
    """Without a session: the commands have their own."""
    return Scene(tmp_path, server)


def kill_when(scene: Scene, runner: "subprocess.Popen[str]", moment: Callable[[], bool]) -> None:
    """Wait for a moment, and kill it there."""
    deadline = time.monotonic() + PATIENCE
    try:
        while not moment():
            # Looking is all that this process does meanwhile: the moment is short.
            assert runner.poll() is None, f"the run ended with {runner.returncode}:\n{output_of(scene)}"
            assert time.monotonic() < deadline, f"the moment does not come:\n{output_of(scene)}"
        runner.kill()
    finally:
        kill_session(runner)


def define(scene: Scene, orders: str, copy: str, sent: range, *, is_raw: bool = False) -> list[str]:
    """One pipeline into a lake, one into a topic."""
    scene.make_topic(orders)
    scene.make_topic(copy)
    scene.send_orders(orders, sent)
    raw = f'[source]\nstream = "{STREAM}"\ntopic = "{orders}"\n{LIMIT}\n'
    source = raw if is_raw else orders_source(orders, LIMIT)
    scene.define("lake", f'{source}[sink]\ntype = "parquet"\npath = "lake"\n{JAVA}')
    scene.define("copy", f'{raw}[sink]\ntype = "topic"\nstream = "{STREAM}"\ntopic = "{copy}"\n{JAVA}')
    return ["lake.toml", "copy.toml"]


def check(scene: Scene, copy: str, orders: range) -> None:
    column = "json_extract(decode(payload), '$.id')::BIGINT" if list(scene.folder.glob("lake/partition=*")) else "id"
    assert scene.count("lake", column) == Counter(orders)
    assert Counter(scene.payloads(copy)) == Counter(map(order, orders))


def test_killed_in_the_middle_of_publishing_a_batch(scene: Scene) -> None:
    files = define(scene, "orders", "copy", FEW_ORDERS)
    # Two files a batch: the second batch has one in the lake, and the other one not.
    runner = start(scene, dying("courser.lake.staged_parquet.make_folders", 4), *files, "--once")
    assert end_of(scene, runner) == -signal.SIGKILL
    assert len(list(scene.folder.glob("lake/**/*.parquet"))) == 3
    assert 1 in batches(scene, "lake", "offsets") - batches(scene, "lake", "commits")

    assert end_of(scene, start(scene, COURSER, *files, "--once")) == 0
    check(scene, "copy", FEW_ORDERS)


@pytest.mark.slow
def test_killed_again_and_again(scene: Scene) -> None:
    files = define(scene, "orders-slow", "copy-slow", ORDERS, is_raw=True)
    between = start(scene, COURSER, *files)
    kill_when(scene, between, lambda: 0 in batches(scene, "copy", "commits"))
    within = start(scene, COURSER, *files)
    kill_when(scene, within, lambda: bool(batches(scene, "copy", "offsets") - batches(scene, "copy", "commits")))
    scene.send_orders("orders-slow", MORE)
    # Everything of a batch is published, but Spark does not know.
    unknown = dying("courser.pipelines.lake_publishing._forget_older", 1)
    assert end_of(scene, start(scene, unknown, *files)) == -signal.SIGKILL
    assert end_of(scene, start(scene, COURSER, *files, "--once")) == 0
    check(scene, "copy-slow", range(MORE.stop))
