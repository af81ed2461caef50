"""From staged files to a folder of Parquet files that every reader sees each row of once.

The order is what makes it so: first a list of what the batch will publish is durable, then files of an earlier attempt
at the same batch that are not in the list are taken away, then the new ones are renamed into place. Whoever is killed
in between begins the same batch again, and finds the list.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from courser.lake.atomic_files import make_folders, sync_folder, write_atomically
from courser.lake.file_names import range_file_name
from courser.pipelines.replacing import cut, hulls_of, is_within, older_files
from courser.pipelines.staging import StagedFile


@dataclass(frozen=True, slots=True)
class Published:
    """What a batch has brought."""

    files: int
    rows: int
    size: int


def staging_root(lake: Path, name: str) -> Path:
    """Where tasks write: beside the lake, so that a rename is enough and no reader of the lake finds it."""
    return lake.parent / f".{lake.name}.staging" / name


def clear(root: Path) -> None:
    """Take away what an earlier attempt left. Only the runner that holds the lock may do so."""
    with suppress(FileNotFoundError):
        shutil.rmtree(root)


def file_name(file: StagedFile, query_id: str, batch: int) -> str:
    """After the offsets where there are some, else after the query and the batch."""
    if file.first is not None and file.last is not None:
        return range_file_name(file.first, file.last)
    return f"{query_id}-{batch:020d}-{file.task:05d}.parquet"


def publish(
    lake: Path,
    staged: Sequence[StagedFile],
    query_id: str,
    batch: int,
    lists: Path,
    *,
    replaces: tuple[str, str] | None = None,
) -> Published:
    """Make the files of a batch visible, and those of any earlier attempt at it invisible.

    Args:
        lake: The folder that readers read.
        staged: What the tasks reported.
        query_id: Spark's, which lives as long as the checkpoint.
        batch: Its number.
        lists: A folder of the checkpoint.
        replaces: The columns of partition and offset, if an earlier generation may have written the same messages.
    """
    moves = {f"{file.folder}/{file_name(file, query_id, batch)}".lstrip("/"): Path(file.place) for file in staged}
    if len(moves) != len(staged):
        raise AssertionError(f"two of {len(staged)} files of batch {batch} have one name")
    path = lists / f"{batch}.json"
    earlier = _names(path)
    cuts: list[tuple[Path, tuple[int, int]]] = []
    if replaces is not None:
        hulls = hulls_of(staged)
        for old, part, span in older_files(lake, hulls, replaces[0]):
            name = old.relative_to(lake).as_posix()
            if name in moves:
                continue
            if is_within(span, hulls[part]):
                earlier.add(name)
            else:
                cuts.append((old, hulls[part]))
    write_atomically(path, json.dumps(sorted({*moves, *earlier})).encode())
    for name in sorted(earlier - moves.keys()):
        _remove(lake / name)
    for old, hull in cuts:
        cut(old, hull, replaces[1] if replaces is not None else "")
    for name, place in sorted(moves.items()):
        make_folders((lake / name).parent)
        place.replace(lake / name)
        sync_folder((lake / name).parent)
    write_atomically(path, json.dumps(sorted(moves)).encode())
    _forget_older(lists, batch)
    return Published(len(staged), sum(file.rows for file in staged), sum(file.size for file in staged))


def _names(path: Path) -> set[str]:
    try:
        return set(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return set()


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def _forget_older(lists: Path, batch: int) -> None:
    """Spark repeats the last batch only."""
    for entry in lists.iterdir():
        number = entry.name.removesuffix(".json")
        if number.isdecimal() and int(number) < batch - 1:
            entry.unlink(missing_ok=True)
