"""Parquet below folders: whole files, the same again when the same rows come again, read by duckdb and polars."""

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from courser.lake.atomic_files import write_atomically
from courser.lake.file_names import range_file_name
from courser.lake.parquet_files import (
    OPEN_FILES_MAX,
    ParquetOptions,
    StagingFolder,
    TooManyFolders,
)
from tests.lake.rows import SCHEMA, ask_duckdb, batch_of, offsets_by_duckdb, offsets_by_polars, write_parquet

NAME = range_file_name(0, 119)


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def write(root: Path, *batches: Any, name: str = NAME, **options: Any) -> list[Any]:
    return write_parquet(root, name, batches, SCHEMA, folder_columns=["day"], **options)


def test_rows_go_to_the_folder_of_their_value_and_come_back_whole(tmp_path: Path) -> None:
    written = write(tmp_path, batch_of(0, 100), batch_of(100, 20))
    assert files_below(tmp_path) == {f"day=2026-11-14/{NAME}", f"day=2026-11-15/{NAME}"}
    assert [pq.read_metadata(path).num_rows for path in written] == [60, 60]
    assert offsets_by_duckdb(tmp_path) == offsets_by_polars(tmp_path) == list(range(120))
    days = ask_duckdb(tmp_path, "select day, count(*) from lake group by 1 order by 1")
    assert days == [(date(2026, 11, 14), 60), (date(2026, 11, 15), 60)]


def test_every_column_survives(tmp_path: Path) -> None:
    write_parquet(tmp_path, NAME, [batch_of(0, 120)], SCHEMA)
    expected = polars.DataFrame(pa.Table.from_batches([batch_of(0, 120)]))
    assert polars.read_parquet(tmp_path / NAME).equals(expected)
    assert ask_duckdb(tmp_path, "select count(key), min(payload) from lake") == [(60, b"payload 0")]


def test_a_replay_overwrites(tmp_path: Path) -> None:
    write(tmp_path, batch_of(0, 120))
    before = files_below(tmp_path)
    # The same rows in other pieces, as a retried task may bring them.
    write(tmp_path, batch_of(0, 7), batch_of(7, 100), batch_of(107, 13))
    assert files_below(tmp_path) == before
    assert offsets_by_duckdb(tmp_path) == offsets_by_polars(tmp_path) == list(range(120))


def test_nothing_is_seen_of_rows_whose_source_fails(tmp_path: Path) -> None:
    def failing() -> Iterator[Any]:
        yield batch_of(0, 100)
        raise ConnectionError("the server went away")

    with pytest.raises(ConnectionError):
        write_parquet(tmp_path, NAME, failing(), SCHEMA, folder_columns=["day"])
    assert files_below(tmp_path) == set()


def test_no_rows_no_file(tmp_path: Path) -> None:
    assert write(tmp_path, batch_of(0, 0)) == []
    assert files_below(tmp_path) == set()


def test_half_written_files_hide_from_readers(tmp_path: Path) -> None:
    write(tmp_path, batch_of(0, 120))
    folder = StagingFolder(tmp_path / "staging", SCHEMA, folder_columns=["day"])
    # As a kill leaves it: never finished, never closed.
    folder.add(batch_of(120, 60))
    assert offsets_by_duckdb(tmp_path) == offsets_by_polars(tmp_path) == list(range(120))


def test_small_batches_share_a_row_group(tmp_path: Path) -> None:
    batches = [batch_of(first, 10) for first in range(0, 120, 10)]
    whole = sum(batch.nbytes for batch in batches)
    write_parquet(tmp_path, NAME, batches, SCHEMA, options=ParquetOptions(row_group_size=whole // 3))
    assert 3 <= pq.ParquetFile(tmp_path / NAME).num_row_groups <= 4


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "none"])
def test_every_compression_is_read_by_others(tmp_path: Path, compression: str) -> None:
    write(tmp_path, batch_of(0, 120), options=ParquetOptions(compression=compression))
    assert offsets_by_duckdb(tmp_path) == offsets_by_polars(tmp_path) == list(range(120))


def test_rows_in_the_order_of_their_folders_have_any_number_of_them(tmp_path: Path) -> None:
    count = 3 * OPEN_FILES_MAX
    written = write(tmp_path, batch_of(0, 5), batch_of(5, count, step=timedelta(days=1)))
    assert len(written) == len(files_below(tmp_path)) >= count
    assert offsets_by_duckdb(tmp_path) == offsets_by_polars(tmp_path) == list(range(count + 5))


def test_too_many_folders_back_and_forth_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    many = batch_of(0, OPEN_FILES_MAX + 1, step=timedelta(days=1))
    with pytest.raises(TooManyFolders, match=f"more than {OPEN_FILES_MAX} folders"):
        write(tmp_path, many, many)
    assert files_below(tmp_path) == set()


def test_a_folder_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column hour; their columns are offset, timestamp"):
        StagingFolder(tmp_path, SCHEMA, folder_columns=["hour"])


def test_missing_values_have_a_folder_of_their_own(tmp_path: Path) -> None:
    write_parquet(tmp_path, NAME, [batch_of(0, 4)], SCHEMA, folder_columns=["key"])
    assert {name.partition("/")[0] for name in files_below(tmp_path)} == {"key=6b", "key=__HIVE_DEFAULT_PARTITION__"}
    assert offsets_by_duckdb(tmp_path) == [0, 1, 2, 3]


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "manifest.json", b"one")
    write_atomically(tmp_path / "new" / "manifest.json", b"two")
    assert files_below(tmp_path) == {"new/manifest.json"}
    assert (tmp_path / "new" / "manifest.json").read_bytes() == b"two"
