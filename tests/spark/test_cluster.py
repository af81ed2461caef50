"""Reads and writes on a real cluster: tasks run in processes of two workers, which share nothing with the driver."""

import json
from collections import Counter
from pathlib import Path

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
        marker = tmp_path / "died"
        jobs = {
            "reads": reads,
            "copy": options_of(server, "copy"),
            "stream_copy": options_of(server, "stream-copy"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "deadly": options_of(server, "executor", batchBytes=2000),
            "marker": str(marker),
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
    assert copied == {0: numbered(500), 1: numbered(500, first=1000)}
    assert sorted(message.payload for message in streamed) == sorted(numbered(500) + numbered(500, first=1000))
    assert marker.exists(), "no executor was killed"
    assert Counter(survived) == Counter(str(number).encode() for number in range(4000))


DRIVER = """
import json
import os
from collections import defaultdict
from tests.spark.suicide import die_once

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

# The process of a task dies in the middle of its rows, and another one begins anew.
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
rows = spark.range(0, 4000, numPartitions=2).selectExpr("cast(id as string) as value")
deadly = rows.mapInArrow(lambda batches: die_once(batches, jobs["marker"]), "value string")
deadly.write.format("courser").options(**jobs["deadly"]).mode("append").save()
print(json.dumps(found))
"""
