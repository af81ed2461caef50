"""Topics for tests of the data source: made, filled, and what should come out of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import courser
from courser.client.messages import SendMessage
from courser.client.sync import SyncClient
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
