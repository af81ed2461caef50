"""Spark on an archive, beside Spark on the same messages in segment files, and beside a bare loop of range reads.

No server runs meanwhile. The loop reads the same objects one after the other, with the same library, and neither checks
nor decodes what it gets.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.archive_stores import MeasuredStore, measured_stores
from benchmarks.harness import Bench, Row
from benchmarks.samples import Shape
from benchmarks.spark import SEGMENT_SIZE, STREAM, WARM_UP_COUNT, Topic, drop, fill_topic, running_session, seconds_of
from courser.archive.objects import Piece
from courser.archive.reader import ArchiveReader, choose_cluster, open_archive_store
from courser.archive.restore_plan import RestoreSelection, plan_restore
from courser.archive.settings import StoreKind, StoreSettings
from courser.bench.private_server import private_server
from courser.client.sync import connect_sync
from courser.storage.local_files import LocalFileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = "data_maintenance.archiver"


def _settings(place: StoreSettings) -> dict[str, str]:
    """The place of an archive, by the names of the settings."""
    if place.kind is StoreKind.DISK:
        return {"kind": "disk", "disk.path": str(place.path)}
    return {
        "kind": place.kind.value,
        "s3.bucket": place.bucket,
        "s3.key_prefix": place.key_prefix,
        "s3.region": place.region,
        "s3.endpoint": place.endpoint,
        "s3.access_key_id": place.access_key_id,
        "s3.secret_access_key": place.secret_access_key,
    }


def _objects(place: StoreSettings) -> list[tuple[str, Piece]]:
    """The keys of all objects with messages."""
    store = open_archive_store(place, LocalFileSystem(), bytes(16))
    reader = ArchiveReader(store, choose_cluster(store))
    plan = plan_restore(reader, RestoreSelection())
    return [(reader.keys.base + piece.key, piece) for found in plan.partitions for piece in found.manifest.pieces]


def _filled(bench: Bench, place: StoreSettings, keep: Path) -> Topic:
    """A topic in the archive: a clean stop archives everything."""
    settings = [f"system.segment.size={SEGMENT_SIZE}", f"{_TABLE}.enabled=true"]
    settings += [f"{_TABLE}.{name}={text}" for name, text in _settings(place).items()]
    # Most of it along the way, so that the stop takes little time.
    settings.append(f"{_TABLE}.interval=100ms")
    with private_server(settings=settings, keep=keep) as server:
        with connect_sync(server.target) as client:
            client.create_stream(STREAM)
        return fill_topic(server, "archived", Shape.SAME, bench.scale.spark_size, bench.scale.message_count)


def _frames(spark: "SparkSession", place: StoreSettings, data: Path) -> "tuple[DataFrame, DataFrame]":
    # One task for each partition.
    reader = {"stream": STREAM, "topic": "archived", "maxBytesPerPartition": str(2**40)}
    options = {f"archive.{name}": text for name, text in _settings(place).items()}
    archived = spark.read.format("courser").options(**reader, **options, source="archive").load()
    return archived, spark.read.format("courser").options(**reader, source="segments", path=str(data)).load()


def _measure(bench: Bench, spark: "SparkSession", store: MeasuredStore, directory: Path) -> Iterator[Row]:
    place = store.place("spark")
    keep = directory / f"server-{store.settings.kind.value}"
    topic = _filled(bench, place, keep)
    archived, files = _frames(spark, place, keep / "data")
    objects, bare = _objects(place), store.bare(place)

    def loop() -> None:
        for key, piece in objects:
            bare.read_ranges(key, piece.size)

    for _ in range(min(WARM_UP_COUNT, bench.scale.spark_batch_count)):
        for frame in (archived, files):
            drop(frame)
    speeds: dict[str, list[float]] = {"archive": [], "files": [], "loop": []}
    for _ in range(bench.scale.rounds):
        speeds["archive"].append(topic.speed(seconds_of(lambda: drop(archived))))
        speeds["files"].append(topic.speed(seconds_of(lambda: drop(files))))
        speeds["loop"].append(topic.speed(seconds_of(loop)))
    for kind, name in (("files", "segment files"), ("loop", "a bare loop of range reads")):
        yield Row(
            measure=f"batch read of the archive, {store.name}",
            unit="MB/s",
            engine=speeds["archive"],
            bare=speeds[kind],
            bare_name=name,
        )


def run(bench: Bench) -> Iterator[Row]:
    """One store after the other."""
    with (
        bench.fresh_directory(4 * bench.scale.spark_size) as path,
        running_session(path) as spark,
        measured_stores(path) as stores,
    ):
        for store in stores:
            yield from _measure(bench, spark, store, path)
