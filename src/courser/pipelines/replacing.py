"""Rows that are read a second time, after a reset, take the place of those that are in the lake already.

Files are named after the offsets in them, but not two generations of a checkpoint cut a partition at the same places.
So before a batch is published, whatever older files hold of its offsets goes: a file that lies within the batch is
removed, one that reaches beyond it is replaced, in one step, by one without those rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from courser.errors import ClientFailure
from courser.lake.atomic_files import AtomicFile, sync_folder
from courser.lake.file_names import range_of_name, value_of_folder
from courser.pipelines.staging import StagedFile

Hulls = Mapping[int, tuple[int, int]]
"""By partition: the first and the last offset of a batch."""


def hulls_of(staged: Sequence[StagedFile]) -> dict[int, tuple[int, int]]:
    """What a batch covers. Everything between its ends is of this batch, also what was left out as bad."""
    hulls: dict[int, tuple[int, int]] = {}
    for file in staged:
        if file.part is not None and file.first is not None and file.last is not None:
            first, last = hulls.get(file.part, (file.first, file.last))
            hulls[file.part] = (min(first, file.first), max(last, file.last))
    return hulls


def older_files(lake: Path, hulls: Hulls, partition_column: str) -> Iterator[tuple[Path, int, tuple[int, int]]]:
    """Files that hold offsets of the batch, with their partition and the offsets that they may hold."""
    for path in lake.rglob("*.parquet"):
        span, folder = range_of_name(path.name), value_of_folder(path.parent.name)
        if span is None or folder is None or folder[0] != partition_column or not (folder[1] or "").isdecimal():
            continue
        part = int(folder[1] or 0)
        if part in hulls and span[0] <= hulls[part][1] and hulls[part][0] <= span[1]:
            yield path, part, span


def is_within(span: tuple[int, int], hull: tuple[int, int]) -> bool:
    """Whether nothing of a file is outside the batch."""
    return hull[0] <= span[0] and span[1] <= hull[1]


def cut(path: Path, hull: tuple[int, int], offset_column: str) -> None:
    """Replace a file by one without the rows of the batch; without any rows it goes. Raises ``ClientFailure``."""
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    with pq.ParquetFile(path) as opened:
        if offset_column not in opened.schema_arrow.names:
            raise ClientFailure(
                f"{path} holds rows that are read again and others, and no column {offset_column} to tell them apart: "
                "empty the lake, or write to another one"
            )
        compression = opened.metadata.row_group(0).column(0).compression if opened.num_row_groups else "ZSTD"
        rows: Any = opened.read()
    offsets = rows[offset_column]
    kept = rows.filter(pc.or_(pc.less(offsets, hull[0]), pc.greater(offsets, hull[1])))
    if kept.num_rows == rows.num_rows:
        return
    if kept.num_rows == 0:
        path.unlink()
        # A power cut must not bring it back beside the rows that take its place.
        sync_folder(path.parent)
        return
    whole = AtomicFile(path)
    try:
        pq.write_table(kept, whole.partial, compression="none" if compression == "UNCOMPRESSED" else compression)
        whole.publish()
    except BaseException:
        whole.discard()
        raise
