"""The archive read by Spark itself, from a directory and from a real S3 server: processes that fork, plans, streams."""

import asyncio
import base64
import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from courser.archive.errors import ArchiveMissing
from courser.archive.settings import StoreSettings
from courser.client.messages import SendMessage
from courser.jobs.export import export
from courser.records.encryption import KEY_VARIABLE, KeyRing
from courser.spark.errors import SourceMissing
from courser.spark.failures import one_line
from courser.testing.broker import TestBroker
from tests.archive.brokers import archiver_of, settings_of
from tests.archive.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, read, send, source_rows
from tests.storage.engine import ENCRYPTION, KEY

PATIENCE = 600
"""Seconds that a query may take before a test gives up."""
TOPICS = {"plain": "none", "small": "zstd"}
"""Topics by their codec."""
COUNT = 400


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as running:
        running.client.create_bucket(Bucket="archive")
        yield running


async def archive_all(directory: Path, store: StoreSettings, *, is_encrypted: bool) -> None:
    """A topic per codec, and one that is condensed: sealed segments, and segments that are still written."""
    settings = settings_of(store=store)
    if is_encrypted:
        settings = replace(settings, encryption=ENCRYPTION, keys=KeyRing([KEY]))
    async with TestBroker(directory, settings=settings) as broker:
        client = await broker.connect()
        await client.create_stream(STREAM)
        await client.create_topic(STREAM, "latest", keep_latest_by_key=True)
        for number in range(4):
            messages = [SendMessage(f"{number}{key}", key=key) for key in ("x", "y", f"only {number}")]
            await client.send_messages(f"{STREAM}/latest", partitioning=0, messages=messages)
            await next(iter(broker.broker.partitions)).partitions[0].roll()
        await client.send_messages(f"{STREAM}/latest", partitioning=0, messages=["open"])
        assert await archiver_of(broker).run_once()
        await broker.broker.condenser.condense_due()
        for topic, codec in TOPICS.items():
            await client.create_topic(STREAM, topic, 2, compression_algorithm=codec)
        for first in range(0, COUNT, COUNT // 4):
            for topic in TOPICS:
                for partition in (0, 1):
                    payloads = numbered(COUNT // 4, 200, first=first)
                    await client.send_messages(f"{STREAM}/{topic}", partitioning=partition, messages=list(payloads))
            if first < COUNT // 2:
                for found in broker.broker.partitions:
                    for partition_log in found.partitions:
                        await partition_log.roll()
            assert await archiver_of(broker).run_once(with_active=True)


def check(spark: SparkSession, options: dict[str, str]) -> None:
    for topic in TOPICS:
        rows = read(spark, options | {"topic": topic, "minPartitions": "5"}).collect()
        found = sorted((row.partition, row.offset, bytes(row.payload)) for row in rows)
        assert found == [
            (partition, offset, payload) for partition in (0, 1) for offset, payload in enumerate(numbered(COUNT, 200))
        ]
    latest = read(spark, options | {"topic": "latest"}, "offset BIGINT").collect()
    assert [row.offset for row in latest] == [2, 5, 8, 9, 10, 11, 12]


def test_a_directory_is_read(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(archive_all(tmp_path / "data", StoreSettings(path=tmp_path / "archive"), is_encrypted=False))
    check(spark, {"source": "archive", "archive.path": str(tmp_path / "archive"), "stream": STREAM})


def test_an_encrypted_archive_is_exported(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a job, which is planned in this process: Spark's own got their environment before the test."""
    asyncio.run(archive_all(tmp_path / "data", StoreSettings(path=tmp_path / "archive"), is_encrypted=True))
    options = {"source": "archive", "archive.path": str(tmp_path / "archive"), "stream": STREAM}
    with pytest.raises(PySparkException) as failure:
        read(spark, options | {"topic": "small"}).collect()
    assert "which is not configured" in one_line(failure.value)
    monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(bytes(range(32))).decode())
    for topic in TOPICS:
        report = export(spark, options | {"topic": topic}, tmp_path / "lake")
        assert report.row_count == 2 * COUNT
        rows = polars.read_parquet(tmp_path / "lake" / f"**/topic={topic}/**/*.parquet")
        assert sorted(rows["payload"]) == sorted(2 * numbered(COUNT, 200))


def s3_options(seaweed: SeaweedServer, prefix: str, **others: str) -> dict[str, str]:
    return {
        "source": "archive",
        "archive.kind": "s3",
        "archive.s3.bucket": "archive",
        "archive.s3.key_prefix": prefix,
        "archive.s3.region": "us-east-1",
        "archive.s3.endpoint": seaweed.endpoint,
        "archive.s3.access_key_id": ACCESS_KEY,
        "archive.s3.secret_access_key": SECRET_KEY,
        "stream": STREAM,
        **others,
    }


def test_a_bucket_is_read_and_no_plan_shows_the_credentials(
    spark: SparkSession, seaweed: SeaweedServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = seaweed.settings("archive", key_prefix="plans")
    asyncio.run(archive_all(tmp_path / "data", store, is_encrypted=False))
    options = s3_options(seaweed, "plans")
    check(spark, options)
    frame = read(spark, options | {"topic": "plain"})
    capfd.readouterr()
    frame.explain("formatted")
    frame.explain(True)
    shown = capfd.readouterr()
    assert "BatchScan courser" in shown.out
    wrong = read(spark, options | {"topic": "plain", "retries": "0", "archive.s3.bucket": "nothing"})
    with pytest.raises(PySparkException) as failure:
        wrong.collect()
    for text in (shown.out, shown.err, str(failure.value), one_line(failure.value)):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
    assert "nothing" in one_line(failure.value)


class Collected:
    """Takes the micro-batches of a query, and does something after the first."""

    def __init__(self, server: RunningServer) -> None:
        self.offsets: list[int] = []
        self._server = server

    def take(self, frame: DataFrame, number: int) -> None:
        self.offsets += [row.offset for row in frame.select("offset").collect()]
        if number == 0:
            assert self._server.stop() == 0


def test_a_query_goes_on_when_the_server_has_stopped(
    spark: SparkSession, seaweed: SeaweedServer, tmp_path: Path
) -> None:
    table = "data_maintenance.archiver"
    place = s3_options(seaweed, "stopped")
    settings: dict[str, Any] = {
        "system.segment.size": "100 KiB",
        f"{table}.enabled": "true",
        f"{table}.interval": "50ms",
        f"{table}.active_interval": "50ms",
        **{f"{table}.{name.removeprefix('archive.')}": text for name, text in place.items() if "archive." in name},
    }
    with RunningServer(tmp_path, settings=settings) as server:
        with client_of(server) as client:
            make_topic(client, "orders")
            for first in range(0, COUNT, 50):
                send(client, "orders", 0, numbered(50, 1000, first=first))
        options = place | {"topic": "orders", "startingOffsets": "earliest"}
        wait_until_archived(options)
        sink = Collected(server)
        frame = spark.readStream.format("courser").options(**options, maxOffsetsPerTrigger="150").load()
        writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE), "the query does not end"
    assert sink.offsets == list(range(COUNT))


def wait_until_archived(options: dict[str, str]) -> None:
    """Until the newest root has all messages."""
    deadline, count = time.monotonic() + PATIENCE, 0
    while count < COUNT:
        assert time.monotonic() < deadline, "the messages are not archived"
        with contextlib.suppress(ArchiveMissing, SourceMissing):
            count = len(source_rows(options, "offset BIGINT"))
