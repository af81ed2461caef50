"""A data source whose tasks write the messages they read to Parquet and return only reports of the files.

For pipelines that write messages to a lake unchanged. No payload passes through Java, which would otherwise take most
of the time. To Spark it is a stream like any other, with the same offsets and checkpoints; its rows are those of
``staged_rows.REPORT_SCHEMA``.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from courser.pipelines.staged_rows import REPORT_SCHEMA, StageRows
from courser.spark.options import Use
from courser.spark.read_options import ReadOptions, StreamOptions, read_options, stream_options
from courser.spark.remembering_reader import reader_for_this_spark
from courser.spark.schema import default_schema
from courser.spark.stream_reader import StreamReader

FORMAT = "courser_staging"
ORDER = "stagingOrder"
"""The option that tells tasks how to stage rows. All other options are those of the format ``courser``."""

_DERIVED = {"day": "%Y-%m-%d", "hour": "%H"}


def order_text(order: StageRows) -> str:
    """The text of the option."""
    return json.dumps(asdict(order))


def _order(text: str) -> StageRows:
    values: dict[str, Any] = json.loads(text)
    return StageRows(**values | {name: tuple(values[name]) for name in ("folder_columns", "left_out")})


class StagingSource(DataSource):
    """``spark.readStream.format("courser_staging")``. Must be registered with the session."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """The schema of the reports."""
        return REPORT_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        """A stream of reports. Raises ``OptionRefused``."""
        del schema
        given = {name: text for name, text in self.options.items() if name.lower() != ORDER.lower()}
        (order,) = (text for name, text in self.options.items() if name.lower() == ORDER.lower())
        reads, values = read_options(given, Use.STREAM)
        rows = default_schema(values["schemaStyle"], include_headers=values["includeHeaders"])
        return reader_for_this_spark(StagingReader(reads, stream_options(values), rows, _order(order)), given)


class StagingReader(StreamReader):
    """Plans like any stream, but its tasks write files."""

    def __init__(
        self, reads: Sequence[ReadOptions], streaming: StreamOptions, schema: StructType, order: StageRows
    ) -> None:
        super().__init__(reads, streaming, schema)
        self._order = order

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Write what the task reads and report the files."""
        return self._order(_with_folders(super().read(partition), self._order.folder_columns))


def _with_folders(batches: Iterable[Any], folders: tuple[str, ...]) -> Iterator[Any]:
    """Add the folder columns that are not columns of a message."""
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # noqa: PLC0415

    for batch in batches:
        for name in folders:
            if name not in batch.schema.names:
                # Without a time zone: times are UTC, and Arrow then needs no time zone database.
                times = batch.column("timestamp").cast(pa.timestamp("us"))
                batch = batch.append_column(name, pc.strftime(times, _DERIVED[name]))
        yield batch
