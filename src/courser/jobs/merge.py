"""Merge: combines the many small Parquet files of a folder into fewer, larger ones.

A plain folder has no transactions, so correctness depends on the order of the steps. Tasks write the new files aside.
For each of them, the driver writes and syncs a note of the files it replaces, renames it into place, removes the old
files, and removes the note. After a crash that leaves a note, the next merge completes it first. Between the rename and
the removal of the last old file, some milliseconds, a reader that lists the folder may see rows twice. It never misses
any.

Only files that are named after offsets are merged, and never files that a writer may write again. In an export, these
are unfinished ranges. In other lakes, these are files less than an hour older than the newest one, because a pipeline
repeats its last batch after a crash.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no stubs
from pyspark.sql import SparkSession

from courser.jobs.export_manifest import BOOKS, STAGING, Manifest, load_manifest, save_manifest
from courser.jobs.tasks import run_in_tasks, steps_of
from courser.lake.atomic_files import sync_folder, write_atomically
from courser.lake.file_names import PARTIAL_SUFFIX, range_file_name, range_of_name, value_of_folder
from courser.lake.locks import only_writer
from courser.lake.parquet_files import ParquetOptions, StagingFolder
from courser.lake.staged_parquet import StagedParquet, clear, move_into_place, remove_files
from courser.spark.addresses import check_local

SMALL_SIZE = 64 * 1024 * 1024
"""Bytes below which a file is worth merging."""
TARGET_SIZE = 256 * 1024 * 1024
"""Approximate bytes of a merged file: large enough for fast scans, small enough for one task."""
UNSETTLED_SECONDS = 3600.0
"""How much older than the newest file a file of a pipeline must be: longer than any batch takes."""
_NOTES = "merging"
"""The folder for notes, in the bookkeeping folder."""
_ASIDE_SUFFIX = ".merged"
"""Of new files that an earlier version wrote next to the old ones."""
_STEP_SIZE = 8 * 1024 * 1024 * 1024
"""Bytes of files that are merged before their new files are put into place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What a merge did."""

    folder_count: int
    """Folders in which files were merged."""
    merged_count: int
    """Files that were replaced."""
    file_count: int
    """Files that replace them."""
    row_count: int
    size_before: int
    size_after: int
    finished_count: int
    """Merges of an earlier run that were completed."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    first: int
    last: int
    size: int
    written_at: float


@dataclass(frozen=True, slots=True)
class _Work:
    """Files of one folder that are merged into one."""

    root: Path
    files: tuple[_File, ...]
    compression: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        return _name_of(self.files)


def merge(
    spark: SparkSession,
    lake: Path,
    *,
    small_size: int = SMALL_SIZE,
    target_size: int = TARGET_SIZE,
    compression: str = "zstd",
) -> MergeReport:
    """Merge the small files of every folder below ``lake``: a whole lake, or the folder of a topic.

    A lock prevents exports to the same topics from running meanwhile. Pipelines may run.

    Raises:
        AddressGiven: ``lake`` is an address.
        FileNotFoundError: the folder does not exist.
        FolderInUse: an export or another merge is running.
    """
    check_local(lake, "the folder to merge in")
    began = time.monotonic()
    lake = lake.absolute()
    if not lake.is_dir():
        raise FileNotFoundError(f"folder {lake} does not exist")
    reports = [_merge_root(spark, root, small_size, target_size, compression) for root in _roots(lake)]
    totals = {entry.name: sum(getattr(report, entry.name) for report in reports) for entry in fields(MergeReport)}
    return MergeReport(**totals | {"seconds": time.monotonic() - began})


def _roots(lake: Path) -> list[Path]:
    """The folders with bookkeeping of their own: those of exported topics, and the lake itself for everything else."""
    exported = sorted(path.parent for path in lake.rglob(BOOKS) if path.is_dir() and path.parent != lake)
    return [*exported, lake]


def _merge_root(spark: SparkSession, root: Path, small_size: int, target_size: int, compression: str) -> MergeReport:
    began = time.monotonic()
    with only_writer(root / BOOKS):
        finished_count = _finish_old(root)
        manifest = load_manifest(root)
        runs = list(_plan(root, manifest, small_size, target_size))
        work = [_Work(root, run, compression) for run in runs]
        if work and manifest is not None:
            # Before the first merge: from now on, finished ranges must not be written again.
            save_manifest(root, replace(manifest, is_merged=True))
        merged: list[StagedParquet] = []
        for step in steps_of(work, _STEP_SIZE, weight=lambda item: item.size):
            staged = run_in_tasks(spark, _stage_merged, step, weight=lambda item: item.size)
            for item, file in zip(step, staged, strict=True):
                _replace_files(item, file)
            merged += staged
        clear(root / STAGING)
    return MergeReport(
        folder_count=len({item.files[0].path.parent for item in work}),
        merged_count=sum(len(item.files) for item in work),
        file_count=len(work),
        row_count=sum(file.rows for file in merged),
        size_before=sum(item.size for item in work),
        size_after=sum(file.size for file in merged),
        finished_count=finished_count,
        seconds=time.monotonic() - began,
    )


def _name_of(files: Sequence[_File]) -> str:
    """The name of the file that they are merged into."""
    return range_file_name(files[0].first, files[-1].last)


# --- planning -----------------------------------------------------------------------------------------


def _plan(root: Path, manifest: Manifest | None, small_size: int, target_size: int) -> Iterator[tuple[_File, ...]]:
    """Groups of files to merge into one."""
    by_folder = {folder: sorted(files, key=lambda file: file.first) for folder, files in _folders(root)}
    is_settled = _settled(by_folder, manifest)
    for _, files in sorted(by_folder.items()):
        taken = {file.path.name for file in files}
        for run in _runs(files, small_size, target_size, is_settled):
            if len(run) > 1 and _name_of(run) not in taken:
                yield tuple(run)


def _runs(
    files: list[_File], small_size: int, target_size: int, is_settled: Callable[[_File], bool]
) -> Iterator[list[_File]]:
    """Runs of consecutive small files. Overlapping files come from unknown writers and are left alone."""
    run: list[_File] = []
    size = 0
    for file in files:
        is_wanted = is_settled(file) and file.size < small_size
        if run and (not is_wanted or size >= target_size or file.first <= run[-1].last):
            yield run
            run, size = [], 0
        if is_wanted:
            run.append(file)
            size += file.size
    yield run


def _settled(by_folder: dict[Path, list[_File]], manifest: Manifest | None) -> Callable[[_File], bool]:
    """A function that tells whether a file will not be written again."""
    if manifest is not None:
        unfinished = {(str(part.partition), part.start) for part in manifest.unfinished}
        return lambda file: (_partition_of(file.path.parent), file.first) not in unfinished
    newest = max((file.written_at for files in by_folder.values() for file in files), default=0.0)
    return lambda file: file.written_at < newest - UNSETTLED_SECONDS


def _folders(root: Path) -> Iterator[tuple[Path, list[_File]]]:
    """The folders below with files named after offsets, without topics that have bookkeeping of their own."""
    found = sorted(path for path in root.rglob("*.parquet") if _root_of(path, root) == root)
    for folder, paths in groupby(found, key=lambda path: path.parent):
        files = [
            _File(path, *offsets, path.stat().st_size, path.stat().st_mtime)
            for path in paths
            if (offsets := range_of_name(path.name)) is not None
        ]
        if files:
            yield folder, files


def _root_of(path: Path, top: Path) -> Path:
    """The folder whose bookkeeping covers a file."""
    for parent in path.parents:
        if parent == top or (parent / BOOKS).is_dir():
            return parent
    return top


def _partition_of(folder: Path) -> str | None:
    """The topic's partition that a folder belongs to, according to its name or its parents' names."""
    for name in (folder.name, *(parent.name for parent in folder.parents)):
        found = value_of_folder(name)
        if found is not None and found[0] == "partition":
            return found[1]
    return None


# --- merging ------------------------------------------------------------------------------------------


def _stage_merged(work: _Work) -> StagedParquet:
    """Write the new file aside; runs in a task."""
    paths = [file.path for file in work.files]
    schema = pq.read_schema(paths[0]).remove_metadata()
    options = ParquetOptions(compression=work.compression)
    with StagingFolder(work.root / STAGING, schema, options=options) as folder:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    folder.add(batch.cast(schema))
        [staged] = folder.finish()
    # Keep the time of the newest original. A merged file with the current time would make the latest files of an idle
    # writer look old enough to merge.
    written_at = max(file.written_at for file in work.files)
    os.utime(staged.place, (written_at, written_at))
    return staged


def _replace_files(work: _Work, staged: StagedParquet) -> None:
    folder = str(work.files[0].path.parent.relative_to(work.root))
    note = {
        "folder": folder,
        "name": work.name,
        "replaces": [file.path.name for file in work.files],
        "place": str(Path(staged.place).relative_to(work.root)),
    }
    path = work.root / BOOKS / _NOTES / f"{quote(folder, safe='')} {work.name}.json"
    # Point of no return: once the note is durable, this merge or the next one completes it.
    write_atomically(path, json.dumps(note).encode())
    _finish_note(work.root, path)


def _finish_note(root: Path, path: Path) -> None:
    """Replace the old files with the new one, as a note says."""
    note = json.loads(path.read_bytes())
    folder, name = root / note["folder"], note["name"]
    # Notes of earlier versions name no place.
    place = root / note.get("place", f"{note['folder']}/.{name}{_ASIDE_SUFFIX}")
    if place.exists():
        # Durable before anything is removed: otherwise a power cut could lose both the old files and the new one.
        move_into_place(folder, {name: place})
    # The new file is missing if a task of an earlier version outlived its merge and wrote the note.
    if (folder / name).exists():
        # Durable before the note is removed: otherwise a power cut could bring them back without a note.
        remove_files(folder, note["replaces"])
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def _finish_old(root: Path) -> int:
    """Clean up after earlier runs: complete merges that have a note, and remove other files that were written aside."""
    notes = root / BOOKS / _NOTES
    paths = sorted(notes.glob("*.json")) if notes.is_dir() else []
    for path in paths:
        _finish_note(root, path)
    clear(root / STAGING)
    for pattern in (f".*{_ASIDE_SUFFIX}", f".*{_ASIDE_SUFFIX}.*{PARTIAL_SUFFIX}"):
        for path in root.rglob(pattern):
            if _root_of(path, root) == root:
                path.unlink(missing_ok=True)
    return len(paths)
