"""Topics for tests of the data source: made, filled, and what should come out of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import courser
from courser.client.messages import SendMessage
from courser.client.sync import SyncClient
from courser.spark.data_source import CourserSource
from tests.servers import ROOT_NAME, ROOT_PASSWORD, RunningServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "shop"


def client_of(server: RunningServer) -> SyncClient:
    """A client of a test's server."""
    return courser.connect_sync(f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@{server.address}")


def options_of(server: RunningServer, topic: str, **others: object) -> dict[str, str]:
    """The options that every read needs, and others."""
    options = {"url": f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@{server.address}", "stream": STREAM, "topic": topic}
    return options | {name: str(value) for name, value in others.items()}


def make_topic(client: SyncClient, topic: str, partitions: int = 1, **options: Any) -> None:
    """Make a topic, and the stream if there is none."""
    if STREAM not in [stream.name for stream in client.get_streams()]:
        client.create_stream(STREAM)
    client.create_topic(STREAM, topic, partitions, **options)


def send(client: SyncClient, topic: str, partition: int, payloads: Sequence[bytes], **fields: Any) -> None:
    """One batch into one partition."""
    client.send_messages(STREAM, topic, partition, [SendMessage(payload, **fields) for payload in payloads])


def numbered(count: int, size: int = 20, first: int = 0) -> list[bytes]:
    """Payloads that differ."""
    return [str(number).encode().rjust(size, b".") for number in range(first, first + count)]


def read(spark: "SparkSession", options: Mapping[str, str], schema: str | None = None) -> "DataFrame":
    """A batch read."""
    reader = spark.read.format("courser").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def source_rows(options: Mapping[str, str], schema: str | None = None) -> list[dict[str, Any]]:
    """What a batch read gives, without Spark: planned, pickled as for a task, read."""
    return [row for rows in task_rows(options, schema) for row in rows]


def task_rows(options: Mapping[str, str], schema: str | None = None) -> list[list[dict[str, Any]]]:
    """The same, task by task."""
    source = CourserSource(dict(options))
    reader = source.reader(_parsed(schema) if schema else source.schema())
    return [rows_of(reader, task) for task in reader.partitions()]


def rows_of(reader: Any, task: Any) -> list[dict[str, Any]]:
    """What a task gives, in another process for all that it knows."""
    there, one = cloudpickle.loads(cloudpickle.dumps((reader, task)))  # type: ignore[no-untyped-call]
    return [row for batch in there.read(one) for row in batch.to_pylist()]


def _parsed(schema: str) -> StructType:
    fields = [field.strip().split(" ") for field in schema.split(",")]
    return StructType([StructField(name, _TYPES[kind.upper()]()) for name, kind in fields])


_TYPES: dict[str, type[DataType]] = {
    "BIGINT": LongType,
    "BINARY": BinaryType,
    "INT": IntegerType,
    "STRING": StringType,
    "TIMESTAMP": TimestampType,
}
