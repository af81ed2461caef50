"""Writes rows to Parquet files in tasks. Nothing is visible yet; one report per file is returned to the driver.

A task writes below a folder of its own, outside of the lake. Files of failed, repeated or abandoned tasks are never
published: ``lake_publishing`` moves only the files that successful tasks reported.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from courser.lake.staged_parquet import StagedParquet

if TYPE_CHECKING:
    from courser.lake.parquet_files import StagingFolder

REPORT_SCHEMA = "place STRING, folder STRING, task INT, part INT, first BIGINT, last BIGINT, rows BIGINT, size BIGINT"
"""The fields of ``StagedParquet``."""


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
        types = (pa.string(), pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64())
        schema = pa.schema([(column.name, kind) for column, kind in zip(fields(StagedParquet), types, strict=True)])
        yield pa.RecordBatch.from_pylist([asdict(file) for file in staged], schema)

    def _stage(self, batches: Iterable[Any]) -> Iterator[StagedParquet]:
        writers: dict[int | None, _Writer] = {}
        with ExitStack() as stack:
            for batch in batches:
                for part, rows in self._by_partition(batch):
                    if part not in writers:
                        writers[part] = _Writer(self, part, rows.schema)
                        stack.enter_context(writers[part].folder)
                    writers[part].add(rows)
            for writer in writers.values():
                yield from writer.finish()

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
    folder: "StagingFolder" = field(init=False)

    def __post_init__(self) -> None:
        import pyarrow as pa  # noqa: PLC0415

        from courser.lake.parquet_files import ParquetOptions, StagingFolder  # noqa: PLC0415 -- needs pyarrow

        order = self.order
        self.schema = pa.schema([column for column in self.schema if column.name not in order.left_out])
        options = ParquetOptions(compression=order.compression)
        self.folder = StagingFolder(Path(order.root), self.schema, folder_columns=order.folder_columns, options=options)

    def add(self, rows: Any) -> None:
        import pyarrow.compute as pc  # noqa: PLC0415

        if self.order.offset_column is not None:
            ends = pc.min_max(rows.column(self.order.offset_column)).as_py()
            self.first = ends["min"] if self.first is None else min(self.first, ends["min"])
            self.last = ends["max"] if self.last is None else max(self.last, ends["max"])
        self.folder.add(rows.select(self.schema.names))

    def finish(self) -> list[StagedParquet]:
        from pyspark import TaskContext  # noqa: PLC0415 -- optional

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        return self.folder.finish(task=task, part=self.part, first=self.first, last=self.last)
