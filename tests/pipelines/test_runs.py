"""Pipelines at work: real Spark, a real server, and readers that are not Spark."""

import json
from collections import Counter
from pathlib import Path

import fastavro
import polars
import pytest
from deltalake import DeltaTable

from courser.jobs.folders import LocalFolder
from courser.pipelines.checkpoint import ResetNeeded, open_checkpoint, reset
from courser.pipelines.definition_file import load_definition
from courser.pipelines.locking import LockTaken
from courser.pipelines.state_folder import StateFolder
from tests.pipelines.scenes import STREAM, Scene, order, orders_source


def once(numbers: range) -> Counter[object]:
    return Counter(numbers)


def test_a_topic_becomes_a_lake_and_bad_rows_are_put_aside(scene: Scene) -> None:
    scene.make_topic("orders")
    scene.send_orders("orders", range(1000))
    scene.send("orders", [b"{oops", b"\xff\xfe", b'{"id": "word"}'], partition=1)
    path = scene.define(
        "lake",
        orders_source("orders", 'on_bad_row = "quarantine"\nquarantine_path = "bad"\nmax_messages_per_trigger = 400')
        + '[sink]\ntype = "parquet"\npath = "lake"\npartition_by = ["day"]\n',
    )
    (status,) = scene.run(path)
    assert (status.state, status.rows, status.bad_rows, status.total_lag) == ("finished", 1003, 3, 0)
    assert status.batch == 2, "three batches of about 400"
    assert scene.count("lake", "id") == once(range(1000))
    assert polars.read_parquet(scene.folder / "lake")["id"].n_unique() == 1000
    assert scene.count("bad", "_payload") == {b"{oops": 1, b"\xff\xfe": 1, b'{"id": "word"}': 1}
    names = [file.relative_to(scene.folder / "lake").as_posix() for file in scene.folder.glob("lake/**/*.parquet")]
    assert all(name.startswith("day=20") and "/_partition=" in name for name in names)

    with scene.client() as client:
        stored = [client.get_consumer_offset(STREAM, "orders", part, consumer="lake") for part in (0, 1)]
    assert [offset.stored_offset for offset in stored] == [499, 502], "the last batch too, so that no lag is shown"

    scene.send_orders("orders", range(1000, 1100))
    (status,) = scene.run(path)
    assert (status.rows, status.total_lag) == (100, 0), "it goes on where it stopped"
    assert scene.count("lake", "id") == once(range(1100))


def test_groups_go_to_a_topic_and_dropped_rows_are_counted(scene: Scene) -> None:
    scene.make_topic("sales")
    scene.send_orders("sales", range(600))
    scene.send("sales", [b"nonsense"])
    path = scene.define(
        "totals",
        orders_source("sales", 'on_bad_row = "drop"')
        + """
[transform]
watermark = "at 1 second"
sql = \"\"\"SELECT customer, window(at, '1 minute').start AS minute, count(*) AS n
FROM source GROUP BY customer, window(at, '1 minute')\"\"\"
[sink]
type = "topic"
stream = "shop"
topic = "totals"
key = "customer"
create_partitions = 2
""",
    )
    (status,) = scene.run(path)
    assert (status.state, status.bad_rows) == ("finished", 1), status.error
    found = [json.loads(payload) for payload in scene.payloads("totals")]
    # Ten minutes of 60 orders by 5 customers; the last minute is not over yet.
    assert Counter(row["n"] for row in found) == {12: 45}
    assert len({(row["customer"], row["minute"]) for row in found}) == 45

    changed = path.read_text().replace("1 minute').start AS minute, count", "1 minute').start AS minute, sum")
    path.write_text(changed.replace("sum(*)", "sum(amount)"))
    with pytest.raises(ResetNeeded, match="the SQL, which groups rows"):
        scene.run(path)


def test_messages_as_they_are_to_a_lake_a_table_and_a_topic(scene: Scene) -> None:
    scene.make_topic("raw")
    scene.make_topic("copy")
    scene.send_orders("raw", range(200))
    source = f'[source]\nstream = "{STREAM}"\ntopic = "raw"\n'
    paths = [
        scene.define("rawlake", source + '[sink]\ntype = "parquet"\npath = "raw"\n'),
        scene.define("delta", source + '[sink]\ntype = "delta"\npath = "delta"\n'),
        scene.define("ice", source + '[sink]\ntype = "iceberg"\npath = "ice"\ntable = "shop.orders"\n'),
        scene.define("copy", source + '[sink]\ntype = "topic"\nstream = "shop"\ntopic = "copy"\n'),
    ]
    statuses = scene.run(*paths)
    assert [(status.state, status.error, status.rows) for status in statuses] == [("finished", None, 200)] * 4
    wanted = sorted(order(number) for number in range(200))
    assert scene.count("raw", "payload") == Counter(wanted)
    assert sorted(DeltaTable(scene.folder / "delta").to_pyarrow_table()["payload"].to_pylist()) == wanted
    assert sorted(_iceberg(scene.folder / "ice", "shop.orders")) == wanted
    assert sorted(scene.payloads("copy")) == wanted


def _iceberg(folder: Path, table: str) -> list[bytes]:
    from courser.lake.iceberg import open_catalog  # noqa: PLC0415

    rows: list[bytes] = open_catalog(folder).load_table(table).scan().to_arrow()["payload"].to_pylist()
    return rows


def test_every_format_is_decoded(scene: Scene) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
    (scene.folder / "order.avsc").write_text(json.dumps(schema))
    for topic in ("avro", "csv", "text"):
        scene.make_topic(topic, 1)
    from io import BytesIO  # noqa: PLC0415

    datum = BytesIO()
    row = {"id": 7, "at": 1_000_000, "tags": ["a", "b"], "note": None}
    fastavro.schemaless_writer(datum, schema, row)
    scene.send("avro", [datum.getvalue(), b"\x01"])
    scene.send("csv", ["7;ä".encode(), b"seven;b", b"8"])
    scene.send("text", ["grüß".encode(), b"\xff"])
    sink = '[sink]\ntype = "parquet"\npath = "{}"\n'

    def source(topic: str, more: str = "") -> str:
        return f'[source]\nstream = "shop"\ntopic = "{topic}"\ndecode = "{topic}"\non_bad_row = "drop"\n{more}\n'

    statuses = scene.run(
        scene.define("avro", source("avro", 'avro_schema = "order.avsc"') + sink.format("out/avro")),
        scene.define(
            "csv", source("csv", 'schema = "id BIGINT, name STRING"\ndelimiter = ";"') + sink.format("out/csv")
        ),
        scene.define("text", source("text", "metadata = false") + sink.format("out/text")),
    )
    assert [status.error for status in statuses] == [None] * 3
    assert [status.bad_rows for status in statuses] == [1, 2, 1]
    avro = polars.read_parquet(scene.folder / "out" / "avro")
    assert avro["tags"].to_list() == [["a", "b"]]
    assert avro["at"].dt.epoch("us").to_list() == [1_000_000]
    assert scene.count("out/csv", "name") == {"ä": 1}
    assert set(polars.read_parquet(scene.folder / "out" / "text").columns) == {"text", "_partition"}


def test_files_are_read_once_each(scene: Scene) -> None:
    folder = scene.folder / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}\n{"id": 2}\n')
    text = '[source]\ntype = "files"\npath = "in"\nformat = "json"\nschema = "id BIGINT"\n'
    path = scene.define("files", text + '[sink]\ntype = "parquet"\npath = "lake"\n')
    assert [status.state for status in scene.run(path)] == ["finished"]
    (folder / "b.json").write_text('{"id": 3}\n')
    assert [status.rows for status in scene.run(path)] == [1]
    assert scene.count("lake", "id") == once(range(1, 4))


def test_a_continuous_run_is_stopped_from_elsewhere_and_nobody_else_runs_meanwhile(scene: Scene) -> None:
    scene.make_topic("live", 1)
    scene.send_orders("live", range(10), 1)
    path = scene.define(
        "live",
        orders_source("live")
        + '[transform]\nsql = "SELECT id, upper(customer) AS who FROM source"\n[sink]\ntype = "console"\n',
    )
    path.write_text(path.read_text().replace("[server]", 'trigger = "100ms"\n[server]'))
    state = StateFolder(scene.home, "live")
    with scene.running(path, once=False) as runner:
        while not (status := state.read()) or status.rows < 10:
            assert not runner.wait(0.1), runner.statuses
        with pytest.raises(LockTaken, match="is in use by process"):
            scene.run(path)
        assert status.state_now == "running"
        state.request_stop()
        while not runner.wait(0.1):
            pass
    assert [status.state for status in runner.statuses] == ["stopped"]
    assert "C3" in scene.shown[0]


def test_a_bad_row_stops_a_run_and_names_itself(scene: Scene) -> None:
    scene.make_topic("strict", 1)
    scene.send("strict", [order(1), b"{oops"])
    path = scene.define("strict", orders_source("strict") + '[sink]\ntype = "parquet"\npath = "lake"\n')
    (status,) = scene.run(path)
    assert (status.state, status.restarts) == ("failed", 0), "another attempt would meet it again"
    assert status.error is not None
    assert "partition 0, offset 1: the payload is not JSON that matches the schema" in status.error
    assert "\n" not in status.error
    assert "Traceback" in StateFolder(scene.home, "strict").log_path.read_text()
    assert not list(scene.folder.glob("lake/**/*.parquet")), "nothing of the batch is visible"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('topic = "orders2"', 'topic = "order2"'), 'topic "shop/order2" does not exist; did you mean "shop/orders2"?'),
        (("iggy:iggy@", "iggy:wrong@"), "wrong password"),
        (("id BIGINT", "id BIGNIT"), "BIGNIT"),
        (("SELECT id", "SELECT di"), "`di`"),
        (('partition_by = ["id"]', 'partition_by = ["colour"]'), "sink.partition_by names the unknown column colour"),
    ],
)
def test_mistakes_that_only_server_and_spark_know(scene: Scene, change: tuple[str, str], told: str) -> None:
    with scene.client() as client:
        has_topic = "orders2" in [topic.name for topic in client.get_topics(STREAM)]
    if not has_topic:
        scene.make_topic("orders2", 1)
    path = scene.define(
        "wrong",
        orders_source("orders2")
        + '[transform]\nsql = "SELECT id FROM source"\n[sink]\ntype = "parquet"\npath = "x"\npartition_by = ["id"]\n',
    )
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    (status,) = scene.run(path)
    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error is not None
    assert told in status.error
    assert "\n" not in status.error


def test_a_topic_made_anew_is_not_taken_for_the_old_one(scene: Scene) -> None:
    scene.make_topic("reborn", 1)
    scene.send_orders("reborn", range(20), 1)
    path = scene.define("reborn", orders_source("reborn") + '[sink]\ntype = "parquet"\npath = "lake"\n')
    scene.run(path)
    with scene.client() as client:
        client.delete_topic(STREAM, "reborn")
    scene.make_topic("reborn", 1)
    scene.send_orders("reborn", range(20, 60), 1)
    (status,) = scene.run(path)
    assert status.state == "failed"
    assert status.error is not None
    assert "an earlier topic" in status.error
    # Another lake is not enough: the checkpoint is of the old topic too.
    path.write_text(path.read_text().replace('path = "lake"', 'path = "lake2"'))
    (status,) = scene.run(path)
    assert status.state == "failed"
    assert status.error is not None
    assert "deleted and recreated" in status.error
    definition = load_definition(path)
    root = LocalFolder(Path(definition.checkpoint))
    reset(root, definition, "earliest")
    assert [status.state for status in scene.run(path)] == ["finished"]
    assert scene.count("lake2", "id") == once(range(20, 60))
    assert open_checkpoint(root).generation == 2
