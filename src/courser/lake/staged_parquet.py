"""The writer of lakes: tasks write files aside, and the driver moves them to where readers see them.

Only the process that holds the lock of a folder (``locks``, or that of a pipeline's checkpoint) moves files. A task
that outlives its driver therefore shows nothing: it leaves files that ``clear`` removes. A driver writes down what it
is about to do before it does it, so that a repetition after a crash moves the same files, or replaces those of the
first time: ``pipelines/lake_publishing`` a list for each batch, an export its ranges, a merge a note for each new file.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from courser.lake.atomic_files import make_folders, sync_folder

if TYPE_CHECKING:
    from courser.lake.parquet_files import ParquetOptions

_FILE_NAME = "rows.staged"
"""Readers that are told to read ``*.parquet`` do not see it, wherever it is."""


@dataclass(frozen=True, slots=True)
class StagedParquet:
    """A file that is complete and durable, but not visible."""

    place: str
    """Its path."""
    folder: str
    """The folder of the lake that it belongs to, such as ``day=2026-11-15``; empty: the lake itself."""
    task: int
    part: int | None
    """The topic's partition that all its rows come from, if files are named after offsets."""
    first: int | None
    last: int | None
    """The first and last offset of its rows."""
    rows: int
    size: int

    def name_in_lake(self, name: str) -> str:
        """The path below the lake of a file of this name."""
        return f"{self.folder}/{name}".lstrip("/")


class StagingFolder:
    """Writes the rows of a task aside, in a new folder below ``root``. Needs pyarrow. Not thread-safe."""

    def __init__(
        self, root: Path, schema: Any, *, folder_columns: Sequence[str] = (), options: "ParquetOptions | None" = None
    ) -> None:
        from courser.lake.parquet_files import ParquetFolder  # noqa: PLC0415 -- needs pyarrow

        self._root = root / uuid4().hex
        self._files = ParquetFolder(self._root, _FILE_NAME, schema, folder_columns=folder_columns, options=options)

    def add(self, batch: Any) -> None:
        """Add a record batch. Raises ``TooManyFolders``."""
        self._files.add(batch)

    def finish(
        self, *, task: int = 0, part: int | None = None, first: int | None = None, last: int | None = None
    ) -> list[StagedParquet]:
        """Complete the files, one for each folder that rows belong to."""
        staged = []
        for file in self._files.finish():
            folder = file.path.parent.relative_to(self._root)
            place = "" if folder == Path() else folder.as_posix()
            staged.append(StagedParquet(str(file.path), place, task, part, first, last, file.row_count, file.size))
        return staged

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.discard()


def move_into_place(lake: Path, moves: Mapping[str, Path]) -> None:
    """Give files their names below the lake, and thereby replace files of these names. Durable on return."""
    for name, place in sorted(moves.items()):
        make_folders((lake / name).parent)
        place.replace(lake / name)
    _sync_folders_of(lake, moves)


def remove_files(lake: Path, names: Iterable[str]) -> None:
    """Remove files of the lake; those that are gone are no error. Durable on return."""
    removed = []
    for name in sorted(names):
        with suppress(FileNotFoundError):
            (lake / name).unlink()
            removed.append(name)
    _sync_folders_of(lake, removed)


def _sync_folders_of(lake: Path, names: Iterable[str]) -> None:
    for folder in sorted({(lake / name).parent for name in names}):
        sync_folder(folder)


def clear(root: Path) -> None:
    """Remove what earlier runs have left aside. Only the holder of the lock may do so."""
    # A task that outlives its driver may still write there. What it leaves goes the next time.
    shutil.rmtree(root, ignore_errors=True)
