"""Streams: micro-batches between explicit offsets, limits, restarts, and what is lost on the way."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from courser.client.sync import SyncClient
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, send

PATIENCE = 600
"""Seconds that a micro-batch may take before a test gives up."""


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    with client_of(server) as client:
        yield client


class Sink:
    """Collects what a query gives, micro-batch by micro-batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = frame.collect()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def payloads(self, partition: int = 0) -> list[bytes]:
        return [bytes(row.payload) for row in self.rows if row.partition == partition]


def started(
    spark: SparkSession, server: RunningServer, topic: str, checkpoint: Path, sink: Sink, **options: object
) -> StreamingQuery:
    """A query that takes what is there now, and ends."""
    options = {"startingOffsets": "earliest"} | options
    frame = spark.readStream.format("courser").options(**options_of(server, topic, **options)).load()
    writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def run(
    spark: SparkSession, server: RunningServer, topic: str, checkpoint: Path, sink: Sink, **options: object
) -> list[Any]:
    """Run it to its end; returns the progress of every micro-batch."""
    query = started(spark, server, topic, checkpoint, sink, **options)
    assert query.awaitTermination(PATIENCE), "the query does not end"
    return list(query.recentProgress)


def offset_in(progress: Any, which: str) -> Any:
    return json.loads(progress["sources"][0][which])


def test_a_query_reads_all_there_is_and_goes_on_from_its_checkpoint(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "goes-on", partitions=2)
    send(client, "goes-on", 0, numbered(100))
    send(client, "goes-on", 1, numbered(10))
    first, second = Sink(), Sink()
    run(spark, server, "goes-on", tmp_path, first, consumer="lake")
    assert first.payloads(0) == numbered(100)
    assert first.payloads(1) == numbered(10)

    send(client, "goes-on", 0, numbered(5, first=100))
    progress = run(spark, server, "goes-on", tmp_path, second, consumer="lake")
    assert second.payloads(0) == numbered(5, first=100)
    assert second.payloads(1) == []
    assert client.get_consumer_offset(STREAM, "goes-on", 0, consumer="lake").stored_offset == 104
    assert offset_in(progress[-1], "endOffset")["p"] == {"0": 105, "1": 10}
    assert offset_in(progress[-1], "latestOffset")["p"] == {"0": 105, "1": 10}


def test_a_query_gets_a_second_topic_with_the_checkpoint_that_it_has_and_cannot_lose_one(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "first", partitions=2)
    make_topic(client, "second")
    send(client, "first", 0, numbered(10))
    run(spark, server, "first", tmp_path, Sink())
    send(client, "first", 1, numbered(20))
    send(client, "second", 0, numbered(300))
    sink = Sink()
    progress = run(spark, server, "first,second", tmp_path, sink, maxOffsetsPerTrigger=200, consumer="lake")
    assert [(row.topic, row.partition, row.offset) for row in sink.batches[1]] == [("first", 1, i) for i in range(20)]
    assert [len(rows) for rows in sink.batches.values()] == [20, 200, 100]
    assert [row.offset for row in sink.rows if row.topic == "second"] == list(range(300))
    topics = offset_in(progress[-1], "endOffset")["topics"]
    assert {name: topic["p"] for name, topic in topics.items()} == {"first": {"0": 10, "1": 20}, "second": {"0": 300}}
    assert offset_in(progress[-1], "latestOffset")["topics"] == topics

    send(client, "second", 0, numbered(1))
    with pytest.raises(StreamingQueryException, match='the checkpoint contains topic "second"'):
        run(spark, server, "first", tmp_path, Sink())
    sink = Sink()
    run(spark, server, "second,first", tmp_path, sink, consumer="lake")
    assert [(row.topic, row.offset) for row in sink.rows] == [("second", 300)]
    assert client.get_consumer_offset(STREAM, "second", 0, consumer="lake").stored_offset == 300
    assert client.get_consumer_offset(STREAM, "first", 1, consumer="lake").stored_offset == 19


def test_limits_cut_micro_batches_in_proportion_to_what_waits(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "limited", partitions=2)
    send(client, "limited", 0, numbered(300))
    send(client, "limited", 1, numbered(100))
    sink = Sink()
    run(spark, server, "limited", tmp_path, sink, maxOffsetsPerTrigger=200)
    assert [len(rows) for rows in sink.batches.values()] == [200, 200]
    assert len([row for row in sink.batches[0] if row.partition == 0]) == 150
    assert sink.payloads(0) == numbered(300)
    assert sink.payloads(1) == numbered(100)


def test_a_gap_in_the_numbering_costs_no_micro_batches(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "cut-off", partitions=2)
    send(client, "cut-off", 0, numbered(100))
    send(client, "cut-off", 1, numbered(100))
    # A copy of the files of a running server looks like the files after a power cut: reserved offsets are left out.
    shutil.copytree(server.data, tmp_path / "copy" / server.data.name)
    with RunningServer(tmp_path / "copy") as copy, client_of(copy) as other:
        send(other, "cut-off", 0, numbered(100, first=100))
        bounds = other.get_partition_bounds(STREAM, "cut-off").partitions
        assert all(found.next_offset - found.message_count > 1000 for found in bounds)
        sink = Sink()
        progress = run(spark, copy, "cut-off", tmp_path / "checkpoint", sink, maxOffsetsPerTrigger=60)
    assert sink.payloads(0) == numbered(200)
    assert sink.payloads(1) == numbered(100)
    assert all(len(rows) <= 60 for rows in sink.batches.values())
    assert len(sink.batches) <= 6, [one["numInputRows"] for one in progress]
    assert offset_in(progress[-1], "endOffset")["p"] == {str(row.partition_id): row.next_offset for row in bounds}


def test_new_partitions_are_read_from_their_beginning(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "grows")
    send(client, "grows", 0, numbered(3))
    run(spark, server, "grows", tmp_path, Sink(), startingOffsets="latest")
    client.create_partitions(STREAM, "grows", 1)
    send(client, "grows", 1, numbered(4))
    sink = Sink()
    run(spark, server, "grows", tmp_path, sink, startingOffsets="latest")
    assert sink.payloads(0) == []
    assert sink.payloads(1) == numbered(4)


def test_messages_that_retention_took_stop_the_query_with_the_numbers(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "overtaken")
    send(client, "overtaken", 0, numbered(10))
    run(spark, server, "overtaken", tmp_path, Sink())
    send(client, "overtaken", 0, numbered(40, first=10))
    client.purge_topic(STREAM, "overtaken")
    send(client, "overtaken", 0, numbered(5, first=50))
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, server, "overtaken", tmp_path, Sink())
    expected = "partition 0: offset 10 is needed, but the earliest available offset is 50: 40 messages are gone"
    assert expected in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)

    sink = Sink()
    progress = run(spark, server, "overtaken", tmp_path, sink, failOnDataLoss="false")
    assert sink.payloads() == numbered(5, first=50)
    assert offset_in(progress[-1], "endOffset")["lost"] == {"0": 40}


def test_a_topic_that_was_created_again_is_another_topic(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "again")
    send(client, "again", 0, numbered(10))
    run(spark, server, "again", tmp_path, Sink())
    client.delete_topic(STREAM, "again")
    make_topic(client, "again")
    send(client, "again", 0, numbered(20))
    with pytest.raises(StreamingQueryException, match="deleted and recreated"):
        run(spark, server, "again", tmp_path, Sink())


def test_a_query_that_starts_at_a_time_reads_from_there(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "timed")
    send(client, "timed", 0, numbered(5))
    send(client, "timed", 0, numbered(5, first=5))
    time = client.poll_batches(STREAM, "timed", 0, consumer=0).views[-1].timestamp
    sink = Sink()
    query = started(spark, server, "timed", tmp_path, sink, startingTimestamp=time, startingOffsets="earliest")
    with pytest.raises(StreamingQueryException, match="conflict; set only one"):
        query.awaitTermination(PATIENCE)
    frame = spark.readStream.format("courser").options(**options_of(server, "timed", startingTimestamp=time)).load()
    writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path / "other"))
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    assert sink.payloads() == numbered(5, first=5)


def test_a_continuous_query_sees_what_arrives(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "live")
    sink = Sink()
    frame = spark.readStream.format("courser").options(**options_of(server, "live", startingOffsets="earliest")).load()
    query = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path)).start()
    try:
        for first in (0, 10):
            send(client, "live", 0, numbered(10, first=first))
            query.processAllAvailable()
            assert sink.payloads() == numbered(first + 10)
    finally:
        query.stop()
