"""Compact: writes the latest message of each key to a new topic or to Parquet files.

Which one is the latest is defined in ``records/message_keys``, for topics that keep it by themselves too.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from courser.errors import ClientFailure, NotFound
from courser.jobs.source_topic import open_topic
from courser.jobs.tasks import run_in_tasks
from courser.lake.atomic_files import make_folders, sync_folder
from courser.records.message_keys import LATEST_BY
from courser.spark.addresses import check_local
from courser.spark.background_clients import connection_to, with_retries
from courser.spark.options import Use, parse_options, required, required_topic, target_of

_KEPT = ("id", "payload", "origin_timestamp", "headers")
_WRITTEN = ("key", *_KEPT)


class TargetInUse(ClientFailure):
    """The target is not empty, so it would not hold just the latest message of each key."""

    def __init__(self, target: str, holds: str) -> None:
        super().__init__(f"{target} {holds}; the target of a compaction must be empty or new")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What a compaction did."""

    read_count: int
    """Messages read from the source."""
    key_count: int
    """Messages written, one for each key."""
    deleted_count: int
    """Keys that were dropped because their latest message is empty."""
    keyless_count: int
    """Messages without a key, which were dropped."""
    target: str
    seconds: float


def compact(
    spark: SparkSession,
    source: Mapping[str, str],
    *,
    topic: Mapping[str, str] | None = None,
    folder: Path | None = None,
    empty_deletes: bool = False,
) -> CompactReport:
    """Write the latest message of each key.

    Args:
        spark: The session to use.
        source: Options of a read.
        topic: Options of a write: a topic that is empty, or that ``createTopic`` creates. Exactly once.
        folder: Instead of a topic, a folder for Parquet files. It must not exist, and appears when it is complete.
        empty_deletes: Whether an empty payload deletes its key.

    Raises:
        OptionRefused, ReadFailed, DataLost: as for a read.
        AddressGiven: ``folder`` is an address.
        TargetInUse: the target is not empty.
    """
    if (topic is None) == (folder is None):
        raise ValueError("name either a topic or a folder to write to")
    if folder is not None:
        check_local(folder, "the folder of a compaction")
    began = time.monotonic()
    # Fix the end of the read here, so that everything below reads up to the same offsets.
    fixed = _at_this_moment(source)
    target = _check_folder(folder) if folder is not None else _check_topic(topic or {})
    latest = _latest(spark, fixed, empty_deletes=empty_deletes).persist()
    try:
        counts = _counts(latest)
        rows = latest.where("is_written").select("latest.*")
        if folder is not None:
            _write_folder(spark, rows.select("key", *LATEST_BY, *_KEPT), folder.absolute())
        else:
            _write_topic(rows.select(*_WRITTEN), topic or {})
    finally:
        latest.unpersist()
    return CompactReport(**counts, target=target, seconds=time.monotonic() - began)


def _at_this_moment(source: Mapping[str, str]) -> dict[str, str]:
    """The options with a fixed end: messages that arrive later are not read."""
    topic = open_topic(source)
    offsets = {str(partition): end for partition, end in topic.ends.items()}
    without_end = {
        name: value for name, value in source.items() if name.lower() not in ("endingoffsets", "endingtimestamp")
    }
    return {**without_end, "endingOffsets": json.dumps({topic.options.topic: offsets}), "includeHeaders": "true"}


def _latest(spark: SparkSession, source: Mapping[str, str], *, empty_deletes: bool) -> DataFrame:
    """One row for each key, and one for all messages without a key: the latest message and the number of messages."""
    rows = spark.read.format("courser").options(**source).load()
    message = f.struct("key", *LATEST_BY, *_KEPT)
    latest = f.max_by(message, f.struct(*LATEST_BY)).alias("latest")
    grouped = rows.groupBy("key").agg(latest, f.count("*").alias("count"))
    is_deleted = f.expr("key IS NOT NULL AND length(latest.payload) = 0") if empty_deletes else f.lit(False)
    is_written = f.expr("key IS NOT NULL AND NOT is_deleted")
    return grouped.withColumn("is_deleted", is_deleted).withColumn("is_written", is_written)


def _counts(latest: DataFrame) -> dict[str, int]:
    row = latest.agg(
        f.coalesce(f.sum("count"), f.lit(0)).alias("read_count"),
        f.count_if("is_written").alias("key_count"),
        f.count_if("is_deleted").alias("deleted_count"),
        f.coalesce(f.sum(f.expr("CASE WHEN key IS NULL THEN count END")), f.lit(0)).alias("keyless_count"),
    ).first()
    assert row is not None, "an aggregate has one row"
    return {name: int(value) for name, value in row.asDict().items()}


# --- topics -------------------------------------------------------------------------------------------


def _check_topic(options: Mapping[str, str]) -> str:
    values = parse_options(options, Use.WRITE)
    stream, topic = required(values, "stream"), required_topic(values)
    client = connection_to(target_of(values))
    try:
        bounds = with_retries(lambda: client.get_partition_bounds(stream, topic), values["retries"])
    except NotFound:
        # The writer creates it, or reports that it does not exist.
        return f"{stream}/{topic}"
    count = sum(row.message_count for row in bounds.partitions)
    if count:
        raise TargetInUse(f"{stream}/{topic}", f"has {count} messages")
    return f"{stream}/{topic}"


def _write_topic(rows: DataFrame, options: Mapping[str, str]) -> None:
    options = {"jobId": f"compact {uuid4()}", **options, "partitioning": "key"}
    rows.write.format("courser").options(**options).mode("append").save()


# --- Parquet ------------------------------------------------------------------------------------------


def _check_folder(folder: Path) -> str:
    if folder.exists():
        raise TargetInUse(str(folder), "already exists")
    return str(folder)


def _write_folder(spark: SparkSession, rows: DataFrame, folder: Path) -> None:
    """Write the files aside, sync them, and rename the folder into place."""
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    make_folders(folder.parent)
    rows.write.parquet(str(beside))
    files = sorted(beside.glob("*.parquet"))
    run_in_tasks(spark, _sync, files, weight=lambda path: path.stat().st_size)
    sync_folder(beside)
    beside.rename(folder)
    sync_folder(folder.parent)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
