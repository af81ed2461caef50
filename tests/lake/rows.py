"""Rows for the tests of the lake, and readers that are not Spark."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa  # type: ignore[import-untyped]

from courser.lake.parquet_files import StagingFolder
from courser.lake.staged_parquet import clear, move_into_place

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
    ]
)
BEGIN = datetime(2026, 11, 14, 23, 0, tzinfo=UTC)


def batch_of(first: int, count: int, *, step: timedelta = timedelta(minutes=1)) -> Any:
    times = [BEGIN + number * step for number in range(first, first + count)]
    return pa.record_batch(
        [
            pa.array(range(first, first + count), pa.int64()),
            pa.array(times, pa.timestamp("us", tz="UTC")),
            pa.array([time.date() for time in times], pa.date32()),
            pa.array([b"k" if number % 2 else None for number in range(first, first + count)], pa.binary()),
            pa.array([b"payload %d" % number for number in range(first, first + count)], pa.binary()),
        ],
        schema=SCHEMA,
    )


def write_parquet(
    root: Path, file_name: str, batches: Iterable[Any], schema: Any, *, folder_columns: Sequence[str] = (), **more: Any
) -> list[Path]:
    """Write all batches as files of this name below ``root``. Without rows, nothing is written."""
    with StagingFolder(root / "staging", schema, folder_columns=folder_columns, **more) as folder:
        for batch in batches:
            if batch.num_rows:
                folder.add(batch)
        staged = folder.finish()
    moves = {file.name_in_lake(file_name): Path(file.place) for file in staged}
    move_into_place(root, moves)
    clear(root / "staging")
    return [root / name for name in moves]


def ask_duckdb(root: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of a query about ``lake``: all Parquet files below a folder, with the columns of its folders."""
    lake = f"read_parquet('{root}/**/*.parquet', hive_partitioning=true)"
    return duckdb.connect().execute(f"with lake as (from {lake}) {query}").fetchall()


def offsets_by_duckdb(root: Path) -> list[int]:
    return [row[0] for row in ask_duckdb(root, 'select "offset" from lake order by 1')]


def offsets_by_polars(root: Path) -> list[int]:
    frame = polars.read_parquet(root / "**" / "*.parquet", hive_partitioning=True)
    return sorted(frame["offset"].to_list())
