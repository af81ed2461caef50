"""Export: writes a topic to a lake of Parquet files, in the tasks that read the messages.

``LAKE/stream=shop/topic=orders/day=2026-11-15/partition=3/<first offset>-<last offset>.parquet``. Messages never become
Spark rows: a task decodes stored batches to Arrow and writes them aside; the driver moves the files of a step into
place. A range of offsets always has the same file names, so a job that runs again overwrites its files, and readers
never see duplicates.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from courser.jobs.export_manifest import (
    BOOKS,
    STAGING,
    Manifest,
    ManifestRefused,
    load_manifest,
    save_manifest,
)
from courser.jobs.source_topic import SourceTopic, fetch_ranges, open_topic
from courser.jobs.tasks import run_in_tasks, steps_of
from courser.lake.atomic_files import remove_partial_files
from courser.lake.file_names import folder_path, range_file_name
from courser.lake.locks import only_writer
from courser.lake.parquet_files import ParquetOptions, StagingFolder
from courser.lake.staged_parquet import StagedParquet, clear, move_into_place
from courser.spark.addresses import check_local
from courser.spark.decoding import Decoder
from courser.spark.read_options import ReadOptions
from courser.spark.sources import OffsetRange

STEP_SIZE = 8 * 1024 * 1024 * 1024
"""Bytes of a step: so large that idle cores at its end do not matter."""
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "none": ("partition",),
    "day": ("day", "partition"),
    "hour": ("day", "hour", "partition"),
}
"""The levels of folders below a topic's folder, by append time in UTC."""

_TIME = pa.timestamp("us", tz="UTC")
_MESSAGE = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("origin_timestamp", _TIME, nullable=False),
        pa.field("id", pa.binary(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
_HEADERS = pa.field("headers", pa.map_(pa.string(), pa.binary()))
_MADE = {"day": pa.field("day", pa.date32()), "hour": pa.field("hour", pa.int64())}
"""Columns that exist only in folder names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export did."""

    folder: Path
    """The topic's folder."""
    range_count: int
    resumed_count: int
    """Ranges that an earlier run had started."""
    file_count: int
    row_count: int
    size: int
    """Bytes of the files."""
    ends: Mapping[int, int]
    """The offset that the next export starts with, by partition."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeWork:
    """The work of one task."""

    part: OffsetRange
    ranges: tuple[OffsetRange, ...]
    """The same, split by the sources that hold its messages."""
    options: ReadOptions
    folder: Path
    """The topic's folder."""
    folders: tuple[str, ...]
    compression: str
    include_headers: bool
    size: int
    """Approximate bytes."""


def export(
    spark: SparkSession,
    options: Mapping[str, str],
    lake: Path,
    *,
    by: str = "day",
    compression: str = "zstd",
    include_headers: bool = False,
    again: bool = False,
    step_size: int = STEP_SIZE,
) -> ExportReport:
    """Write what no export has written yet, and finish what an earlier one started.

    Args:
        spark: The session to use; all its workers must see ``lake``.
        options: Of the data source: stream, topic, and where they are.
        lake: The folder for all topics.
        by: ``day``, ``hour`` or ``none``: folders by append time.
        compression: Of the Parquet files.
        include_headers: Whether to write a column ``headers``.
        again: Rewrite everything that was exported before and is still in the topic, to the same files.
        step_size: Approximate bytes of messages whose files become visible together. A run that continues after a
            crash repeats at most that much.

    Raises:
        AddressGiven: ``lake`` is an address.
        OptionRefused, ReadFailed, DataLost: as for a read.
        ManifestRefused: the folder holds another topic, or an export with other settings.
        FolderInUse: another export is writing there.
    """
    check_local(lake, "the folder of an export")
    began = time.monotonic()
    topic = open_topic(options)
    folder = folder_path(lake.absolute(), ("stream", "topic"), (topic.options.stream, topic.options.topic))
    with only_writer(folder / BOOKS):
        clear(folder / STAGING)
        remove_partial_files(folder)
        wanted = Manifest(topic_uuid=topic.facts.uuid, folders=_folders(by), include_headers=include_headers)
        known = _agreed(folder, load_manifest(folder), wanted)
        manifest = _planned(folder, known, topic, again=again)
        # Before the first file is visible: after a crash, the next run writes exactly these ranges again.
        save_manifest(folder, manifest)
        work = _work(folder, manifest, topic, compression)
        written: list[StagedParquet] = []
        for step in steps_of(work, step_size, weight=lambda item: item.size):
            staged = [
                file
                for files in run_in_tasks(spark, stage_range, step, weight=lambda item: item.size)
                for file in files
            ]
            move_into_place(folder, {file.name_in_lake(_name_of(file)): Path(file.place) for file in staged})
            manifest = manifest.with_finished(item.part for item in step)
            save_manifest(folder, manifest)
            written += staged
        clear(folder / STAGING)
    return ExportReport(
        folder=folder,
        range_count=len(work),
        resumed_count=len(known.unfinished),
        file_count=len(written),
        row_count=sum(file.rows for file in written),
        size=sum(file.size for file in written),
        ends=manifest.ends(),
        seconds=time.monotonic() - began,
    )


def _name_of(file: StagedParquet) -> str:
    assert file.first is not None
    assert file.last is not None
    return range_file_name(file.first, file.last)


def _folders(by: str) -> tuple[str, ...]:
    if by not in FOLDERS:
        raise ValueError(f"folders can be by {', '.join(FOLDERS)}, not by {by}")
    return FOLDERS[by]


def _agreed(folder: Path, known: Manifest | None, wanted: Manifest) -> Manifest:
    """The manifest of earlier exports, if it is compatible with the wanted one."""
    if known is None:
        return wanted
    if known.topic_uuid != wanted.topic_uuid:
        raise ManifestRefused(folder, "it contains a topic that was deleted and recreated since")
    if known.folders != wanted.folders:
        before, now = "/".join(known.folders), "/".join(wanted.folders)
        raise ManifestRefused(folder, f"its files are in folders by {before}, not by {now}")
    if known.include_headers != wanted.include_headers:
        reason = f"its files have {'a' if known.include_headers else 'no'} column headers"
        raise ManifestRefused(folder, reason)
    return known


def _planned(folder: Path, manifest: Manifest, topic: SourceTopic, *, again: bool) -> Manifest:
    """The manifest, with everything that is about to be written marked as unfinished."""
    repeated = _repeated(folder, manifest, topic) if again else []
    manifest = manifest.with_ranges(topic.ranges(manifest.ends()))
    return replace(manifest, unfinished=manifest.unfinished | set(repeated))


def _work(folder: Path, manifest: Manifest, topic: SourceTopic, compression: str) -> list[RangeWork]:
    return [
        RangeWork(
            part=part,
            ranges=topic.sources_of(part),
            options=topic.options,
            folder=folder,
            folders=manifest.folders,
            compression=compression,
            include_headers=manifest.include_headers,
            size=topic.size_of(part),
        )
        for part in sorted(manifest.unfinished, key=lambda part: (part.partition, part.start))
    ]


def _repeated(folder: Path, manifest: Manifest, topic: SourceTopic) -> list[OffsetRange]:
    if manifest.is_merged:
        reason = "its files were merged, so writing them again would duplicate messages"
        raise ManifestRefused(folder, reason)
    bounds = topic.facts.partitions
    return [part for part in manifest.ranges if part.partition in bounds and part.start >= bounds[part.partition].first]


# --- in a task ----------------------------------------------------------------------------------------


def stage_range(work: RangeWork) -> list[StagedParquet]:
    """Write the files of a range aside."""
    part, options = work.part, work.options
    schema = _MESSAGE.append(_HEADERS) if work.include_headers else _MESSAGE
    made = [name for name in work.folders if name in _MADE]
    decoder = Decoder(schema, stream=options.stream, topic=options.topic, size_max=options.batch_size)
    metadata = {
        "courser.topic": options.name,
        "courser.partition": str(part.partition),
        "courser.offsets": f"{part.start}-{part.end - 1}",
    }
    with StagingFolder(
        work.folder / STAGING,
        pa.schema([*schema, *(_MADE[name] for name in made)]),
        folder_columns=work.folders,
        options=ParquetOptions(compression=work.compression, metadata=metadata),
    ) as folder:
        for wanted, fetched in fetch_ranges(work.ranges, options):
            for batch in decoder.decode(fetched.records, wanted.start, wanted.end):
                folder.add(_with_times(batch, made))
        return folder.finish(part=part.partition, first=part.start, last=part.end - 1)


def _with_times(batch: Any, made: list[str]) -> Any:
    """The batch with the columns that select its folders."""
    for name in made:
        times = batch.column("timestamp")
        values = times.cast(pa.date32()) if name == "day" else pc.hour(times)
        batch = batch.append_column(_MADE[name], values)
    return batch
