"""Batch reads: a topic as a DataFrame, with Spark from end to end."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from courser.client.messages import SendMessage
from tests.sdk.classic_frames import ClassicConnection, Layout, Message
from tests.sdk.conversations import Conversation
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, read, send


def test_a_topic_is_read_whole_with_every_partition_and_in_order(spark: SparkSession, server: RunningServer) -> None:
    with client_of(server) as client:
        make_topic(client, "whole", partitions=2)
        for first in range(0, 300, 100):
            send(client, "whole", 0, numbered(100, first=first))
        send(client, "whole", 1, numbered(50, size=30))
    rows = read(spark, options_of(server, "whole")).collect()
    assert [bytes(row.payload) for row in rows if row.partition == 0] == numbered(300)
    assert [bytes(row.payload) for row in rows if row.partition == 1] == numbered(50, size=30)
    assert [row.offset for row in rows if row.partition == 0] == list(range(300))
    assert {(row.stream, row.topic) for row in rows} == {("shop", "whole")}


def test_a_topic_without_messages_gives_no_rows(spark: SparkSession, server: RunningServer) -> None:
    with client_of(server) as client:
        make_topic(client, "empty")
    assert read(spark, options_of(server, "empty")).collect() == []


def test_classic_and_new_sdk_clients_produce_into_one_topic_and_every_field_is_right(
    spark: SparkSession, server: RunningServer
) -> None:
    place = {"stream": STREAM, "topic": "together"}
    with client_of(server) as client:
        make_topic(client, "together")
        with Conversation("0.8.0", server.address) as classic, Conversation("0.9.0", server.address) as new:
            for child in (classic, new):
                child.ask("connect", client="own")
            classic.ask("send", client="own", payloads=["from 0.8", "x" * 3000], index=0, **place)
            rich = [["from 0.9", str((1 << 128) - 1), {"first": "ü", "second": "2" * 255}], ["plain", "7", {}]]
            new.ask("send_rich", client="own", messages=rich, **place)
        for layout in Layout:
            with ClassicConnection(server.address, layout) as connection:
                connection.send(STREAM, "together", 0, [Message(b"classic", 1 << 64, {"key": "value"})])
        keyed = [SendMessage(b"keyed", headers={"count": 3}, key="customer 7"), SendMessage(b"")]
        client.send_messages(STREAM, "together", 0, keyed)
        expected = client.poll_messages(STREAM, "together", 0, count=100, consumer=0)
    rows = read(spark, options_of(server, "together", includeHeaders="true")).collect()
    assert len(rows) == len(expected) == 6 + len(Layout)
    for row, message in zip(rows, expected, strict=True):
        assert (row.partition, row.offset) == (0, message.offset)
        assert bytes(row.payload) == message.payload
        assert int.from_bytes(bytes(row.id), "little") == message.id
        assert microseconds(row.timestamp) == message.timestamp
        assert microseconds(row.origin_timestamp) == message.origin_timestamp
        assert (row.key and bytes(row.key)) == message.key
    headers = [{name: bytes(value) for name, value in row.headers.items()} if row.headers else None for row in rows]
    assert headers[:4] == [None, None, {"first": "ü".encode(), "second": b"2" * 255}, None]
    assert headers[4:-2] == [{"key": b"value"}] * len(Layout)
    assert [bytes(row.payload) for row in rows[:4]] == [b"from 0.8", b"x" * 3000, b"from 0.9", b"plain"]
    assert list(headers[-2] or {}) == ["count"]
    assert (bytes(rows[-2].key), rows[-1].key, headers[-1]) == (b"customer 7", None, None)


def microseconds(time: datetime) -> int:
    """Spark hands out times of this machine's zone, without saying so."""
    return (time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_people_who_come_from_kafka_find_their_columns(spark: SparkSession, server: RunningServer) -> None:
    with client_of(server) as client:
        make_topic(client, "kafka")
        client.send_messages(STREAM, "kafka", 0, [SendMessage(b"value", headers={"trace": "1"}, key="k")])
    frame = read(spark, options_of(server, "kafka", schemaStyle="kafka", includeHeaders="true"))
    (row,) = frame.selectExpr(
        "CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "timestampType", "headers"
    ).collect()
    assert (row.key, row.value, row.topic, row.timestampType) == ("k", "value", "kafka", 1)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("trace", b"1")]


def test_a_schema_of_the_user_chooses_columns_and_a_wrong_one_is_refused(
    spark: SparkSession, server: RunningServer
) -> None:
    with client_of(server) as client:
        make_topic(client, "chosen")
        send(client, "chosen", 0, numbered(10))
    frame = read(spark, options_of(server, "chosen"), "timestamp TIMESTAMP, offset BIGINT")
    assert frame.columns == ["timestamp", "offset"]
    assert frame.agg(f.sum("offset")).collect()[0][0] == 45
    with pytest.raises(PySparkException, match='column "offset" is bigint, not string'):
        read(spark, options_of(server, "chosen"), "offset STRING").collect()


def test_every_query_on_one_frame_gets_all_of_its_rows(spark: SparkSession, server: RunningServer) -> None:
    with client_of(server) as client:
        make_topic(client, "queried", partitions=2)
        for partition in range(2):
            send(client, "queried", partition, numbered(100))
    # With this, Spark offers filters to sources, and would keep what they left for all queries on the frame.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, options_of(server, "queried"))
        few, others = frame.where("offset < 5"), frame.where("offset >= 90")
        assert few.count() == 10
        assert frame.count() == 200
        assert few.union(others).count() == 30
        assert few.join(others, few.partition == others.partition).count() == 100
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_several_topics_are_one_frame_in_which_every_row_knows_its_topic(
    spark: SparkSession, server: RunningServer
) -> None:
    with client_of(server) as client:
        make_topic(client, "clicks", partitions=2)
        make_topic(client, "views")
        send(client, "clicks", 0, numbered(40))
        send(client, "clicks", 1, numbered(20))
        send(client, "views", 0, numbered(30, size=9))
    ends = '{"clicks": {"1": 15}, "views": "latest"}'
    frame = read(spark, options_of(server, "clicks,views", endingOffsets=ends))
    rows = {name: frame.where(f.col("topic") == name).collect() for name in ("clicks", "views")}
    assert {(row.stream, row.topic, row.partition) for row in rows["clicks"]} == {
        ("shop", "clicks", part) for part in (0, 1)
    }
    assert sorted(row.offset for row in rows["clicks"]) == sorted([*range(40), *range(15)])
    assert [bytes(row.payload) for row in rows["views"]] == numbered(30, size=9)
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"clicks": 55, "views": 30}


def test_an_error_of_the_source_is_in_what_spark_says(spark: SparkSession, server: RunningServer) -> None:
    with pytest.raises(PySparkException, match='unknown option "topics"; did you mean "topic"'):
        spark.read.format("courser").options(stream=STREAM, topics="x").load().collect()
    with pytest.raises(PySparkException, match="shop/nothing does not exist"):
        read(spark, options_of(server, "nothing")).collect()
