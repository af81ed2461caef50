"""A batch becomes visible once, whatever happens in between. duckdb is the reader, as somebody else's would be."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from courser.errors import ClientFailure
from courser.jobs import folders
from courser.jobs.folders import Folder, LocalFolder
from courser.lake import staged_parquet
from courser.lake.file_names import range_file_name
from courser.lake.staged_parquet import StagedParquet, clear
from courser.pipelines import lake_publishing
from courser.pipelines.lake_publishing import publish, staging_root
from courser.pipelines.staged_rows import StageRows

QUERY = "3b5d"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lists(tmp_path: Path) -> Folder:
    return LocalFolder(tmp_path / "published")


def stage(lake: Path, *pieces: range, partition: int = 3) -> list[StagedParquet]:
    """Each piece is what one task reads."""
    staged: list[StagedParquet] = []
    for offsets in pieces:
        order = StageRows(
            root=str(staging_root(lake, "p") / "0"),
            folder_columns=("day", "_partition"),
            partition_column="_partition",
            offset_column="_offset",
        )
        count = len(offsets)
        columns = {
            "_partition": pa.array([partition] * count, pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "day": ["d1" if offset % 2 else "d2" for offset in offsets],
        }
        for report in order(iter([pa.RecordBatch.from_pydict(columns)])):
            staged += [StagedParquet(**row) for row in report.to_pylist()]
    return staged


def seen(lake: Path) -> Counter[tuple[int, int]]:
    """How often a reader of the lake sees each message."""
    rows = duckdb.sql(f"SELECT _partition, _offset FROM read_parquet('{lake}/**/*.parquet')")
    assert rows is not None
    return Counter(rows.fetchall())


def once(*offsets: range, partition: int = 3) -> Counter[tuple[int, int]]:
    return Counter((partition, offset) for piece in offsets for offset in piece)


def test_files_are_named_after_partition_and_offsets(lake: Path, lists: Folder) -> None:
    done = publish(lake, stage(lake, range(100), range(100, 150)), QUERY, 0, lists)
    assert (done.files, done.rows) == (4, 150)
    names = sorted(path.relative_to(lake).as_posix() for path in lake.rglob("*.parquet"))
    assert names[0] == "day=d1/_partition=3/00000000000000000001-00000000000000000099.parquet".replace("01-", "00-")
    assert seen(lake) == once(range(150))


def test_a_repeated_batch_changes_nothing(lake: Path, lists: Folder) -> None:
    for _ in range(2):
        publish(lake, stage(lake, range(100), range(100, 150)), QUERY, 0, lists)
    assert seen(lake) == once(range(150))


def test_a_batch_that_is_split_otherwise_when_it_is_repeated(lake: Path, lists: Folder) -> None:
    publish(lake, stage(lake, range(50)), QUERY, 0, lists)
    publish(lake, stage(lake, range(50, 100), range(100, 150)), QUERY, 1, lists)
    publish(lake, stage(lake, range(50, 120), range(120, 150)), QUERY, 1, lists)
    assert seen(lake) == once(range(150))


def test_rows_without_offsets_are_named_after_query_and_batch(lake: Path, lists: Folder) -> None:
    for _ in range(2):
        order = StageRows(root=str(staging_root(lake, "p")))
        report = next(order(iter([pa.RecordBatch.from_pydict({"_partition": [3], "_offset": [0]})])))
        publish(lake, [StagedParquet(**row) for row in report.to_pylist()], QUERY, 7, lists)
    assert [path.name for path in lake.iterdir()] == [f"{QUERY}-00000000000000000007-00000.parquet"]
    assert seen(lake) == once(range(1))


class Killed(BaseException):
    """Stands in for the end of the process."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let the n-th change to the lake or the list be the last; counts them."""
    counter = 0

    def counting(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal counter
            counter += 1
            if counter == step:
                raise Killed
            return function(*arguments)

        return call

    for module, names in (
        (folders, ("write_atomically",)),
        (lake_publishing, ("remove_files", "_forget_older")),
        (staged_parquet, ("make_folders", "sync_folder")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, counting(getattr(module, name)))
    yield counter


def test_a_kill_at_any_step_leaves_what_the_repetition_puts_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is split in another way the second time: the harder case."""
    kills = 0
    for step in range(1, 26):
        lake, lists = tmp_path / str(step) / "lake", LocalFolder(tmp_path / str(step) / "published")
        publish(lake, stage(lake, range(10)), QUERY, 0, lists)
        publish(lake, stage(lake, range(10, 20), range(20, 30)), QUERY, 1, lists)
        with monkeypatch.context() as patch:
            for _ in killed_at(step, patch):
                try:
                    publish(lake, stage(lake, range(10, 24), range(24, 30)), QUERY, 1, lists)
                except Killed:
                    kills += 1
        assert max(seen(lake).values()) == 1, "a reader saw a row twice"
        publish(lake, stage(lake, range(10, 17), range(17, 30)), QUERY, 1, lists)
        assert seen(lake) == once(range(30))
    assert 10 < kills < 25, "every step was the last one once, and the last rounds were not killed"


def test_what_failed_tasks_leave_is_never_seen(lake: Path, lists: Folder) -> None:
    stage(lake, range(1000))
    publish(lake, stage(lake, range(10)), QUERY, 0, lists)
    assert seen(lake) == once(range(10))
    clear(staging_root(lake, "p"))
    assert not list(lake.parent.rglob("rows.staged"))


def test_only_the_lists_of_the_last_two_batches_are_kept(lake: Path, lists: Folder) -> None:
    for batch in range(4):
        publish(lake, stage(lake, range(batch * 10, batch * 10 + 10)), QUERY, batch, lists)
    assert sorted(lists.names()) == ["2.json", "3.json"]
    assert len(json.loads(lists.read("3.json") or b"")) == 2


# --- after a reset ---

AGAIN = ("_partition", "_offset")


@pytest.mark.parametrize("start", [0, 5, 25])
def test_what_is_read_again_after_a_reset_takes_the_place_of_what_is_there(
    lake: Path, tmp_path: Path, start: int
) -> None:
    """The generations cut the partition at other places; another partition stays as it is."""
    for batch in range(3):
        publish(lake, stage(lake, range(batch * 20, batch * 20 + 20)), QUERY, batch, LocalFolder(tmp_path / "first"))
    publish(lake, stage(lake, range(60), partition=4), QUERY, 3, LocalFolder(tmp_path / "first"))
    for batch, low in enumerate(range(start, 60, 15)):
        pieces = stage(lake, range(low, min(low + 15, 60)))
        publish(lake, pieces, "other", batch, LocalFolder(tmp_path / "second"), replaces=AGAIN)
        assert max(seen(lake).values()) == 1, "a reader saw a row twice"
        assert seen(lake) == once(range(60)) + once(range(60), partition=4), "nothing is missing at any time"


def test_a_lake_without_offsets_inside_cannot_be_cut(lake: Path, tmp_path: Path) -> None:
    publish(lake, stage(lake, range(20)), QUERY, 0, LocalFolder(tmp_path / "first"))
    pieces = stage(lake, range(10))
    with pytest.raises(ClientFailure, match="no column elsewhere to tell them apart"):
        publish(lake, pieces, "other", 0, LocalFolder(tmp_path / "second"), replaces=("_partition", "elsewhere"))
    assert seen(lake) == once(range(20))


def test_a_file_that_is_cut_to_nothing_does_not_come_back_after_a_power_cut(
    lake: Path, lists: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(lake, stage(lake, range(4, 6)), QUERY, 0, lists)
    (old, *_) = lake.rglob("*.parquet")
    # Its name says more than it holds, as after an earlier cut.
    wide = old.rename(old.with_name(range_file_name(0, 9)))
    synced: list[Path] = []
    monkeypatch.setattr(lake_publishing, "sync_folder", synced.append)
    lake_publishing.cut(wide, (4, 5), "_offset")
    assert not wide.exists()
    assert synced == [wide.parent]
