"""Topics as tables: real Spark, a real server, and readers that are neither. The table is the checkpoint."""

import os
from collections import Counter
from typing import Any

import polars
import pytest
from pyiceberg.catalog import load_catalog

from courser.pipelines.state_folder import Status
from courser.pipelines.table_query import TableQuery
from tests.pipelines.scenes import STREAM, Scene, orders_source

ICEBERG = 'type = "iceberg"\npath = "tables"\ntable = "shop.orders"\n'
DELTA = 'type = "delta"\npath = "tables/orders"\n'
FORMATS = pytest.mark.parametrize("sink", [ICEBERG, DELTA], ids=["iceberg", "delta"])


def rows_of(scene: Scene, sink: str, name: str = "orders") -> polars.DataFrame:
    """The rows of a table, read by a library that is not ours."""
    place = scene.folder / "tables"
    if sink == ICEBERG:
        catalog = load_catalog("courser", type="sql", uri=f"sqlite:///{place / 'catalog.db'}")
        found = polars.from_arrow(catalog.load_table(f"shop.{name}").scan().to_arrow())
    else:
        found = polars.read_delta(str(place / name))
    assert isinstance(found, polars.DataFrame)
    return found


@FORMATS
def test_every_row_of_a_topic_is_in_the_table_once(scene: Scene, sink: str, request: pytest.FixtureRequest) -> None:
    topic = f"once-{request.node.callspec.id}"
    scene.make_topic(topic)
    scene.send_orders(topic, range(1000))
    scene.send(topic, [b"{oops", b"\xff\xfe", b'{"id": "word"}'], partition=1)
    path = scene.define(
        "orders", f'{orders_source(topic, "max_messages_per_trigger = 400")}[sink]\n{sink}partition_by = ["day(at)"]\n'
    )
    (status,) = scene.run(path)
    assert (status.state, status.error, status.rows, status.bad_rows) == ("finished", None, 1003, 3)
    assert (status.total_lag, status.batch, status.files) == (0, 2, 6), "three commits, two files each"
    rows = rows_of(scene, sink)
    assert Counter(rows["id"].to_list()) == Counter(range(1000))
    assert rows["_topic_name"].unique().to_list() == [f"{STREAM}/{topic}"]
    assert rows.select("_topic_partition", "_topic_offset").n_unique() == 1000
    bad = rows_of(scene, sink, "orders__bad")
    assert bad.sort("_topic_offset")["payload"].to_list() == [b"{oops", b"\xff\xfe", b'{"id": "word"}']
    assert bad.sort("_topic_offset")["_topic_offset"].to_list() == [500, 501, 502]
    assert all(bad["reason"].to_list())
    with scene.client() as client:
        stored = [client.get_consumer_offset(STREAM, topic, part, consumer="orders") for part in (0, 1)]
    assert [offset.stored_offset for offset in stored] == [499, 502]

    scene.send_orders(topic, range(1000, 1100))
    (status,) = scene.run(path)
    assert (status.rows, status.total_lag) == (100, 0), "it goes on where the table is"
    assert Counter(rows_of(scene, sink)["id"].to_list()) == Counter(range(1100))
    assert len(rows_of(scene, sink, "orders__bad")) == 3
    assert not (scene.folder / "checkpoints").exists(), "the table is the checkpoint"


@FORMATS
def test_a_query_without_state_fills_a_table(scene: Scene, sink: str, request: pytest.FixtureRequest) -> None:
    topic = f"sql-{request.node.callspec.id}"
    scene.make_topic(topic)
    scene.send_orders(topic, range(300))
    scene.send(topic, [b"nonsense"])
    query = "SELECT id * 2 AS twice, upper(customer) AS who, at, _topic_offset FROM source WHERE id >= 100"
    source = orders_source(topic, "max_messages_per_trigger = 200")
    target = f'[sink]\n{sink}partition_by = ["bucket(2, who)"]\n'
    path = scene.define("orders", f'{source}[transform]\nsql = "{query}"\n{target}')
    (status,) = scene.run(path)
    assert (status.state, status.error, status.rows, status.bad_rows) == ("finished", None, 301, 1)
    rows = rows_of(scene, sink)
    assert Counter(rows["twice"].to_list()) == Counter(range(200, 600, 2))
    assert set(rows["who"]) == {f"C{number}" for number in range(5)}
    assert rows_of(scene, sink, "orders__bad")["payload"].to_list() == [b"nonsense"]
    scene.send_orders(topic, range(300, 310))
    scene.run(path)
    assert Counter(rows_of(scene, sink)["twice"].to_list()) == Counter(range(200, 620, 2))


def test_the_second_of_two_runs_ends_and_names_the_first(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.make_topic("rivals")
    scene.send_orders("rivals", range(200))
    text = f"{orders_source('rivals')}[sink]\n{ICEBERG}"
    slow, fast = scene.define("slow", text), scene.define("fast", text)
    write = TableQuery._write
    statuses: list[Status] = []

    def overtaken(query: TableQuery, *arguments: Any) -> Any:
        result = write(query, *arguments)
        if query._definition.name == "slow":
            # Its files are there, and its commit has not begun.
            statuses.extend(scene.run(fast))
        return result

    monkeypatch.setattr(TableQuery, "_write", overtaken)
    (status,) = scene.run(slow)
    assert [each.state for each in statuses] == ["finished"]
    assert (status.state, status.restarts) == ("failed", 0)
    assert f"is filled from this topic by process {os.getpid()} on" in (status.error or "")
    assert "which runs fast; stop one of the two" in (status.error or "")
    assert Counter(rows_of(scene, ICEBERG)["id"].to_list()) == Counter(range(200))


def test_a_schema_is_inferred_once_and_a_declared_column_is_added(scene: Scene) -> None:
    scene.make_topic("shapes", 1)
    scene.send("shapes", [b'{"id": 1, "name": "a"}', b'{"id": 2, "size": 1.5}'])
    source = f'[source]\nstream = "{STREAM}"\ntopic = "shapes"\ndecode = "json"\nschema = "infer"\n'
    path = scene.define("orders", f"{source}[sink]\n{DELTA}")
    assert [status.error for status in scene.run(path)] == [None]
    columns = [
        "id",
        "name",
        "size",
        "_topic_name",
        "_topic_partition",
        "_topic_offset",
        "_topic_timestamp",
        "_topic_key",
    ]
    assert rows_of(scene, DELTA).columns == columns
    # What comes later does not change it.
    scene.send("shapes", [b'{"id": 3, "colour": "red"}', b'{"id": "four"}'])
    (status,) = scene.run(path)
    assert (status.error, status.bad_rows) == (None, 1)
    assert rows_of(scene, DELTA).columns == columns

    declared = 'schema = "id BIGINT, name STRING, size DOUBLE, colour STRING"'
    path.write_text(path.read_text().replace('schema = "infer"', declared))
    scene.send("shapes", [b'{"id": 5, "colour": "blue"}'])
    assert [status.error for status in scene.run(path)] == [None]
    rows = rows_of(scene, DELTA).sort("id")
    assert rows.select("id", "name", "colour").rows() == [
        (1, "a", None),
        (2, None, None),
        (3, None, None),
        (5, None, "blue"),
    ]
