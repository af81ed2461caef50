"""One consumer of each kind reads from the first offset on, across archive, sealed segments and the open one.

Meanwhile a producer writes, and the server archives, deletes what is archived, and removes superseded messages from the
topic that keeps the latest message of each key.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from courser.client.messages import SendMessage
from courser.client.sync import SyncClient
from tests.sdk.conversations import PATIENCE, Conversation
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, options_of, source_rows
from tests.torture.process import until

ORDERS, LATEST = "orders", "latest"
PER_BATCH, BATCH_COUNT = 40, 12
"""Messages of a batch, and batches before the consumers begin. The producer sends as many again while they read."""
KEYS = [f"key-{number}" for number in range(PER_BATCH)]

Found = list[tuple[int, str]]
"""Offsets and payloads, in the order in which they came."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """With segments of three batches, and everything that it does with them at once."""
    settings = {
        "http.enabled": "true",
        "http.address": "127.0.0.1:0",
        "system.segment.size": "100 KiB",
        "data_maintenance.archiver.enabled": "true",
        "data_maintenance.archiver.path": tmp_path / "archive",
        "data_maintenance.archiver.interval": "20ms",
        "data_maintenance.archiver.active_interval": "20ms",
        "data_maintenance.messages.interval": "20ms",
        "data_maintenance.condensing.percent": "1",
    }
    with RunningServer(tmp_path, settings=settings) as running:
        yield running


def text(key: str, number: int) -> str:
    return f"{key} {number} ".ljust(1000, ".")


def produce(client: SyncClient, first: int, count: int) -> None:
    """So many batches to each topic: one message of each key."""
    for number in range(first, first + count):
        payloads = [text(key, number) for key in KEYS]
        client.send_messages(STREAM, ORDERS, 0, [SendMessage(payload) for payload in payloads])
        keyed = [SendMessage(payload, key=key) for key, payload in zip(KEYS, payloads, strict=True)]
        client.send_messages(STREAM, LATEST, 0, keyed)


def local_start(client: SyncClient) -> int:
    """The first offset of the orders that is on the server's disk; none is, if only the archive has them."""
    segments = client.get_segments(STREAM, ORDERS, 0).segments
    return next((found.first_offset for found in segments if found.location == "local"), 2**63)


def kept_count(client: SyncClient) -> int:
    """How many messages the other topic has."""
    return client.get_partition_bounds(STREAM, LATEST).partitions[0].message_count


def wait_until(is_so: Callable[[], object], what: str, beside: "Future[None] | None" = None) -> None:
    """Until something is so, or what goes on beside it has failed."""

    def is_over() -> bool:
        if beside is not None and beside.done():
            beside.result()
        return bool(is_so())

    until(is_over, what, PATIENCE)


class Reading:
    """Polls both topics to their heads, again and again, until it has what was sent last."""

    def __init__(self, release: str, address: str, end: threading.Event, last_offset: int) -> None:
        self.found: dict[str, Found] = {ORDERS: [], LATEST: []}
        self._end = end
        self._last_offset = last_offset
        self._release = release
        self._address = address

    @property
    def has_all(self) -> bool:
        return all(rows and rows[-1][0] == self._last_offset for rows in self.found.values())

    def read(self) -> None:
        with Conversation(self._release, self._address) as child:
            child.ask("connect", client="own")
            # The last message is the newest of its key, so it always comes.
            while not self._end.is_set() or not self.has_all:
                for topic, rows in self.found.items():
                    offset = rows[-1][0] + 1 if rows else 0
                    polled = child.ask("poll", client="own", stream=STREAM, topic=topic, offset=offset)
                    rows += [(offset, payload) for offset, payload, _ in polled]


class Streaming:
    """A query of Spark over both topics."""

    def __init__(self, spark: SparkSession, server: RunningServer, checkpoint: Path) -> None:
        self.found: dict[str, Found] = {ORDERS: [], LATEST: []}
        place = {"archive.path": server.directory / "archive", "path": server.data}
        options = options_of(server, f"{ORDERS},{LATEST}", startingOffsets="earliest", **place)
        frame = spark.readStream.format("courser").options(**options, maxOffsetsPerTrigger="300").load()
        rows = frame.select("topic", "offset", "payload").writeStream.foreachBatch(self._take)
        self.query = rows.option("checkpointLocation", str(checkpoint)).start()

    def _take(self, frame: DataFrame, _: int) -> None:
        for row in frame.orderBy("offset").collect():
            self.found[row.topic].append((row.offset, bytes(row.payload).decode()))


def check(found: dict[str, Found], batch_count: int) -> None:
    sent = [text(key, number) for number in range(batch_count) for key in KEYS]
    assert found[ORDERS] == list(enumerate(sent))
    offsets = [offset for offset, _ in found[LATEST]]
    assert offsets == sorted(set(offsets)), "in order, none twice"
    assert all(payload == sent[offset] for offset, payload in found[LATEST])
    newest = {payload.split()[0]: payload for _, payload in found[LATEST]}
    assert newest == {key: text(key, batch_count - 1) for key in KEYS}


def as_found(rows: Sequence[dict[str, Any]]) -> dict[str, Found]:
    found: dict[str, Found] = {ORDERS: [], LATEST: []}
    for row in rows:
        found[row["topic"]].append((row["offset"], row["payload"].decode()))
    return found


def test_every_consumer_gets_every_offset_once(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    total = 2 * BATCH_COUNT
    http = f"iggy+http://{server.address_of('http')}"
    end = threading.Event()
    kinds = (("0.8.0", server.address), ("0.9.0", server.address), ("0.9.0", http))
    readings = [Reading(*kind, end, total * PER_BATCH - 1) for kind in kinds]
    with client_of(server) as client:
        make_topic(client, ORDERS, local_retention_size=1)
        make_topic(client, LATEST, keep_latest_by_key=True)
        produce(client, 0, BATCH_COUNT)
        wait_until(lambda: local_start(client) > 0, "a move to the archive")
        wait_until(lambda: kept_count(client) < BATCH_COUNT * PER_BATCH, "condensing")
        moved, streaming = local_start(client), Streaming(spark, server, tmp_path / "checkpoint")
        with ThreadPoolExecutor(len(readings)) as threads:
            futures = [threads.submit(reading.read) for reading in readings]
            try:
                # One after the other: the consumers are in the middle of it when the producer goes on.
                for reading, future in zip(readings, futures, strict=True):
                    wait_until(partial(len, reading.found[ORDERS]), "a poll with messages", future)
                produce(client, BATCH_COUNT, BATCH_COUNT)
                wait_until(lambda: local_start(client) > moved, "another move to the archive")
            finally:
                end.set()
            for reading, future in zip(readings, futures, strict=True):
                future.result()
                check(reading.found, total)
        streaming.query.processAllAvailable()
        streaming.query.stop()
        check(streaming.found, total)
        assert kept_count(client) < total * PER_BATCH
    server.stop()
    place = {"source": "archive", "archive.path": str(server.directory / "archive")}
    archived = as_found(source_rows({**place, "stream": STREAM, "topic": f"{ORDERS},{LATEST}"}))
    check(archived, total)
    assert len(archived[LATEST]) < total * PER_BATCH
