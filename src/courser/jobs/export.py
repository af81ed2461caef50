"""Export: a topic into a lake of Parquet files, written by the tasks that read the messages.

``LAKE/stream=shop/topic=orders/day=2026-11-15/partition=3/<first offset>-<last offset>.parquet``. No message passes
through Spark's own rows: a task decodes stored batches to Arrow and writes them; only counts come back. A range of
offsets always goes to the same names, so a task or a job that runs again overwrites, and every reader is right.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from courser.jobs.export_files import FOLDERS, RangeWork, export_range
from courser.jobs.export_manifest import (
    BOOKS,
    Manifest,
    ManifestRefused,
    forget_marks,
    load_manifest,
    save_manifest,
)
from courser.jobs.source_topic import SourceTopic, open_topic
from courser.jobs.tasks import run_in_tasks
from courser.lake.locks import only_writer
from courser.lake.naming import folder_path
from courser.lake.whole_files import remove_partial_files
from courser.spark.sources import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export did."""

    folder: Path
    """Of the topic."""
    range_count: int
    resumed_count: int
    """Ranges that an earlier run had begun."""
    file_count: int
    row_count: int
    size: int
    """Bytes of the files."""
    ends: Mapping[int, int]
    """By partition, the offset that the next export begins with."""
    seconds: float


def export(
    spark: SparkSession,
    options: Mapping[str, str],
    lake: Path,
    *,
    by: str = "day",
    compression: str = "zstd",
    include_headers: bool = False,
    again: bool = False,
) -> ExportReport:
    """Write what no export has written yet, and finish what one has begun.

    Args:
        spark: Where the tasks run; all of them must see ``lake``.
        options: Of the data source: stream, topic, and where they are.
        lake: The folder for all topics.
        by: ``day``, ``hour`` or ``none``: folders by the time of the append.
        compression: Of the Parquet files.
        include_headers: Whether there is a column ``headers``.
        again: Write everything anew that was exported before and is still in the topic: to the same files.

    Raises:
        OptionRefused, ReadFailed, DataLost: as a read does.
        ManifestRefused: the folder holds another topic, or an export with other settings.
        FolderInUse: another export is at work there.
    """
    began = time.monotonic()
    topic = open_topic(options)
    folder = folder_path(lake.absolute(), ("stream", "topic"), (topic.options.stream, topic.options.topic))
    with only_writer(folder / BOOKS) as turn:
        remove_partial_files(folder)
        wanted = Manifest(topic_uuid=topic.facts.uuid, folders=_folders(by), include_headers=include_headers)
        known = _agreed(folder, load_manifest(folder), wanted)
        manifest = _planned(folder, known, topic, again=again)
        # Before the first file: after a crash these very ranges are written again.
        save_manifest(folder, manifest)
        forget_marks(folder)
        work = _work(folder, turn, manifest, topic, compression)
        written = run_in_tasks(spark, export_range, work, weight=lambda item: item.size)
        manifest = manifest.without_unfinished()
        save_manifest(folder, manifest)
        forget_marks(folder)
    return ExportReport(
        folder=folder,
        range_count=len(work),
        resumed_count=len(known.unfinished),
        file_count=sum(each.file_count for each in written),
        row_count=sum(each.row_count for each in written),
        size=sum(each.size for each in written),
        ends=manifest.ends(),
        seconds=time.monotonic() - began,
    )


def _folders(by: str) -> tuple[str, ...]:
    if by not in FOLDERS:
        raise ValueError(f"folders are made by {', '.join(FOLDERS)}, not by {by}")
    return FOLDERS[by]


def _agreed(folder: Path, known: Manifest | None, wanted: Manifest) -> Manifest:
    """What is known already, if it goes together with what is wanted now."""
    if known is None:
        return wanted
    elsewhere = "export to another folder"
    if known.topic_uuid != wanted.topic_uuid:
        raise ManifestRefused(folder, "it holds a topic that was deleted and created again since", elsewhere)
    if known.folders != wanted.folders:
        before, now = "/".join(known.folders), "/".join(wanted.folders)
        raise ManifestRefused(folder, f"its files lie in folders by {before}, not by {now}", elsewhere)
    if known.include_headers != wanted.include_headers:
        reason = f"its files have {'a' if known.include_headers else 'no'} column headers"
        raise ManifestRefused(folder, reason, elsewhere)
    return known


def _planned(folder: Path, manifest: Manifest, topic: SourceTopic, *, again: bool) -> Manifest:
    """What is known, with all that is to be written now as unfinished."""
    repeated = _repeated(folder, manifest, topic) if again else []
    manifest = manifest.with_ranges(topic.ranges(manifest.ends()))
    return replace(manifest, unfinished=manifest.unfinished | set(repeated))


def _work(folder: Path, turn: str, manifest: Manifest, topic: SourceTopic, compression: str) -> list[RangeWork]:
    return [
        RangeWork(
            part=part,
            ranges=topic.sources_of(part),
            options=topic.options,
            folder=folder,
            turn=turn,
            folders=manifest.folders,
            compression=compression,
            include_headers=manifest.include_headers,
            size=topic.size_of(part),
        )
        for part in sorted(manifest.unfinished, key=lambda part: (part.partition, part.start))
    ]


def _repeated(folder: Path, manifest: Manifest, topic: SourceTopic) -> list[Range]:
    if manifest.is_merged:
        reason = "its files were merged: written again, messages would be there twice"
        raise ManifestRefused(folder, reason, "export to another folder")
    bounds = topic.facts.partitions
    return [part for part in manifest.ranges if part.partition in bounds and part.start >= bounds[part.partition].first]
