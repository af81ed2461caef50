"""Sinks: how a streaming DataFrame is written so that a repeated batch changes nothing.

Lakes: tasks write files aside (``staged_rows``), and the driver makes them visible (``lake_publishing``) or appends
them to a table together with the batch number. Topics: the server's own staging. Console: at least once.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from courser.client.targets import Target
from courser.jobs.folders import Folder
from courser.lake.staged_parquet import StagedParquet, clear
from courser.pipelines.checkpoint import Checkpoint
from courser.pipelines.decode import OFFSET, PARTITION, TIMESTAMP
from courser.pipelines.definition import SinkDefinition, TopicName
from courser.pipelines.lake_publishing import publish, staging_root
from courser.pipelines.source_frames import FORMAT, connection_options
from courser.pipelines.staged_rows import REPORT_SCHEMA, StageRows
from courser.pipelines.transform import TransformRefused, as_messages
from courser.spark.option_kinds import topic_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DERIVED = {"day": "yyyy-MM-dd", "hour": "HH"}
"""Folder columns that are derived from the append time of a message."""
_ROWS_AT_ONCE = 65_536
"""Rows of a staged file that are in memory at a time while they are appended to a table."""


@dataclass(frozen=True, slots=True)
class RowNames:
    """The columns that tell where a row comes from; None if rows no longer correspond to messages."""

    partition: str | None = None
    offset: str | None = None
    timestamp: str | None = None
    left_out: tuple[str, ...] = ()
    """Columns that are needed for this only and are not written."""


DECODED_NAMES = RowNames(PARTITION, OFFSET, TIMESTAMP)
RAW_NAMES = RowNames("partition", "offset", "timestamp")


def with_folder_columns(rows: "DataFrame", sink: SinkDefinition, names: RowNames) -> "DataFrame":
    """The rows with all folder columns. Raises ``TransformRefused`` if one is missing."""
    from pyspark.sql import functions as f  # noqa: PLC0415 -- optional

    for name in sink.partition_by:
        if name in rows.columns:
            continue
        if name not in DERIVED or names.timestamp is None or names.timestamp not in rows.columns:
            raise TransformRefused(
                f"sink.partition_by names the unknown column {name}; the columns are {', '.join(rows.columns)}"
            )
        rows = rows.withColumn(name, f.date_format(names.timestamp, DERIVED[name]))
    return rows


def staging_order(sink: SinkDefinition, names: RowNames, columns: Sequence[str], root: Path) -> StageRows:
    """How tasks stage rows with these columns. Tables create their own folders."""
    is_parquet = sink.type == "parquet"
    by_offsets = is_parquet and names.partition is not None and names.partition in columns
    folders = tuple(sink.partition_by) if is_parquet else ()
    if by_offsets and names.partition is not None:
        folders = (*folders, names.partition)
    return StageRows(
        root=str(root),
        folder_columns=tuple(dict.fromkeys(folders)),
        left_out=tuple(name for name in names.left_out if name not in folders),
        partition_column=names.partition if by_offsets else None,
        offset_column=names.offset if by_offsets else None,
        compression=sink.compression,
    )


@dataclass(frozen=True, slots=True)
class LakeSink:
    """Writes the batches of one query, in the driver."""

    name: str
    sink: SinkDefinition
    names: RowNames
    spark_checkpoint: Folder
    lists: Folder
    is_staged: bool = False
    """Whether the incoming rows are reports of files that tasks have already written."""
    is_repetition: bool = False
    """Whether an older generation of the checkpoint may have written the same messages."""

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        """Write one batch. Spark calls it again with the same rows if it does not know whether it succeeded."""
        assert self.sink.path is not None, "the definition was checked"
        lake = Path(self.sink.path)
        # In the same file system as the lake, so that a rename is enough, but outside of the table's folder.
        root = staging_root(lake, self.name)
        clear(root)
        query_id = self._query_id()
        if self.sink.type != "parquet" and self._is_done(query_id, batch):
            return
        if self.is_staged:
            staged = [StagedParquet(**row.asDict()) for row in rows.collect()]
        else:
            staged = self._stage(rows, root)
        if self.sink.type == "parquet":
            publish(lake, staged, query_id, batch, self.lists, replaces=self._replaces())
        elif staged:
            self._append(staged, query_id, batch)
        clear(root)

    def _replaces(self) -> tuple[str, str] | None:
        """The columns that identify a message, if it may have been written before a reset."""
        if not self.is_repetition or self.names.partition is None or self.names.offset is None:
            return None
        return self.names.partition, self.names.offset

    def _stage(self, rows: "DataFrame", root: Path) -> list[StagedParquet]:
        rows = with_folder_columns(rows, self.sink, self.names)
        order = staging_order(self.sink, self.names, rows.columns, root)
        return [StagedParquet(**row.asDict()) for row in rows.mapInArrow(order, REPORT_SCHEMA).collect()]

    def _query_id(self) -> str:
        """Spark's id of the query. It is stored in the checkpoint, so a new checkpoint has a new one."""
        found = json.loads((self.spark_checkpoint.read("metadata") or b"").strip().splitlines()[-1])
        return str(found["id"])

    # --- tables ---

    def _is_done(self, query_id: str, batch: int) -> bool:
        assert self.sink.path is not None
        if self.sink.type == "delta":
            from courser.lake import delta  # noqa: PLC0415 -- optional

            known = delta.last_batch(self.sink.path, query_id)
        else:
            from courser.lake import iceberg  # noqa: PLC0415

            known = iceberg.last_batch(iceberg.open_catalog(Path(self.sink.path)), self.sink.table or "", query_id)
        return known is not None and batch <= known

    def _append(self, staged: Sequence[StagedParquet], query_id: str, batch: int) -> None:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional

        assert self.sink.path is not None
        schema = pq.read_schema(staged[0].place)
        rows = _rows_of(staged)
        if self.sink.type == "delta":
            from courser.lake import delta  # noqa: PLC0415

            folders = self.sink.partition_by
            delta.append(self.sink.path, rows, schema, application=query_id, batch=batch, partition_by=folders)
        else:
            from courser.lake import iceberg  # noqa: PLC0415

            catalog = iceberg.open_catalog(Path(self.sink.path))
            iceberg.append(catalog, self.sink.table or "", rows, schema, application=query_id, batch=batch)


def _rows_of(staged: Sequence[StagedParquet]) -> Iterator[Any]:
    import pyarrow.parquet as pq  # noqa: PLC0415

    for file in staged:
        with pq.ParquetFile(file.place) as opened:
            yield from opened.iter_batches(_ROWS_AT_ONCE)


def lake_writer(
    name: str,
    rows: "DataFrame",
    sink: SinkDefinition,
    names: RowNames,
    checkpoint: Checkpoint,
    *,
    is_quarantine: bool = False,
    is_staged: bool = False,
) -> "DataStreamWriter":
    """A query that writes to a folder or a table."""
    if not is_staged:
        with_folder_columns(rows, sink, names)
    spark_checkpoint = checkpoint.quarantine if is_quarantine else checkpoint.spark
    lists = checkpoint.folder.inside("quarantine-published" if is_quarantine else "published")
    is_repetition = checkpoint.generation > 1
    handler = LakeSink(name, sink, names, spark_checkpoint, lists, is_staged, is_repetition)
    return rows.writeStream.foreachBatch(handler).option("checkpointLocation", spark_checkpoint.place)


def topic_writer(
    rows: "DataFrame", place: TopicName, sink: SinkDefinition, target: Target, folder: Folder
) -> "DataStreamWriter":
    """A query that writes to a topic, exactly once."""
    messages = as_messages(rows, sink)
    options = {**connection_options(target), "stream": place.stream, "topic": topic_text(place.topic)}
    if sink.partitioning is not None:
        options["partitioning"] = sink.partitioning
    return messages.writeStream.format(FORMAT).options(**options).option("checkpointLocation", folder.place)


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    """Shows the first rows of each batch."""

    rows: int
    show: Callable[[int, str], None]
    """Called with the batch and a table as text."""

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        """Show the first rows of a batch."""
        shown = rows._show_string(self.rows, 20, False)  # type: ignore[operator]
        self.show(batch, shown)
