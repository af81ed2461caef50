"""Spark Connect: programs and pipelines without Java, beside a Spark server in a process of its own."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.remote import output_of, start
from tests.pipelines.scenes import STREAM, Scene, orders_source
from tests.servers import RunningServer, free_port
from tests.spark.topics import client_of, make_topic, numbered, options_of, send
from tests.spark_fixtures import PATIENCE, SparkServer


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    with SparkServer(tmp_path_factory.mktemp("spark-server")) as running:
        yield running


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer) -> Scene:
    return Scene(tmp_path, server)


def run(program: str, *arguments: str, python: Path = Path(sys.executable)) -> str:
    done = subprocess.run(
        [python, "-c", program, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


PROGRAM = """
import json, sys
from courser.spark.failures import one_line
from courser.spark.session import spark_session

url, checkpoint, source, target, missing = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
spark = spark_session("remote", url, {"spark.sql.shuffle.partitions": "3"})
found = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")}
found["read"] = spark.read.format("courser").options(**source).load().count()

def copy():
    stream = spark.readStream.format("courser").options(**source, startingOffsets="earliest").load()
    query = (
        stream.select("payload").writeStream.format("courser").options(**target)
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()

# A second run finds its checkpoint: nothing is written twice.
copy()
copy()
rows = spark.read.format("courser").options(**target).load().collect()
found["copied"] = sorted(bytes(row.payload).decode() for row in rows)
try:
    spark.read.format("courser").options(**missing).load().count()
except Exception as error:
    found["missing"] = one_line(error)
try:
    spark_session("remote", url, {"spark.executor.memory": "2g"})
except Exception as error:
    found["setting"] = one_line(error)
spark.stop()
found["java"] = "py4j.java_gateway" in sys.modules and __import__("pyspark").SparkContext._gateway is not None
print(json.dumps(found))
"""


def test_a_program_reads_and_copies_through_a_spark_server(
    spark_server: SparkServer, server: RunningServer, tmp_path: Path
) -> None:
    with client_of(server) as client:
        make_topic(client, "source", 2)
        make_topic(client, "copy")
        for partition in (0, 1):
            send(client, "source", partition, numbered(300, first=1000 * partition))
    options = [json.dumps(options_of(server, name)) for name in ("source", "copy", "nothing")]
    found = json.loads(run(PROGRAM, spark_server.url, str(tmp_path / "checkpoint"), *options))
    expected = [payload.decode() for first in (0, 1000) for payload in numbered(300, first=first)]
    assert found["read"] == 600
    assert found["copied"] == sorted(expected)
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["missing"].startswith("topic shop/nothing does not exist")
    assert found["setting"] == (
        f"spark.executor.memory cannot be set through a Spark server; set it where the server {spark_server.url} is "
        "started"
    )
    assert found["java"] is False


def test_pipelines_run_through_a_spark_server(spark_server: SparkServer, scene: Scene) -> None:
    scene.make_topic("orders")
    scene.make_topic("totals", 1)
    scene.send_orders("orders", range(600))
    scene.send("orders", [b"{oops"])
    scene.define("raw", f'[source]\nstream = "{STREAM}"\ntopic = "orders"\n[sink]\ntype = "parquet"\npath = "raw"\n')
    scene.define(
        "lake",
        orders_source("orders", 'on_bad_row = "quarantine"\nquarantine_path = "bad"')
        + '[sink]\ntype = "parquet"\npath = "lake"\npartition_by = ["day"]\n',
    )
    scene.define(
        "totals",
        orders_source("orders", 'on_bad_row = "drop"')
        + '[transform]\nsql = "SELECT customer AS key, to_json(struct(id)) AS payload FROM source WHERE id < 100"\n'
        + f'[sink]\ntype = "topic"\nstream = "{STREAM}"\ntopic = "totals"\n',
    )
    files = ("raw.toml", "lake.toml", "totals.toml")
    runner = start(scene, spark_server.url, *files, "-o", "json")
    assert runner.wait(PATIENCE) == 0, output_of(scene)
    assert scene.count("lake", "id") == Counter(range(600))
    assert scene.count("bad", "_payload") == {b"{oops": 1}
    assert sum(scene.count("raw", "payload").values()) == 601
    assert len(scene.payloads("totals", 1)) == 100
    statuses = {status["name"]: status for status in json.loads(output_of(scene))}
    assert {name: (status["rows"], status["bad_rows"]) for name, status in statuses.items()} == {
        "raw": (601, 0),
        "lake": (601, 1),
        "totals": (601, 1),
    }
    assert all(status["total_lag"] == 0 for status in statuses.values())


def test_a_check_asks_the_spark_server_and_writes_nothing(spark_server: SparkServer, scene: Scene) -> None:
    scene.make_topic("checked")
    path = scene.define("checked", orders_source("checked") + '[sink]\ntype = "parquet"\npath = "lake"\n')
    runner = start(scene, spark_server.url, path.name, "-o", "json", verb="check")
    assert runner.wait(PATIENCE) == 0, output_of(scene)
    (found,) = json.loads(output_of(scene))
    assert found["columns"][:4] == ["id bigint", "customer string", "amount double", "at timestamp"]
    assert sorted(entry.name for entry in scene.folder.iterdir()) == ["checked.toml", "out.txt"]


# --- what is refused ---


def test_a_folder_that_the_spark_server_does_not_see_is_refused(
    spark_server: SparkServer, scene: Scene, tmp_path: Path
) -> None:
    program = """
import sys
from pathlib import Path
from courser.spark.connect import check_shared, remote_session
spark = remote_session(sys.argv[1], {})
check_shared(spark, Path(sys.argv[2]))
try:
    check_shared(spark, Path("/elsewhere/checkpoint/facts.json"))
except Exception as error:
    print(error)
"""
    seen = tmp_path / "facts.json"
    seen.write_text("{}")
    assert run(program, spark_server.url, str(seen)).startswith(
        "the Spark server does not see /elsewhere/checkpoint/facts.json; checkpoints and lakes must be in folders"
    )


def test_a_console_sink_and_an_absent_server_are_refused(scene: Scene) -> None:
    scene.make_topic("shown")
    nowhere = f"sc://127.0.0.1:{free_port()}"
    console = scene.define("shown", orders_source("shown") + '[sink]\ntype = "console"\n')
    assert start(scene, nowhere, console.name).wait(PATIENCE) == 2
    assert 'sink.type = "console" cannot be used with a Spark server' in output_of(scene)
    lake = scene.define("lake", orders_source("shown") + '[sink]\ntype = "parquet"\npath = "lake"\n')
    lake.write_text(lake.read_text().replace("restarts = 20", "restarts = 1"))
    assert start(scene, nowhere, lake.name).wait(PATIENCE) == 3
    assert f"error: lake: no Spark server answers at {nowhere}: Connection refused" in output_of(scene)


@pytest.mark.parametrize("url", ["sc://", "sc://:15002", "sc://host:many"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    from courser.spark.connect import RefusedBySparkServer, remote_session  # noqa: PLC0415

    with pytest.raises(RefusedBySparkServer, match="is not the address of a Spark server; write sc://host:port"):
        remote_session(url, {})
