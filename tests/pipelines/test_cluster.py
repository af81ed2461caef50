"""A pipeline on a real cluster: a master and two workers, whose executors are processes of their own."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.pipelines.scenes import PATIENCE, STREAM, Scene, order, orders_source
from tests.servers import RunningServer
from tests.spark_fixtures import JAVA_OPTIONS, Cluster


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lakes_and_topics_from_a_cluster(tmp_path: Path, server: RunningServer, cluster: Cluster) -> None:
    scene = Scene(tmp_path, server)
    scene.make_topic("orders")
    scene.make_topic("copy")
    scene.send_orders("orders", range(500))
    settings = (
        '[spark]\n"spark.executor.memory" = "512m"\n"spark.executor.cores" = 1\n'
        f'"spark.driver.extraJavaOptions" = "{JAVA_OPTIONS}"\n"spark.executor.extraJavaOptions" = "{JAVA_OPTIONS}"\n'
    )
    raw = f'[source]\nstream = "{STREAM}"\ntopic = "orders"\n'
    files = [
        scene.define("lake", orders_source("orders") + f'[sink]\ntype = "parquet"\npath = "lake"\n{settings}'),
        scene.define("raw", f'{raw}[sink]\ntype = "parquet"\npath = "raw"\n{settings}'),
        scene.define("copy", f'{raw}[sink]\ntype = "topic"\nstream = "{STREAM}"\ntopic = "copy"\n{settings}'),
    ]
    command = [str(Path(sys.executable).parent / "courser"), "pipeline", "run", *map(str, files)]
    environment = cluster.environment | {"COURSER_STATE_HOME": str(scene.home), "HOME": os.environ.get("HOME", "")}
    done = subprocess.run(
        [*command, "--master", cluster.master],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert scene.count("lake", "id") == Counter(range(500))
    wanted = Counter(map(order, range(500)))
    assert scene.count("raw", "payload") == wanted
    assert Counter(scene.payloads("copy")) == wanted
