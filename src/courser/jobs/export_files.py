"""The task of an export: reads a range, decodes it, and writes its files aside."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]

from courser.jobs.export_manifest import STAGING
from courser.jobs.source_topic import fetch_ranges
from courser.lake.parquet_files import ParquetOptions
from courser.lake.staged_parquet import StagedParquet, StagingFolder
from courser.spark.decoding import Decoder
from courser.spark.read_options import ReadOptions
from courser.spark.sources import OffsetRange

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
