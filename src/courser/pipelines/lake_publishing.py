"""Publishes staged Parquet files to a folder so that readers see each row once.

Correctness depends on the order: first, a list of the files that the batch publishes is made durable; then, files of an
earlier attempt at the batch that are not in the list are removed; then, the new files are renamed into place. After a
crash, the batch is repeated and finds the list.

After a reset, rows that are read again replace those that are already in the lake. Two generations of a checkpoint do
not split a partition at the same offsets, so before a batch is published, its offsets are removed from older files: a
file within the batch is removed, and a file that extends beyond it is atomically replaced by one without those rows.

Files are named after offsets, so two topics would overwrite each other's files. The first pipeline leaves a note next
to the folder, and pipelines for another topic are refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from courser.errors import ClientFailure
from courser.jobs.folders import Folder
from courser.lake.atomic_files import AtomicFile, sync_folder, write_atomically
from courser.lake.file_names import PARQUET_SUFFIX, range_file_name, range_of_name, value_of_folder
from courser.lake.staged_parquet import StagedParquet, move_into_place, remove_files


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """What a batch published."""

    files: int
    rows: int
    size: int


def staging_root(lake: Path, name: str) -> Path:
    """Where tasks write: next to the lake, so that a rename is enough and readers of the lake do not see it."""
    return lake.parent / f".{lake.name}.staging" / name


def file_name(file: StagedParquet, query_id: str, batch: int) -> str:
    """The file's name: after its offsets if it has some, else after the query and the batch."""
    if file.first is not None and file.last is not None:
        return range_file_name(file.first, file.last)
    return f"{query_id}-{batch:020d}-{file.task:05d}.parquet"


def publish(
    lake: Path,
    staged: Sequence[StagedParquet],
    query_id: str,
    batch: int,
    lists: Folder,
    *,
    replaces: tuple[str, str] | None = None,
) -> PublishedBatch:
    """Make the files of a batch visible, and remove those of any earlier attempt at it.

    Args:
        lake: The folder that readers read.
        staged: What the tasks reported.
        query_id: Spark's id of the query, which lives as long as the checkpoint.
        batch: Its number.
        lists: The folder of the lists, in the checkpoint.
        replaces: The partition and offset columns, if an earlier generation may have written the same messages.
    """
    moves = {file.name_in_lake(file_name(file, query_id, batch)): Path(file.place) for file in staged}
    if len(moves) != len(staged):
        raise AssertionError(f"two of {len(staged)} files of batch {batch} have the same name")
    name = f"{batch}.json"
    earlier = set(json.loads(lists.read(name) or b"[]"))
    cuts: list[tuple[Path, tuple[int, int]]] = []
    if replaces is not None:
        hulls = hulls_of(staged)
        for old, part, span in older_files(lake, hulls, replaces[0]):
            file = old.relative_to(lake).as_posix()
            if file in moves:
                continue
            if hulls[part][0] <= span[0] and span[1] <= hulls[part][1]:
                earlier.add(file)
            else:
                cuts.append((old, hulls[part]))
    lists.replace(name, json.dumps(sorted({*moves, *earlier})).encode())
    remove_files(lake, earlier - moves.keys())
    for old, hull in cuts:
        cut(old, hull, replaces[1] if replaces is not None else "")
    move_into_place(lake, moves)
    lists.replace(name, json.dumps(sorted(moves)).encode())
    _forget_older(lists, batch)
    return PublishedBatch(len(staged), sum(file.rows for file in staged), sum(file.size for file in staged))


def _forget_older(lists: Folder, batch: int) -> None:
    """Remove older lists. Spark repeats only the last batch."""
    for name in lists.names():
        number = name.removesuffix(".json")
        if number.isdecimal() and int(number) < batch - 1:
            lists.remove(name)


# --- replacing older rows -----------------------------------------------------------------------------

Hulls = Mapping[int, tuple[int, int]]
"""The first and last offset of a batch, by partition."""


def hulls_of(staged: Sequence[StagedParquet]) -> dict[int, tuple[int, int]]:
    """The offsets that a batch covers. Everything between the two ends belongs to it, including dropped bad rows."""
    hulls: dict[int, tuple[int, int]] = {}
    for file in staged:
        if file.part is not None and file.first is not None and file.last is not None:
            first, last = hulls.get(file.part, (file.first, file.last))
            hulls[file.part] = (min(first, file.first), max(last, file.last))
    return hulls


def older_files(lake: Path, hulls: Hulls, partition_column: str) -> Iterator[tuple[Path, int, tuple[int, int]]]:
    """Files that overlap with the batch, with their partition and range of offsets."""
    for path in lake.rglob("*.parquet"):
        span, folder = range_of_name(path.name), value_of_folder(path.parent.name)
        if span is None or folder is None or folder[0] != partition_column or not (folder[1] or "").isdecimal():
            continue
        part = int(folder[1] or 0)
        if part in hulls and span[0] <= hulls[part][1] and hulls[part][0] <= span[1]:
            yield path, part, span


def cut(path: Path, hull: tuple[int, int], offset_column: str) -> None:
    """Replace a file by one without the rows of the batch; remove it if none are left. Raises ``ClientFailure``."""
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    with pq.ParquetFile(path) as opened:
        if offset_column not in opened.schema_arrow.names:
            raise ClientFailure(
                f"{path} mixes rows that are read again with others, but has no column {offset_column} to tell them "
                "apart; empty the lake, or write to another one"
            )
        compression = opened.metadata.row_group(0).column(0).compression if opened.num_row_groups else "ZSTD"
        rows: Any = opened.read()
    offsets = rows[offset_column]
    kept = rows.filter(pc.or_(pc.less(offsets, hull[0]), pc.greater(offsets, hull[1])))
    if kept.num_rows == rows.num_rows:
        return
    if kept.num_rows == 0:
        path.unlink()
        # Otherwise a power cut could bring it back next to the rows that replace it.
        sync_folder(path.parent)
        return
    whole = AtomicFile(path)
    try:
        pq.write_table(kept, whole.partial, compression="none" if compression == "UNCOMPRESSED" else compression)
        whole.publish()
    except BaseException:
        whole.discard()
        raise


# --- which topic a lake belongs to --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """A topic. If it is deleted and recreated, it may have the same name, but never the same id."""

    topic: str
    uuid: str


class LakeTaken(ClientFailure):
    """The folder holds messages of another topic."""

    def __init__(self, lake: Path, known: Origin, wanted: Origin) -> None:
        other = f'topic "{known.topic}"'
        if known.topic == wanted.topic:
            other = f"an earlier {other}, which was deleted"
        super().__init__(
            f"{lake} holds messages of {other}. Files are named after offsets, so those of "
            f'"{wanted.topic}" would overwrite them; use another folder, or empty this one'
        )


def note_path(lake: Path) -> Path:
    """Next to the lake, because readers take everything inside a folder for rows."""
    return lake.parent / f".{lake.name}.origin"


def check_origin(lake: Path, wanted: Origin) -> bool:
    """Whether the lake already belongs to this topic; False if it is unclaimed. Raises ``LakeTaken`` otherwise."""
    with suppress(FileNotFoundError):
        known = Origin(**json.loads(note_path(lake).read_text("utf-8")))
        if known.uuid == wanted.uuid:
            return True
        # The folder was emptied, so it can be claimed again.
        if any(lake.rglob(f"*{PARQUET_SUFFIX}")):
            raise LakeTaken(lake, known, wanted)
    return False


def claim(lake: Path, wanted: Origin) -> None:
    """Claim the lake for this topic. Raises ``LakeTaken``."""
    if not check_origin(lake, wanted):
        write_atomically(note_path(lake), json.dumps(asdict(wanted)).encode())
