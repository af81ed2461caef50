"""Reads and writes on a real cluster: tasks run in processes of two workers, which share nothing with the driver."""

import asyncio
import json
from collections import Counter
from pathlib import Path

from tests.archive.brokers import archiver_of, partition_of, running, settings_of
from tests.servers import RunningServer
from tests.spark.test_write import everything
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, send
from tests.spark_fixtures import Cluster


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
