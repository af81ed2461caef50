"""Files that are written aside: invisible until they are moved, then whole, and durable."""

from contextlib import suppress
from pathlib import Path

import pytest

from courser.lake import staged_parquet
from courser.lake.file_names import range_file_name
from courser.lake.parquet_files import StagingFolder
from courser.lake.staged_parquet import StagedParquet, clear, move_into_place, remove_files
from tests.lake.rows import SCHEMA, batch_of, offsets_by_duckdb, write_parquet


def stage(lake: Path, first: int, count: int) -> list[StagedParquet]:
    with StagingFolder(lake / "staging", SCHEMA, folder_columns=["day"]) as folder:
        folder.add(batch_of(first, count))
        return folder.finish(part=0, first=first, last=first + count - 1)


def moves_of(staged: list[StagedParquet]) -> dict[str, Path]:
    return {file.name_in_lake(range_file_name(file.first or 0, file.last or 0)): Path(file.place) for file in staged}


def test_readers_of_parquet_files_see_only_what_was_moved(tmp_path: Path) -> None:
    write_parquet(tmp_path, range_file_name(0, 9), [batch_of(0, 10)], SCHEMA, folder_columns=["day"])
    staged = stage(tmp_path, 10, 110)
    assert [(file.folder, file.rows) for file in staged] == [("day=2026-11-14", 50), ("day=2026-11-15", 60)]
    assert all(file.size == Path(file.place).stat().st_size for file in staged)
    assert offsets_by_duckdb(tmp_path) == list(range(10))
    move_into_place(tmp_path, moves_of(staged))
    assert offsets_by_duckdb(tmp_path) == list(range(120))
    # Of another attempt, which wrote the same rows.
    move_into_place(tmp_path, moves_of(stage(tmp_path, 10, 110)))
    assert offsets_by_duckdb(tmp_path) == list(range(120))
    stage(tmp_path, 120, 10)
    clear(tmp_path / "staging")
    clear(tmp_path / "staging")
    assert offsets_by_duckdb(tmp_path) == list(range(120))


def test_what_fails_leaves_nothing_to_move(tmp_path: Path) -> None:
    with suppress(ConnectionError), StagingFolder(tmp_path, SCHEMA) as folder:
        folder.add(batch_of(0, 10))
        raise ConnectionError
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_each_folder_is_synced_once_behind_all_its_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []

    def sync(folder: Path) -> None:
        synced.append((folder.name, len(list(folder.glob("*.parquet")))))

    moves = moves_of([*stage(tmp_path, 0, 120), *stage(tmp_path, 120, 10)])
    monkeypatch.setattr(staged_parquet, "sync_folder", sync)
    move_into_place(tmp_path, moves)
    assert synced == [("day=2026-11-14", 1), ("day=2026-11-15", 2)]
    synced.clear()
    remove_files(tmp_path, [*moves, "day=2026-11-16/gone.parquet"])
    assert synced == [("day=2026-11-14", 0), ("day=2026-11-15", 0)]
