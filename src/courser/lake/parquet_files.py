"""Arrow batches to Parquet files below a folder, one file for each folder that the rows fall into.

The files of one stretch of offsets share one name (``naming.range_file_name``), in every folder that holds some of its
rows. Writing the stretch again writes the same files again, so a replay overwrites and never adds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from courser.lake.naming import folder_path
from courser.lake.whole_files import WholeFile

ROW_GROUP_SIZE = 32 * 1024 * 1024
"""Bytes of Arrow data that become one row group: enough for fast scans; each open file keeps as much in memory."""
OPEN_FILES_MAX = 64
"""Files that one writer keeps open, each with up to a row group in memory. Beyond it the folders are too fine."""
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")

_COUNTING_TYPES = (pa.types.is_integer, pa.types.is_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions:
    """How the files are made."""

    compression: str = "zstd"
    row_group_size: int = ROW_GROUP_SIZE
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Key and value of each file's footer."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is there now, durably."""

    path: Path
    row_count: int
    size: int


class TooManyFolders(ValueError):
    """The rows of one stretch go back and forth between more folders than files can be open."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__(columns)
        self.columns = tuple(columns)

    def __str__(self) -> str:
        names = ", ".join(self.columns)
        return (
            f"the values of {names} lead to more than {OPEN_FILES_MAX} folders at once, back and forth: choose coarser "
            "columns, or bring the rows in their order"
        )


class _OpenFile:
    """A Parquet file on its way: batches gather until they are worth a row group."""

    def __init__(self, path: Path, schema: Any, options: ParquetOptions) -> None:
        self._whole = WholeFile(path)
        self._options = options
        self._pending: list[Any] = []
        self._pending_size = 0
        self.row_count = 0
        self.is_complete = False
        """Whether nothing can be added any more; not visible for all that."""
        try:
            self._writer = _parquet_writer(self._whole.partial, schema, options)
        except BaseException:
            self._whole.discard()
            raise

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
        """Write the end: neither memory nor a descriptor is needed from now on."""
        if not self.is_complete:
            self._write_pending()
            self._writer.close()
            self.is_complete = True

    def finish(self) -> WrittenFile:
        self.complete()
        return WrittenFile(self._whole.path, self.row_count, self._whole.publish())

    def discard(self) -> None:
        try:
            # Writes a footer that nobody will read; then the descriptor is closed for certain.
            self._writer.close()
        finally:
            self._whole.discard()


def _parquet_writer(path: Path, schema: Any, options: ParquetOptions) -> Any:
    """Encodings by type: numbers that grow are stored as differences, bytes as they are, few texts as a dictionary."""
    counting = [column.name for column in schema if any(test(column.type) for test in _COUNTING_TYPES)]
    texts = [column.name for column in schema if pa.types.is_string(column.type)]
    return pq.ParquetWriter(
        path,
        schema.with_metadata({**(schema.metadata or {}), **options.metadata}),
        compression=options.compression,
        compression_level=1 if options.compression == "zstd" else None,
        use_dictionary=texts,
        column_encoding=dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
        # Smallest and largest payload say nothing, and finding them reads every byte once more.
        write_statistics=[*counting, *texts],
        coerce_timestamps=None,
        store_schema=True,
    )


class ParquetFolder:
    """Writes batches below ``root`` as files called ``file_name``; ``folder_columns`` decide where each row goes.

    Nothing is visible before ``finish``, which publishes file after file. A crash in between leaves some of them; the
    same rows written again complete them. Not for two threads.
    """

    def __init__(
        self,
        root: Path,
        file_name: str,
        schema: Any,
        *,
        folder_columns: Sequence[str] = (),
        options: ParquetOptions | None = None,
    ) -> None:
        missing = [name for name in folder_columns if name not in schema.names]
        if missing:
            raise ValueError(f"the rows have no column {missing[0]}; they have {', '.join(schema.names)}")
        self._root = root
        self._file_name = file_name
        self._folder_columns = tuple(folder_columns)
        self._kept = [name for name in schema.names if name not in folder_columns]
        # The folder's name holds the value: a second copy in the file confuses readers that add the folder's columns.
        self._schema = pa.schema([schema.field(name) for name in self._kept])
        self._options = options or ParquetOptions()
        self._files: dict[tuple[str | None, ...], _OpenFile] = {}

    def add(self, batch: Any) -> None:
        """Take one record batch. Raises ``TooManyFolders``; rows in the order of their folders have no limit."""
        for values, part in _split(batch, self._folder_columns):
            self._file(values).add(part.select(self._kept) if self._folder_columns else part)

    def _file(self, values: tuple[str | None, ...]) -> _OpenFile:
        """The file of a folder. The one that was not used for the longest time is completed if too many are open."""
        file = self._files.pop(values, None)
        if file is None:
            open_files = [other for other in self._files.values() if not other.is_complete]
            if len(open_files) >= OPEN_FILES_MAX:
                open_files[0].complete()
            folder = folder_path(self._root, self._folder_columns, values)
            file = _OpenFile(folder / self._file_name, self._schema, self._options)
        # At the end of the dictionary: what is used comes behind what is not.
        self._files[values] = file
        if file.is_complete:
            raise TooManyFolders(self._folder_columns)
        return file

    def finish(self) -> list[WrittenFile]:
        """Publish every file, each one durable before the next."""
        written = []
        while self._files:
            values = next(iter(self._files))
            written.append(self._files[values].finish())
            del self._files[values]
        return written

    def discard(self) -> None:
        """Leave no trace of what has not been published."""
        while self._files:
            self._files.popitem()[1].discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def write_parquet(
    root: Path,
    file_name: str,
    batches: Iterable[Any],
    schema: Any,
    *,
    folder_columns: Sequence[str] = (),
    options: ParquetOptions | None = None,
) -> list[WrittenFile]:
    """Write all batches as ``file_name`` below ``root``; without rows nothing is written.

    Raises:
        TooManyFolders: the folder columns have too many values, in no order.
    """
    with ParquetFolder(root, file_name, schema, folder_columns=folder_columns, options=options) as folder:
        for batch in batches:
            if batch.num_rows:
                folder.add(batch)
        return folder.finish()


def _split(batch: Any, columns: Sequence[str]) -> Iterable[tuple[tuple[str | None, ...], Any]]:
    """The rows by the values of the columns, in the order in which the values come first."""
    if not columns:
        return [((), batch)]
    values = [batch.column(name) for name in columns]
    # The usual case, since times grow: all rows go to one folder, and nothing is copied.
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
    """A value as the name of a folder has it."""
    plain = value.as_py() if isinstance(value, pa.Scalar) else value
    if isinstance(plain, bytes):
        return plain.hex()
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return None if plain is None else str(plain)
