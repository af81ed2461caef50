"""The data source ``courser``: the entry points that Spark calls.

Everything here is cheap and opens no connection: Spark builds the source and its readers in several processes.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from courser.spark.batch_reader import BatchReader
from courser.spark.errors import WriteFailed
from courser.spark.options import Use, parse_options
from courser.spark.read_options import read_options, stream_options
from courser.spark.releases import DataSourceStreamArrowWriter
from courser.spark.remembering_reader import reader_for_this_spark
from courser.spark.schema import check_schema, default_schema
from courser.spark.sent_to_tasks import SentToTasks
from courser.spark.stream_reader import StreamReader
from courser.spark.write_options import write_options
from courser.spark.writer import CourserBatchWriter, CourserStreamWriter


class CourserSource(SentToTasks, DataSource):
    """The data source behind ``spark.read.format("courser")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "courser"

    def schema(self) -> StructType:
        """The columns if the user gives no schema. Raises ``OptionRefused``."""
        # Spark does not tell yet whether this is a batch read or a stream.
        values = parse_options(self.options, Use.BATCH, Use.STREAM)
        return default_schema(
            values["schemaStyle"], include_headers=values["includeHeaders"], columns=values["columns"]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch read. Raises ``OptionRefused``."""
        reads, values = read_options(self.options, Use.BATCH)
        check_schema(schema, values["schemaStyle"])
        return BatchReader(reads, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For a stream. Raises ``OptionRefused``."""
        reads, values = read_options(self.options, Use.STREAM)
        check_schema(schema, values["schemaStyle"])
        return reader_for_this_spark(StreamReader(reads, stream_options(values), schema), self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a batch write. Raises ``OptionRefused``, ``RowRefused`` or ``WriteFailed``."""
        if overwrite:
            raise WriteFailed('topics can only be appended to; use mode("append"), or purge the topic first')
        return CourserBatchWriter(write_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """For a streaming write. Raises ``OptionRefused``, ``RowRefused`` or ``WriteFailed``."""
        if overwrite:
            raise WriteFailed('topics can only be appended to; use the output mode "append"')
        return CourserStreamWriter(write_options(self.options, schema))
