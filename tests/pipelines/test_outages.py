"""A server that goes away while a pipeline runs, and comes back; and one that does not."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from courser.pipelines.state_folder import StateFolder, Status
from tests.pipelines.scenes import Scene, orders_source
from tests.servers import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def scene(tmp_path: Path, spark: "SparkSession") -> Scene:
    """With a server of its own, which is not running yet."""
    return Scene(tmp_path, RunningServer(tmp_path / "server"), spark)


def test_the_server_goes_away_and_comes_back(scene: Scene) -> None:
    scene.server.start()
    scene.make_topic("orders")
    scene.send_orders("orders", range(100))
    path = scene.define("lake", orders_source("orders") + '[sink]\ntype = "parquet"\npath = "lake"\n')
    text = path.read_text().replace("restarts = 20", 'restarts = 1000\ntrigger = "100ms"\nrestart_delay_max = "200ms"')
    # Who waits for a server that is down gives up soon; one that is slow, on a busy machine, is waited for.
    path.write_text(text.replace(scene.url, f"{scene.url}?request_timeout=5s&connect_timeout=5s"))
    try:
        with scene.running(path, once=False) as runner:

            def watch(condition: Callable[[Status], bool]) -> None:
                while not condition(runner.statuses[0]):
                    assert not runner.wait(0.1), runner.statuses

            watch(lambda status: status.rows == 100)
            scene.server.kill()
            watch(lambda status: status.state == "restarting" and status.restarts > 0)
            # The file follows a moment later.
            folder = StateFolder(scene.home, "lake")
            watch(lambda _: (saved := folder.read()) is not None and saved.error is not None)
            assert "\n" not in (runner.statuses[0].error or "\n")
            scene.server.start()
            scene.send_orders("orders", range(100, 200))
            watch(lambda status: status.rows == 200 and status.state == "running" and status.error is None)
        assert [status.state for status in runner.statuses] == ["stopped"]
    finally:
        scene.server.stop()
    assert scene.count("lake", "id") == Counter(range(200))


def test_a_server_that_does_not_come_is_given_up(scene: Scene) -> None:
    scene.server.start()
    path = scene.define("lake", orders_source("orders") + '[sink]\ntype = "parquet"\npath = "lake"\n')
    scene.server.stop()
    path.write_text(path.read_text().replace("restarts = 20", "restarts = 2"))
    (status,) = scene.run(path)
    assert (status.state, status.restarts) == ("failed", 2)
    assert status.error is not None
    assert "gave up after 3 failures" in status.error
