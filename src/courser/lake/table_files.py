"""What tasks do: rows become Parquet files in the store of a table, where nobody sees them until they are committed.

A file is created, never overwritten, under a name that one attempt of one task has for itself. So a task that is
repeated, or that lives longer than its driver, harms nobody.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from courser.archive.errors import ArchiveFailure
from courser.archive.reader import open_store
from courser.archive.settings import StoreKind
from courser.archive.store import Store
from courser.lake.atomic_files import make_folders
from courser.lake.delta_files import DeltaFiles
from courser.lake.file_layout import FileLayout, fitted
from courser.lake.iceberg_files import IcebergFiles
from courser.lake.table_file_names import merged_name, rows_name
from courser.lake.table_place import local_path, store_settings
from courser.lake.tables import MergePlan, MessageRange, StoreAccess, TableDescription, WrittenFile
from courser.storage.local_files import LocalFileSystem

COMPRESSION_LEVEL = 1
"""Of zstd. Level 3 makes files 1 % larger or smaller, and takes a tenth more of the time."""
ROW_GROUP_ROWS = 1 << 20
"""Rows. Readers skip whole row groups, and hold one of them in memory."""
_SAMPLE_ROWS = 4096
"""Rows that decide whether a column gets a dictionary: one of values that do not repeat only costs time."""


def open_table_store(access: StoreAccess) -> Store:
    """Open the store of a table. Sends no request."""
    settings = store_settings(access)
    if settings.kind is StoreKind.DISK:
        make_folders(local_path(access.root))
    return open_store(settings, LocalFileSystem(), os.urandom(8))


def columns_of(description: TableDescription) -> Any:
    """The Arrow schema that rows are fitted to."""
    return file_layout(description).columns


def write_files(description: TableDescription, rows: Any, source: MessageRange, store: Store) -> list[WrittenFile]:
    """Write an Arrow table: one file for each combination of partition values.

    Raises:
        TableMismatch: the rows have columns or types that the table lacks.
        ArchiveFailure: the store refused, or did not answer.
    """
    names = (rows_name(description, source, number) for number in itertools.count())
    return write_rows(file_layout(description), rows, names, store)


def rewrite_files(plan: MergePlan, attempt: str, access: StoreAccess, store: Store) -> list[WrittenFile]:
    """Write the rows of the files of a plan into fewer files. ``attempt`` is used only once."""
    layout = file_layout(plan.description)
    rows = layout.read([*plan.sources], access)
    names = (merged_name(plan.description, plan.planned_at, attempt, number) for number in itertools.count())
    return write_rows(layout, rows, names, store) if rows.num_rows else []


def file_layout(description: TableDescription) -> FileLayout:
    return IcebergFiles(description) if description.format == "iceberg" else DeltaFiles(description)


def write_rows(layout: FileLayout, rows: Any, names: Iterator[str], store: Store) -> list[WrittenFile]:
    rows = fitted(rows, layout.columns, layout.table)
    written = []
    for values, part in split_rows(rows, layout.partition_values(rows)):
        data, metadata = parquet_bytes(part.select(layout.file_schema.names).cast(layout.file_schema))
        key = layout.key(values, next(names))
        create_file(store, key, data)
        written.append(layout.written(key, values, data.nbytes, metadata))
    return written


def split_rows(rows: Any, values: Sequence[Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The rows by the values of their partition, which are arrays as long as the rows."""
    if not values or not rows.num_rows:
        return iter([((), rows)] if rows.num_rows else [])
    names = [f"value_{number}" for number in range(len(values))]
    keys = pa.table([*values, pa.array(range(rows.num_rows), pa.int64())], names=[*names, "row"])
    groups = keys.group_by(names, use_threads=False).aggregate([("row", "list")])
    if groups.num_rows == 1:
        # The common case, since times increase: nothing is copied.
        return iter([(tuple(groups[name][0].as_py() for name in names), rows)])
    places = groups["row_list"].combine_chunks()
    return (
        (tuple(groups[name][number].as_py() for name in names), rows.take(places[number].values))
        for number in range(groups.num_rows)
    )


def parquet_bytes(rows: Any) -> tuple[memoryview, Any]:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=[field.name for field in rows.schema if _repeats(rows[field.name])],
        version="2.6",
    ) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
    buffer = sink.getvalue()
    # The library of the stores takes bytes only.
    return memoryview(buffer).cast("B"), pq.read_metadata(pa.BufferReader(buffer))


def _repeats(column: Any) -> bool:
    if pa.types.is_nested(column.type) or pa.types.is_boolean(column.type):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    return bool(pc.count_distinct(sample, mode="all").as_py() * 2 <= len(sample))


def create_file(store: Store, key: str, data: memoryview) -> None:
    try:
        if store.put_new(key, data):  # type: ignore[arg-type]
            return
        failure = ArchiveFailure("create", key, "another file has its name")
    except ArchiveFailure as error:
        failure = error
    # The answer was lost, or the request is repeated by something in between. Nobody else uses this name.
    found = store.find(key)
    if found is None or found.size != data.nbytes:
        raise failure
