"""Writes Arrow batches to Parquet files aside, in tasks: one file for each folder of the lake that gets rows."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from courser.lake.file_names import folder_path
from courser.lake.staged_parquet import StagedParquet

ROW_GROUP_SIZE = 32 * 1024 * 1024
"""Bytes of Arrow data per row group: enough for fast scans. Each open file buffers up to this much."""
OPEN_FILES_MAX = 64
"""Files that one writer keeps open, each with up to a row group in memory. If more are needed, folders are too fine."""
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")

_FILE_NAME = "rows.staged"
"""Readers that are told to read ``*.parquet`` do not see it, wherever it is."""
_COUNTING_TYPES = (pa.types.is_integer, pa.types.is_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions:
    """How to write the files."""

    compression: str = "zstd"
    row_group_size: int = ROW_GROUP_SIZE
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Keys and values for the footer of each file."""


class TooManyFolders(ValueError):
    """The rows alternate between more folders than files can be open."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__(columns)
        self.columns = tuple(columns)

    def __str__(self) -> str:
        names = ", ".join(self.columns)
        return (
            f"the rows alternate between more than {OPEN_FILES_MAX} folders by {names}; use coarser columns, or sort "
            "the rows by them"
        )


class _OpenFile:
    """A Parquet file that is being written. It buffers batches until they fill a row group."""

    def __init__(self, path: Path, schema: Any, options: ParquetOptions) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._options = options
        self._pending: list[Any] = []
        self._pending_size = 0
        self.row_count = 0
        self.is_complete = False
        """Whether nothing more can be added."""
        self._writer = _parquet_writer(path, schema, options)

    def add(self, batch: Any) -> None:
        self._pending.append(batch)
        self._pending_size += batch.nbytes
        self.row_count += batch.num_rows
        if self._pending_size >= self._options.row_group_size:
            self._write_pending()

    def _write_pending(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._pending, self._pending_size = [], 0

    def complete(self) -> None:
        """Write the footer. From now on the file needs neither memory nor a file descriptor."""
        if not self.is_complete:
            self._write_pending()
            self._writer.close()
            self.is_complete = True

    def finish(self) -> int:
        """Make the file durable. Returns its size in bytes."""
        self.complete()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def close(self) -> None:
        """Close the file, whose contents are of no use."""
        # Writes a footer that nobody will read, but reliably closes the file descriptor.
        self._writer.close()


def _parquet_writer(path: Path, schema: Any, options: ParquetOptions) -> Any:
    """A writer with encodings by type: delta encoding for numbers and times, dictionaries for text, plain for bytes."""
    counting = [column.name for column in schema if any(test(column.type) for test in _COUNTING_TYPES)]
    texts = [column.name for column in schema if pa.types.is_string(column.type)]
    return pq.ParquetWriter(
        path,
        schema.with_metadata({**(schema.metadata or {}), **options.metadata}),
        compression=options.compression,
        compression_level=1 if options.compression == "zstd" else None,
        use_dictionary=texts,
        column_encoding=dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
        # Statistics of payloads are useless, and computing them reads every byte again.
        write_statistics=[*counting, *texts],
        coerce_timestamps=None,
        store_schema=True,
    )


class StagingFolder:
    """Writes the rows of a task aside, in a new folder below ``root``. ``folder_columns`` decide the folder of a row.

    A context manager, which removes what is not finished. Not thread-safe.
    """

    def __init__(
        self, root: Path, schema: Any, *, folder_columns: Sequence[str] = (), options: ParquetOptions | None = None
    ) -> None:
        missing = [name for name in folder_columns if name not in schema.names]
        if missing:
            raise ValueError(f"the rows have no column {missing[0]}; their columns are {', '.join(schema.names)}")
        self._root = root / uuid4().hex
        self._folder_columns = tuple(folder_columns)
        self._kept = [name for name in schema.names if name not in folder_columns]
        # The folder's name holds the value. A copy in the file would confuse readers that add columns from folders.
        self._schema = pa.schema([schema.field(name) for name in self._kept])
        self._options = options or ParquetOptions()
        self._files: dict[tuple[str | None, ...], _OpenFile] = {}

    def add(self, batch: Any) -> None:
        """Add a record batch. Raises ``TooManyFolders``, but never if rows are sorted by folder."""
        for values, part in _split(batch, self._folder_columns):
            self._file(values).add(part.select(self._kept) if self._folder_columns else part)

    def _file(self, values: tuple[str | None, ...]) -> _OpenFile:
        """The file of a folder. If too many are open, completes the least recently used one."""
        file = self._files.pop(values, None)
        if file is None:
            open_files = [other for other in self._files.values() if not other.is_complete]
            if len(open_files) >= OPEN_FILES_MAX:
                open_files[0].complete()
            folder = folder_path(self._root, self._folder_columns, values)
            file = _OpenFile(folder / _FILE_NAME, self._schema, self._options)
        # Reinsert at the end, which keeps the dictionary in order of last use.
        self._files[values] = file
        if file.is_complete:
            raise TooManyFolders(self._folder_columns)
        return file

    def finish(
        self, *, task: int = 0, part: int | None = None, first: int | None = None, last: int | None = None
    ) -> list[StagedParquet]:
        """Complete the files, one for each folder that rows belong to."""
        staged = []
        for file in self._files.values():
            folder = file.path.parent.relative_to(self._root)
            place = "" if folder == Path() else folder.as_posix()
            staged.append(StagedParquet(str(file.path), place, task, part, first, last, file.row_count, file.finish()))
        self._files.clear()
        return staged

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._files:
            for file in self._files.values():
                file.close()
            shutil.rmtree(self._root, ignore_errors=True)


def _split(batch: Any, columns: Sequence[str]) -> Iterable[tuple[tuple[str | None, ...], Any]]:
    """The rows grouped by the values of the columns, in order of first appearance."""
    if not columns:
        return [((), batch)]
    values = [batch.column(name) for name in columns]
    # The common case, since times increase: all rows go to one folder, and nothing is copied.
    if batch.num_rows and all(_is_constant(column) for column in values):
        return [(tuple(_text(column[0]) for column in values), batch)]
    names = [f"folder_{number}" for number in range(len(columns))]
    numbered = pa.table([*values, pa.array(range(batch.num_rows), pa.int64())], names=[*names, "row"])
    groups = numbered.group_by(names, use_threads=False).aggregate([("row", "list")]).to_pylist()
    return [(tuple(_text(group[name]) for name in names), batch.take(pa.array(group["row_list"]))) for group in groups]


def _is_constant(column: Any) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _text(value: Any) -> str | None:
    """A value as it appears in a folder name."""
    plain = value.as_py() if isinstance(value, pa.Scalar) else value
    if isinstance(plain, bytes):
        return plain.hex()
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return None if plain is None else str(plain)
