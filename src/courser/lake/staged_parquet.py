"""The writer of lakes: tasks write files aside (``parquet_files``), the driver moves them to where readers see them.

Only the process that holds the lock of a folder (``locks``, or that of a pipeline's checkpoint) moves files. A task
that outlives its driver therefore shows nothing: it leaves files that ``clear`` removes. A driver writes down what it
is about to do before it does it, so that a repetition after a crash moves the same files, or replaces those of the
first time: ``pipelines/lake_publishing`` a list for each batch, an export its ranges, a merge a note for each new file.
"""

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from courser.lake.atomic_files import make_folders, sync_folder


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
