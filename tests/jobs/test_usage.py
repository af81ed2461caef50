"""Usage on Spark: volumes, rates and sizes from the headers of segment files, and what retention will do."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import courser
from courser.jobs.segment_figures import HOUR, SegmentFigures, figures_of
from courser.jobs.usage import NoSuchTopic, NotADataDirectory, SizeClass, usage
from courser.records.batch import NewMessage, build_batch
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE
from courser.storage.local_files import LocalFileSystem
from tests.inspect.partitions import IDENTITY, PER_BATCH, Partition, flip, full_partition
from tests.servers import RunningServer

MIB = 1024 * 1024


def figures_below(partition: Partition) -> SegmentFigures:
    total = SegmentFigures()
    for path in partition.logs:
        total.add(figures_of(LocalFileSystem().open(path), IDENTITY))
    return total


def append_sizes(partition: Partition, *sizes: int) -> None:
    partition.append(build_batch([NewMessage(b"x" * size, number + 1, 0) for number, size in enumerate(sizes)]))


def test_a_topic_is_counted_by_its_headers(spark: SparkSession, tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    report = usage(spark, partition.data_directory)
    [topic] = report.topics
    assert (topic.stream, topic.topic, topic.partition_count) == ("shop", "orders", 1)
    assert topic.segment_count == len(partition.logs)
    assert topic.message_count == 30 * PER_BATCH
    assert topic.size == sum(path.stat().st_size for path in partition.logs)
    assert topic.message_size == topic.size - 30 * BATCH_HEADER_SIZE - topic.message_count * FRAME_HEADER_SIZE
    # All messages have one size, and only headers were read.
    assert topic.sizes == (SizeClass(size_min=32, size_max=63, message_count=90),)
    assert report.read_size == 30 * BATCH_HEADER_SIZE
    assert topic.largest_partition_share == 1.0
    assert topic.damaged_count == 0


def test_sizes_that_differ_are_found_in_the_frames(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    append_sizes(partition, 1, 2, 3, 1023, 1024)
    append_sizes(partition, 0, 5)
    figures = figures_below(partition)
    assert figures.size_counts == {0: 1, 1: 1, 2: 2, 3: 1, 10: 1, 11: 1}
    assert figures.message_size == 1 + 2 + 3 + 1023 + 1024 + 5


def test_large_messages_are_not_read(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    append_sizes(partition, 100_000, 200_000, 300_000)
    figures = figures_below(partition)
    assert figures.size_counts == {17: 1, 18: 1, 19: 1}
    assert figures.message_size == 600_000
    assert figures.read_size < 2 * BATCH_HEADER_SIZE + 3 * FRAME_HEADER_SIZE


def test_what_is_damaged_is_counted_as_such(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    flip(partition.logs[0], 20)
    figures = figures_below(partition)
    assert figures.damaged_count == 1
    assert 0 < figures.message_count < 30 * PER_BATCH


def test_rates_are_those_of_the_window() -> None:
    figures = SegmentFigures(first_timestamp=0, last_timestamp=10 * HOUR)
    figures.hours.update({0: 1_000_000, 9: 7200, 10: 7200})
    figures.hour_counts.update({0: 1000, 9: 72, 10: 72})
    assert figures.rate_since(11 * HOUR, 2) == (2.0, 0.02)
    # A log that is younger than the window is not averaged over time in which it was not there.
    assert figures.rate_since(11 * HOUR, 24)[1] == pytest.approx(1144 / (11 * 3600))


def test_retention_is_forecast_from_the_rate(spark: SparkSession, tmp_path: Path) -> None:
    with RunningServer(tmp_path / "server") as server:
        with courser.connect_sync(server.address, username="iggy", password="iggy") as client:
            client.create_stream("shop")
            client.create_topic("shop", "bounded", 2, max_topic_size=64 * MIB)
            client.create_topic("shop", "free", 1)
            for _ in range(10):
                client.send_messages("shop", "bounded", 0, [b"x" * 1000] * 100)
        report = usage(spark, server.data, stream="shop", topic="bounded")
        [topic] = report.topics
        assert (topic.message_count, topic.size_max, topic.kept_size) == (1000, 64 * MIB, 64 * MIB)
        assert topic.largest_partition_share == 1.0
        assert topic.bytes_per_second > 0
        assert topic.seconds_to_limit == pytest.approx((64 * MIB - topic.size) / topic.bytes_per_second)
        assert report.seconds_to_full_disk == pytest.approx(report.disk_free / topic.bytes_per_second)
        free = usage(spark, server.data, stream="shop", topic="free").topics[0]
        assert (free.message_count, free.first_timestamp, free.seconds_to_limit) == (0, None, None)


def test_names_that_nothing_has_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    with pytest.raises(NoSuchTopic, match="has no topic shop/order"):
        usage(spark, partition.data_directory, stream="shop", topic="order")
    with pytest.raises(NotADataDirectory, match="it contains no metadata"):
        usage(spark, tmp_path)
