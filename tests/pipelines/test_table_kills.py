"""Delta and Iceberg tables whose runner is killed: before a commit, within it, behind it. Every row is there once."""

import json
import signal
from collections import Counter
from pathlib import Path

import polars
import pytest

from courser.lake import iceberg
from tests.pipelines.runs import COURSER, JAVA, dying, end_of, output_of, start
from tests.pipelines.scenes import STREAM, Scene, orders_source
from tests.servers import RunningServer

ORDERS = range(600)
LIMIT = "max_messages_per_trigger = 200"
"""Three steps."""
BEHIND_A_COMMIT = ("courser.pipelines.table_query.store_progress", 1)
"""The first thing that is done when a commit has landed."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""Three runs, each with a Java of its own."""


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer) -> Scene:
    """Without a session: the commands have their own."""
    return Scene(tmp_path, server)


def is_killed(scene: Scene, function: str, call: int) -> bool:
    code = end_of(scene, start(scene, dying(function, call), "table.toml", "--once"))
    assert code == -signal.SIGKILL, output_of(scene)
    return True


def delta_versions(scene: Scene) -> int:
    return len(list((scene.folder / "table" / "_delta_log").glob("*.json")))


def test_a_delta_table(scene: Scene) -> None:
    scene.make_topic("to-delta")
    scene.send_orders("to-delta", ORDERS)
    source = orders_source("to-delta", LIMIT)
    scene.define("table", f'{source}[sink]\ntype = "delta"\npath = "table"\npartition_by = ["customer"]\n{JAVA}')

    # The files of the second step are there, and its commit has not begun.
    assert is_killed(scene, "courser.lake.delta_table.DeltaLakeTable._send", 2)
    assert delta_versions(scene) == 2, "one has the columns, one has rows"
    # The second step is in the table, and nobody was told.
    assert is_killed(scene, *BEHIND_A_COMMIT)
    assert delta_versions(scene) == 3
    assert end_of(scene, start(scene, COURSER, "table.toml", "--once")) == 0, output_of(scene)

    rows = polars.read_delta(str(scene.folder / "table"))
    assert Counter(rows["id"].to_list()) == Counter(ORDERS)
    assert set(zip(rows["id"], rows["customer"], strict=True)) == {(number, f"c{number % 5}") for number in ORDERS}


def test_an_iceberg_table(scene: Scene) -> None:
    scene.make_topic("to-iceberg")
    scene.send_orders("to-iceberg", ORDERS)
    source = f'[source]\nstream = "{STREAM}"\ntopic = "to-iceberg"\n{LIMIT}\n'
    sink = '[sink]\ntype = "iceberg"\npath = "warehouse"\ntable = "shop.orders"\n'
    scene.define("table", f"{source}{sink}{JAVA}")

    # The files of the second step are in the warehouse, and the catalog does not know them.
    assert is_killed(scene, "pyiceberg.catalog.sql.SqlCatalog.commit_table", 2)
    assert is_killed(scene, *BEHIND_A_COMMIT)
    assert end_of(scene, start(scene, COURSER, "table.toml", "--once")) == 0, output_of(scene)

    table = iceberg.open_catalog(scene.folder / "warehouse").load_table("shop.orders")
    payloads = table.scan().to_arrow()["payload"].to_pylist()
    assert Counter(json.loads(payload)["id"] for payload in payloads) == Counter(ORDERS)
