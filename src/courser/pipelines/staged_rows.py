"""Writes rows to Parquet files in tasks. Nothing is visible yet; one report per file is returned to the driver.

A task writes below a folder of its own, outside of the lake. Files of failed, repeated or abandoned tasks are never
published: ``lake_publishing`` moves only the files that successful tasks reported.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

REPORT_SCHEMA = "place STRING, folder STRING, task INT, part INT, first BIGINT, last BIGINT, rows BIGINT, size BIGINT"
_FILE_NAME = "rows.parquet"


@dataclass(frozen=True, slots=True)
class StagedParquet:
    """A file that is ready to be published."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """Stages the rows of a task; passed to ``mapInArrow``."""

    root: str
    """Each task creates a folder of its own below it."""
    folder_columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Columns that are not written."""
    partition_column: str | None = None
    offset_column: str | None = None
    """Set together. Each file then holds rows of one partition and is named after their offsets."""
    compression: str = "zstd"

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Write all rows and report the files."""
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional

        staged = list(self._stage(batches))
        columns = ("place", "folder", "task", "part", "first", "last", "rows", "size")
        types = (pa.string(), pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64())
        arrays = [
            pa.array([getattr(file, name) for file in staged], kind) for name, kind in zip(columns, types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def _stage(self, batches: Iterable[Any]) -> Iterator[StagedParquet]:
        writers: dict[int | None, _Writer] = {}
        try:
            for batch in batches:
                for part, rows in self._by_partition(batch):
                    if part not in writers:
                        writers[part] = _Writer(self, part, rows.schema)
                    writers[part].add(rows)
            for writer in writers.values():
                yield from writer.finish()
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise

    def _by_partition(self, batch: Any) -> Iterator[tuple[int | None, Any]]:
        import pyarrow.compute as pc  # type: ignore[import-untyped]  # noqa: PLC0415

        if batch.num_rows == 0:
            return
        if self.partition_column is None:
            yield None, batch
            return
        numbers = batch.column(self.partition_column)
        for number in pc.unique(numbers).to_pylist():
            # A task normally reads a single partition; then nothing is copied.
            is_all = number == numbers[0].as_py() and number == numbers[-1].as_py() and len(pc.unique(numbers)) == 1
            yield number, batch if is_all else batch.filter(pc.equal(numbers, number))


@dataclass(slots=True)
class _Writer:
    """The files of one partition, or of all rows."""

    order: StageRows
    part: int | None
    schema: Any
    first: int | None = None
    last: int | None = None
    root: Path = field(init=False)
    _folder: Any = field(init=False)

    def __post_init__(self) -> None:
        import pyarrow as pa  # noqa: PLC0415

        from courser.lake.parquet_files import ParquetFolder, ParquetOptions  # noqa: PLC0415 -- needs pyarrow

        self.root = Path(self.order.root) / uuid4().hex
        kept = pa.schema([column for column in self.schema if column.name not in self.order.left_out])
        self.schema = kept
        self._folder = ParquetFolder(
            self.root,
            _FILE_NAME,
            kept,
            folder_columns=self.order.folder_columns,
            options=ParquetOptions(compression=self.order.compression),
        )

    def add(self, rows: Any) -> None:
        import pyarrow.compute as pc  # noqa: PLC0415

        if self.order.offset_column is not None:
            ends = pc.min_max(rows.column(self.order.offset_column)).as_py()
            self.first = ends["min"] if self.first is None else min(self.first, ends["min"])
            self.last = ends["max"] if self.last is None else max(self.last, ends["max"])
        self._folder.add(rows.select(self.schema.names))

    def finish(self) -> Iterator[StagedParquet]:
        from pyspark import TaskContext  # noqa: PLC0415 -- optional

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        for written in self._folder.finish():
            folder = written.path.parent.relative_to(self.root)
            place = "" if folder == Path() else folder.as_posix()
            yield StagedParquet(
                str(written.path), place, task, self.part, self.first, self.last, written.row_count, written.size
            )

    def discard(self) -> None:
        self._folder.discard()
