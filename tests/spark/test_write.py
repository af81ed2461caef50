"""Writes: rows become messages, each exactly once, whatever happens to tasks, drivers and batches."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from courser.client.messages import PollingStrategy
from courser.client.sync import SyncClient
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, send

PATIENCE = 60


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    with client_of(server) as client:
        yield client


def write(frame: DataFrame, server: RunningServer, topic: str, **options: object) -> None:
    frame.write.format("courser").options(**options_of(server, topic, **options)).mode("append").save()


def payloads(client: SyncClient, topic: str) -> dict[int, list[bytes]]:
    """What a topic holds, by partition."""
    found: dict[int, list[bytes]] = {}
    for partition in client.get_partition_bounds(STREAM, topic).partitions:
        found[partition.partition_id] = []
        offset = partition.first_offset
        while offset < partition.next_offset:
            strategy = PollingStrategy.Offset(offset)
            polled = client.poll_batches(STREAM, topic, partition.partition_id, strategy)
            found[partition.partition_id] += [bytes(message.payload) for message in polled.messages()]
            assert polled.next_offset is not None
            offset = polled.next_offset
    return found


def everything(client: SyncClient, topic: str) -> list[bytes]:
    return [payload for part in payloads(client, topic).values() for payload in part]


def stream_from(
    spark: SparkSession, server: RunningServer, source: str, target: str, checkpoint: Path, **options: object
) -> None:
    """Copy what a topic holds into another, as a streaming query that ends."""
    frame = (
        spark.readStream.format("courser")
        .options(**options_of(server, source, startingOffsets="earliest", maxOffsetsPerTrigger=500))
        .load()
        .select("payload")
    )
    query = (
        frame.writeStream.format("courser")
        .options(**options_of(server, target, **options))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)


def test_rows_of_a_batch_job_become_messages(spark: SparkSession, server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "batch", 3)
    frame = spark.range(0, 1000, numPartitions=4).selectExpr("cast(id as string) as value")
    write(frame, server, "batch")
    assert sorted(everything(client, "batch"), key=int) == [str(number).encode() for number in range(1000)]


def test_a_stream_copies_a_topic_once(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "source", 2)
    make_topic(client, "sink", 2)
    for partition in range(2):
        send(client, "source", partition, numbered(700, first=700 * partition))
    stream_from(spark, server, "source", "sink", tmp_path / "checkpoint")
    send(client, "source", 0, numbered(10, first=1400))
    stream_from(spark, server, "source", "sink", tmp_path / "checkpoint")
    assert Counter(everything(client, "sink")) == Counter(numbered(1410))
