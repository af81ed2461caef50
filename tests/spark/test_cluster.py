"""Reads and writes on a real cluster: tasks run in processes of two workers, which share nothing with the driver."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.archive.brokers import archiver_of, partition_of, running, settings_of
from tests.docs.blocks import blocks_of
from tests.servers import RunningServer
from tests.spark.test_write import everything
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, send
from tests.spark_fixtures import PATIENCE, Cluster

BIN = Path(sys.executable).parent
PYTHON_NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def test_a_topic_is_read_and_written_by_executors_of_both_workers_one_of_which_is_killed(
    cluster: Cluster, server: RunningServer, tmp_path: Path
) -> None:
    """One driver does everything: starting it takes longer than its work."""
    with client_of(server) as client:
        make_topic(client, "source", partitions=2)
        make_topic(client, "copy", partitions=2)
        make_topic(client, "stream-copy", partitions=1)
        make_topic(client, "executor", partitions=2)
        for partition in (0, 1):
            send(client, "source", partition, numbered(500, first=1000 * partition))
        reads = {
            "server": options_of(server, "source"),
            "segments": options_of(server, "source", source="segments", path=server.data),
        }
        asyncio.run(archive(tmp_path))
        marker = tmp_path / "died"
        jobs = {
            "reads": reads,
            "copy": options_of(server, "copy"),
            "stream_copy": options_of(server, "stream-copy"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "deadly": options_of(server, "executor", batchBytes=2000),
            "marker": str(marker),
            "archive": {"source": "archive", "archive.path": str(tmp_path / "archive"), "stream": "shop"},
            "second_marker": str(tmp_path / "died again"),
        }
        found = json.loads(cluster.run(DRIVER, json.dumps(jobs)))
        copied = {
            partition: [message.payload for message in client.poll_messages(STREAM, "copy", partition, count=1000)]
            for partition in (0, 1)
        }
        streamed = client.poll_messages(STREAM, "stream-copy", 0, count=10_000)
        survived = everything(client, "executor")
    expected = {"0": [payload.decode() for payload in numbered(500)]}
    expected["1"] = [payload.decode() for payload in numbered(500, first=1000)]
    assert found["server"] == found["segments"] == expected
    assert found["worker_count"] == 2
    assert not any(found["seen"]), "workers see the files of the driver"
    assert found["workers_run"][0].endswith("/environment/bin")
    assert copied == {0: numbered(500), 1: numbered(500, first=1000)}
    assert sorted(message.payload for message in streamed) == sorted(numbered(500) + numbered(500, first=1000))
    assert marker.exists(), "no executor was killed"
    assert (tmp_path / "died again").exists(), "no executor was killed while it read the archive"
    assert found["archived"] == [[partition, offset] for partition in (0, 1) for offset in range(3000)]
    assert Counter(survived) == Counter(str(number).encode() for number in range(4000))


async def archive(directory: Path) -> None:
    """A topic with two partitions that is in an archive only."""
    async with running(directory / "data", settings_of(directory / "archive")) as (broker, client):
        await client.create_stream("shop")
        await client.create_topic("shop", "archived", 2)
        for first in range(0, 3000, 500):
            for partition in (0, 1):
                payloads = list(numbered(500, first=first))
                await client.send_messages("shop/archived", partitioning=partition, messages=payloads)
                await partition_of(broker, partition).roll()
        assert await archiver_of(broker).run_once()


DRIVER = """
import json
import os
from collections import defaultdict
from pyspark import cloudpickle
from tests.spark import suicide
from tests.spark.suicide import die_once

# Workers cannot see the tests.
cloudpickle.register_pickle_by_value(suicide)

jobs = json.loads(sys.argv[1])
found = {}
for name, options in jobs["reads"].items():
    rows = spark.read.format("courser").options(**options).load().select("partition", "offset", "payload").collect()
    payloads = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        payloads[row.partition].append(bytes(row.payload).decode())
    found[name] = payloads

source = spark.read.format("courser").options(**jobs["reads"]["server"]).load()
source.select("partition", "payload").write.format("courser").options(**jobs["copy"]).mode("append").save()

query = (
    spark.readStream.format("courser")
    .options(**jobs["reads"]["server"])
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "600")
    .load()
    .select("payload")
    .writeStream.format("courser")
    .options(**jobs["stream_copy"])
    .option("checkpointLocation", jobs["checkpoint"])
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# Each executor has a Python process of its own, from which its workers are forked.
def parent(batches):
    import pyarrow
    for batch in batches:
        pass
    yield pyarrow.RecordBatch.from_pydict({"parent": [os.getppid()]})

parents = source.mapInArrow(parent, "parent long").collect()
found["worker_count"] = len({row.parent for row in parents})

# Nor can they see this Python.
found["seen"] = spark.sparkContext.parallelize([sys.executable, suicide.__file__], 2).map(os.path.exists).collect()
found["workers_run"] = spark.sparkContext.parallelize([1], 1).map(lambda _: os.path.dirname(sys.executable)).collect()

# The process of a task dies in the middle of its rows, and another one begins anew.
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
rows = spark.range(0, 4000, numPartitions=2).selectExpr("cast(id as string) as value")
deadly = rows.mapInArrow(lambda batches: die_once(batches, jobs["marker"]), "value string")
deadly.write.format("courser").options(**jobs["deadly"]).mode("append").save()

# The same to a task that reads the archive.
archived = (
    spark.read.format("courser").options(**jobs["archive"], topic="archived", batchBytes="20000").load()
    .select("partition", "offset")
)
read = archived.mapInArrow(lambda batches: die_once(batches, jobs["second_marker"]), archived.schema).collect()
found["archived"] = sorted([row.partition, row.offset] for row in read)
print(json.dumps(found))
"""


# --- what the guide says ------------------------------------------------------------------------------

GUIDE = "docs/spark/cluster.md"
MASTER = "spark://10.0.0.1:7077"
"""The master of the guide."""
IMPORTS = """
import json, sys
from pyspark.sql import SparkSession
from courser.spark.session import spark_session
"""
COUNT = """
rows = spark.read.format("courser").options(**json.loads(sys.argv[1])).load()
assert rows.select("payload").count() == 500
spark.stop()
"""


@pytest.fixture(scope="module")
def unpacked(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with Courser under a path that only workers know."""
    place = tmp_path_factory.mktemp("opt") / "courser"
    place.mkdir()
    subprocess.run(["tar", "-xzf", cluster.pack, "-C", place], check=True)
    return place


def blocks(kind: str) -> list[str]:
    return [block.text for block in blocks_of(GUIDE) if block.kind == kind]


def type_in(cluster: Cluster, directory: Path, *command: str, code: str = "") -> str:
    """Run what a user types, in a folder of its own. Returns the output, and what it says on stderr."""
    (directory / "courser.tar.gz").symlink_to(cluster.pack)
    environment = cluster.environment | {"HOME": str(directory), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"PYSPARK_PYTHON": sys.executable} if "SparkSession.builder" in code else {}
    done = subprocess.run(
        [*command, code] if code else command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_each_session_of_the_guide_reads_on_workers_with_nothing_installed(
    cluster: Cluster, server: RunningServer, tmp_path: Path, unpacked: Path, number: int
) -> None:
    topic = f"guide-{number}"
    with client_of(server) as client:
        make_topic(client, topic)
        send(client, topic, 0, numbered(500))
    sessions = [text for text in blocks("py") if MASTER in text and "executor.memory" not in text]
    text = sessions[number].replace(MASTER, cluster.master).replace("/opt/courser", str(unpacked))
    imports = (
        "import json, sys\nfrom pyspark.sql import SparkSession\nfrom courser.spark.session import spark_session\n"
    )
    options = json.dumps(options_of(server, topic))
    program = f"{imports}sys.argv[1:] = [{options!r}]\n{text}{COUNT}"
    said = type_in(cluster, tmp_path, sys.executable, "-c", code=program)
    assert said.startswith("0\n"), said


@pytest.mark.slow
def test_the_commands_of_the_guide_pack_and_export(cluster: Cluster, server: RunningServer, tmp_path: Path) -> None:
    with client_of(server) as client:
        make_topic(client, "orders")
        send(client, "orders", 0, numbered(500))
    text = next(text for text in blocks("sh") if "spark pack" in text)
    # A file of its own: the shared one is a link to the archive of all tests.
    text = text.replace(MASTER, cluster.master).replace("courser.tar.gz", "mine.tar.gz")
    target = options_of(server, "orders")["url"]
    said = type_in(cluster, tmp_path, "sh", "-ec", code=f"export COURSER_URL={target}\n{text}")
    assert said.startswith("0\n"), said
    assert "for workers with glibc 2." in said
    assert "exported 500 messages" in said


# --- what is wrong on a worker ------------------------------------------------------------------------

READ = """
import json
from courser.spark.failures import one_line
try:
    spark.read.format("courser").options(**json.loads(sys.argv[1])).load().collect()
except Exception as error:
    print(one_line(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("removed", "says"),
    [
        ("bin", "the worker 127.0.0.1 cannot run {python}: No such file or directory; give the workers"),
        ("courser", "has no courser; give the workers"),
        # Spark itself fails first.
        ("pyarrow", "the Python of a worker has no pyarrow; give the workers"),
    ],
)
def test_what_a_worker_lacks_is_said_with_the_machine_and_the_python(
    cluster: Cluster, server: RunningServer, tmp_path: Path, unpacked: Path, removed: str, says: str
) -> None:
    with client_of(server) as client:
        make_topic(client, f"lacks-{removed}")
        send(client, f"lacks-{removed}", 0, numbered(10))
    place = tmp_path / "broken"
    subprocess.run(["cp", "-al", unpacked, place], check=True)
    (gone,) = [path for path in place.rglob(removed) if path.parent in (place, *place.rglob("site-packages"))]
    shutil.rmtree(gone)
    python = place / "bin" / "python"
    line = cluster.run(READ, json.dumps(options_of(server, f"lacks-{removed}")), python=python)
    assert says.format(python=python) in line
    assert removed != "courser" or f"{socket.gethostname()}, {python}" in line.replace(PYTHON_NAME, "python")
