"""Writes: rows become messages, each exactly once, whatever happens to tasks, drivers and batches."""

import datetime
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from courser.client.messages import Partitioning, PollingStrategy
from courser.client.sync import SyncClient
from courser.spark.failures import one_line
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, read, send

PATIENCE = 600


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


def last_commit(checkpoint: Path) -> Path:
    """The file in which Spark notes that its newest batch is done."""
    return max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    )


def test_a_batch_that_spark_repeats_is_there_once(
    spark: SparkSession, server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    """A driver that dies behind the publish has no note of it: the next one runs the batch again."""
    make_topic(client, "repeated source")
    make_topic(client, "repeated", 2)
    send(client, "repeated source", 0, numbered(800))
    stream_from(spark, server, "repeated source", "repeated", tmp_path / "checkpoint")
    noted = last_commit(tmp_path / "checkpoint")
    assert noted.name == "1"
    noted.unlink()
    (noted.parent / f".{noted.name}.crc").unlink(missing_ok=True)
    send(client, "repeated source", 0, numbered(5, first=800))
    stream_from(spark, server, "repeated source", "repeated", tmp_path / "checkpoint")
    assert Counter(everything(client, "repeated")) == Counter(numbered(805))


def test_every_column_becomes_what_it_says(spark: SparkSession, server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "columns", 4)
    time = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
    rows = [
        (b"\x00\xff", "order-7", {"kind": b"new"}, None, bytes(range(16)), time),
        (b"second", "order-7", {}, 2, None, time + datetime.timedelta(days=400)),
        (b"", None, None, 3, None, None),
    ]
    schema = (
        "payload BINARY, key STRING, headers MAP<STRING, BINARY>, partition INT, id BINARY, origin_timestamp TIMESTAMP"
    )
    write(spark.createDataFrame(rows, schema).coalesce(1), server, "columns")
    options = options_of(server, "columns", includeHeaders=True)
    found = {bytes(row.payload): row for row in read(spark, options).collect()}
    first, second, third = found[b"\x00\xff"], found[b"second"], found[b""]
    assert (bytes(first.key), bytes(first.id), first.headers) == (b"order-7", bytes(range(16)), {"kind": b"new"})
    assert first.origin_timestamp.replace(tzinfo=datetime.UTC) == time
    assert second.origin_timestamp - first.origin_timestamp == datetime.timedelta(days=400)
    assert (second.partition, third.partition, third.key, third.headers) == (2, 3, None, None)
    # A key goes where any client's keyed send goes.
    sent = client.send_messages(STREAM, "columns", Partitioning.key("order-7"), [b"sent"])
    assert first.partition == sent.partition_id


def test_keys_spread_rows_as_clients_do(spark: SparkSession, server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "keys", 5)
    frame = spark.range(0, 400, numPartitions=2).selectExpr(
        "cast(id as string) as value", "concat('key-', id % 37) as key"
    )
    write(frame, server, "keys", batchBytes=2000)
    places = {
        int(payload) % 37: partition for partition, found in payloads(client, "keys").items() for payload in found
    }
    for number in range(0, 37, 5):
        sent = client.send_messages(STREAM, "keys", Partitioning.key(f"key-{number}"), [str(number).encode()])
        assert sent.partition_id == places[number]
    assert len(everything(client, "keys")) == 400 + 8


def test_rows_name_their_topics_and_missing_ones_are_made(
    spark: SparkSession, server: RunningServer, client: SyncClient
) -> None:
    make_topic(client, "default")
    frame = spark.range(0, 30, numPartitions=2).select(
        f.col("id").cast("string").alias("payload"),
        f.when(f.col("id") % 3 == 0, "made by a write").when(f.col("id") % 3 == 1, "default").alias("topic"),
    )
    write(frame, server, "default", createTopic=3)
    assert len(everything(client, "made by a write")) == 10
    assert len(everything(client, "default")) == 20
    assert len(client.get_partition_bounds(STREAM, "made by a write").partitions) == 3


def test_a_job_with_an_id_is_published_once(spark: SparkSession, server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "job")
    frame = spark.range(0, 10, numPartitions=2).selectExpr("cast(id as string) as value")
    for _ in range(2):
        write(frame, server, "job", jobId="nightly-2026-05-01")
    assert len(everything(client, "job")) == 10


def test_at_least_once_sends_at_once(spark: SparkSession, server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "direct", 2)
    frame = spark.range(0, 100, numPartitions=2).selectExpr("cast(id as string) as value")
    write(frame, server, "direct", delivery="at-least-once")
    assert len(everything(client, "direct")) == 100


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "failed")
    good = spark.range(0, 1000, numPartitions=2)
    frame = good.selectExpr("if(id = 900, raise_error('no more'), cast(id as string)) as value")
    with pytest.raises(PySparkException):
        write(frame, server, "failed", batchBytes=1000)
    assert everything(client, "failed") == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("cast(id as string) as vlue", {}, 'messages have no column "vlue"; did you mean "value"'),
        ("cast(id as string) as value, id as offset", {}, "the server assigns offsets"),
        ("cast(id as string) as key", {}, 'a write needs exactly one column "payload"'),
        ("id as value", {}, 'column "value" must be binary or string, not bigint'),
        ("cast(id as string) as value", {"partitioning": "key"}, 'there is no column "key"'),
        ("cast(id as string) as value", {"delivry": "x"}, 'did you mean "delivery"'),
        ("cast(id as string) as value", {"startingOffsets": "earliest"}, "not for write"),
        ("cast(id as string) as value", {"topic": "nowhere"}, "topic shop/nowhere does not exist; create it, or set"),
        ("cast(id as string) as value, 9 as partition", {}, 'column "partition" names partition 9'),
        ("cast(null as string) as value", {}, 'column "value" is null in row 0'),
        ("'x' as value, rpad('k',256,'k') as key", {}, "the maximum is 255"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_cannot_be_written_is_said(
    spark: SparkSession, server: RunningServer, client: SyncClient, columns: str, options: dict[str, str], message: str
) -> None:
    if "errors" not in [topic.name for topic in client.get_topics(STREAM)]:
        make_topic(client, "errors", 2)
    frame = spark.range(0, 2, numPartitions=1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException) as raised:
        write(frame, server, **({"topic": "errors"} | options))
    assert message in one_line(raised.value)


def test_a_topic_is_not_overwritten(spark: SparkSession, server: RunningServer) -> None:
    frame = spark.range(1).selectExpr("'x' as value")
    with pytest.raises(AnalysisException, match="can only be appended to"):
        frame.write.format("courser").options(**options_of(server, "t")).mode("overwrite").save()
