"""What every release of Spark can do with topics: ``make test-sparks`` runs this on all of them."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from courser.archive.settings import StoreSettings
from courser.client.sync import SyncClient
from courser.spark.failures import one_line
from courser.spark.releases import HAS_ADMISSION_CONTROL
from courser.testing.broker import TestBroker
from tests.archive.brokers import archiver_of, settings_of
from tests.pipelines.scenes import Scene, orders_source
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, read, send

PATIENCE = 600
"""Seconds that a query may take before a test gives up."""


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer, spark: SparkSession) -> Scene:
    return Scene(tmp_path, server, spark)


class Sink:
    """Collects micro-batches, and ends the wait of a test when the last message is there."""

    def __init__(self, last: bytes | None = None) -> None:
        self.batches: list[list[bytes]] = []
        self.is_complete = threading.Event()
        self._last = last

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches.append([bytes(row.payload) for row in frame.collect()])
        if self._last in self.batches[-1]:
            self.is_complete.set()

    @property
    def rows(self) -> list[bytes]:
        return [payload for batch in self.batches for payload in batch]


def stream(spark: SparkSession, server: RunningServer, topic: str, **options: object) -> DataFrame:
    return spark.readStream.format("courser").options(**options_of(server, topic, **options)).load()


def ended(query: StreamingQuery) -> list[Any]:
    assert query.awaitTermination(PATIENCE), "the query does not end"
    return list(query.recentProgress)


def test_a_topic_is_read_with_all_columns_and_with_some(
    spark: SparkSession, server: RunningServer, client: SyncClient
) -> None:
    make_topic(client, "read", 2)
    send(client, "read", 0, numbered(1000), headers={"a": b"b"})
    send(client, "read", 1, numbered(10))
    rows = read(spark, options_of(server, "read", includeHeaders="true")).collect()
    assert Counter(row.partition for row in rows) == {0: 1000, 1: 10}
    first = next(row for row in rows if (row.partition, row.offset) == (0, 0))
    assert (bytes(first.payload), {name: bytes(value) for name, value in first.headers.items()}) == (
        numbered(1)[0],
        {"a": b"b"},
    )
    few = read(spark, options_of(server, "read"), "offset BIGINT").where("offset >= 990")
    assert sorted(row.offset for row in few.collect()) == list(range(990, 1000))


def test_a_batch_is_written(spark: SparkSession, server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "written", 3)
    frame = spark.range(0, 1000, numPartitions=4).selectExpr("cast(id as string) as value")
    frame.write.format("courser").options(**options_of(server, "written")).mode("append").save()
    rows = read(spark, options_of(server, "written"), "payload BINARY").collect()
    assert sorted(int(bytes(row.payload)) for row in rows) == list(range(1000))


def test_a_stream_is_copied_exactly_once_and_goes_on_from_its_checkpoint(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "source", 2)
    make_topic(client, "target")
    send(client, "source", 0, numbered(500))
    send(client, "source", 1, numbered(100, first=500))

    def copy() -> None:
        writer = stream(spark, server, "source", startingOffsets="earliest").select("payload").writeStream
        writer = writer.format("courser").options(**options_of(server, "target", delivery="exactly-once"))
        ended(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())

    def copied() -> list[bytes]:
        return sorted(bytes(row.payload) for row in read(spark, options_of(server, "target")).collect())

    copy()
    assert copied() == sorted(numbered(600))
    send(client, "source", 1, numbered(100, first=600))
    copy()
    assert copied() == sorted(numbered(700))
    # The commit of the last batch is lost: it is repeated, and the server knows it.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink()
    copy()
    assert copied() == sorted(numbered(700))


def test_limits_hold_and_outlive_a_restart(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "limited")
    send(client, "limited", 0, numbered(1000))

    def run(last: bytes) -> Sink:
        """A query that runs until this message came."""
        sink = Sink(last)
        frame = stream(spark, server, "limited", startingOffsets="earliest", maxOffsetsPerTrigger=400)
        writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(processingTime="10 milliseconds").start()
        try:
            assert sink.is_complete.wait(PATIENCE), query.exception()
        finally:
            query.stop()
        return sink

    first = run(numbered(1000)[-1])
    assert [len(batch) for batch in first.batches] == [400, 400, 200]
    assert first.rows == numbered(1000)
    send(client, "limited", 0, numbered(500, first=1000))
    # The last batch is repeated if the query was stopped before its commit.
    second = run(numbered(1, first=1499)[0])
    assert [len(batch) for batch in second.batches][-2:] == [400, 100]
    assert second.rows[-500:] == numbered(500, first=1000)


def test_a_run_that_ends_reads_everything(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "ending")
    send(client, "ending", 0, numbered(1000))
    sink = Sink()
    limit = {"maxOffsetsPerTrigger": 400} if HAS_ADMISSION_CONTROL else {}
    frame = stream(spark, server, "ending", startingOffsets="earliest", **limit)
    writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path))
    ended(writer.trigger(availableNow=True).start())
    assert sink.rows == numbered(1000)


def test_a_stream_that_starts_at_the_newest_message_gets_all_later_ones(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "latest")
    send(client, "latest", 0, numbered(10))

    def run() -> list[bytes]:
        sink = Sink()
        frame = stream(spark, server, "latest")
        writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path))
        ended(writer.trigger(availableNow=True).start())
        return sink.rows

    assert run() == []
    send(client, "latest", 0, numbered(10, first=10))
    assert run() == numbered(10, first=10)


def test_an_archive_is_read(spark: SparkSession, tmp_path: Path) -> None:
    async def fill() -> None:
        settings = settings_of(store=StoreSettings(path=tmp_path / "archive"))
        async with TestBroker(tmp_path / "data", settings=settings) as broker:
            client = await broker.connect()
            await client.create_stream(STREAM)
            await client.create_topic(STREAM, "archived", 1)
            await client.send_messages(f"{STREAM}/archived", partitioning=0, messages=list(numbered(500)))
            assert await archiver_of(broker).run_once(with_active=True)

    asyncio.run(fill())
    options = {"source": "archive", "archive.path": str(tmp_path / "archive"), "stream": STREAM, "topic": "archived"}
    assert [bytes(row.payload) for row in read(spark, options).collect()] == numbered(500)


def test_a_pipeline_writes_a_lake_and_puts_bad_rows_aside(scene: Scene) -> None:
    scene.make_topic("orders")
    scene.send_orders("orders", range(600))
    scene.send("orders", [b"{oops"])
    path = scene.define(
        "lake",
        orders_source("orders", 'on_bad_row = "quarantine"\nquarantine_path = "bad"\nmax_messages_per_trigger = 200')
        + '[sink]\ntype = "parquet"\npath = "lake"\npartition_by = ["day"]\n',
    )
    assert [status.state for status in scene.run(path)] == ["finished"]
    assert scene.count("lake", "id") == Counter(range(600))
    assert scene.count("bad", "_payload") == {b"{oops": 1}
    scene.send_orders("orders", range(600, 700))
    assert [status.rows for status in scene.run(path)] == [100], "it goes on where it stopped"
    assert scene.count("lake", "id") == Counter(range(700))


def test_a_pipeline_writes_messages_unchanged(scene: Scene) -> None:
    scene.make_topic("unchanged")
    scene.send_orders("unchanged", range(600))
    path = scene.define(
        "raw", f'[source]\nstream = "{STREAM}"\ntopic = "unchanged"\n[sink]\ntype = "parquet"\npath = "raw"\n'
    )
    assert [status.state for status in scene.run(path)] == ["finished"]
    assert sum(scene.count("raw", "payload").values()) == 600


def test_a_pipeline_with_sql_joins_a_table_and_writes_a_topic(scene: Scene) -> None:
    scene.make_topic("selected")
    scene.make_topic("totals", 1)
    scene.send_orders("selected", range(600))
    (scene.folder / "names.csv").write_text("customer,name\nc0,ada\nc1,bob\n")
    path = scene.define(
        "totals",
        orders_source("selected", 'on_bad_row = "drop"')
        + '[transform]\nsql = "SELECT name AS payload FROM source JOIN names USING (customer) WHERE id < 100"\n'
        + '[tables.names]\npath = "names.csv"\nformat = "csv"\n'
        + f'[sink]\ntype = "topic"\nstream = "{STREAM}"\ntopic = "totals"\n',
    )
    assert [status.state for status in scene.run(path)] == ["finished"]
    assert Counter(scene.payloads("totals", 1)) == {b"ada": 20, b"bob": 20}


def test_a_refusal_is_one_line(spark: SparkSession, server: RunningServer) -> None:
    with pytest.raises(PySparkException) as refusal:
        read(spark, options_of(server, "nothing")).collect()
    assert "shop/nothing" in one_line(refusal.value)
