"""Batch reads: a topic as a DataFrame."""

from pyspark.sql import SparkSession

from tests.servers import RunningServer
from tests.spark.topics import client_of, make_topic, numbered, options_of, read, send


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
