"""A batch read: everything between two offsets of each partition, planned in the driver, read in tasks."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from courser.spark.decoding import Decoder
from courser.spark.options import EARLIEST
from courser.spark.places import LossRule, Span, read_span
from courser.spark.planning import Range, plan_tasks, resolve_end, resolve_start
from courser.spark.read_options import ReadOptions
from courser.spark.schema import arrow_schema
from courser.spark.sources import places_in, source_of
from courser.spark.topics import TopicSource
from courser.spark.worker_memory import spare_collections


class ReadTask(InputPartition):
    """What one task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(None)
        self.spans = spans


def read_task(task: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[Any]:
    """The record batches of a task. Raises ``ReadFailed``, ``DataLost``."""
    # Spark makes a task of its own if there is nothing to read.
    if not isinstance(task, ReadTask):
        return
    rule = LossRule(options.name, fails=options.fail_on_data_loss)
    decoder = Decoder(arrow_schema(schema), stream=options.stream, topic=options.topic, size_max=options.batch_size)
    for span in task.spans:
        for piece in read_span(span, rule):
            yield from decoder.decode(piece.records, span.start, span.end)
    spare_collections()


class BatchReader(DataSourceReader):
    """Reads a topic once. Built in several processes: it connects when it plans, and in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def narrowed(self, ranges: list[Range], source: TopicSource) -> list[Range]:  # noqa: ARG002
        """For readers that know more about what is wanted."""
        return ranges

    def partitions(self) -> list[InputPartition]:
        """The tasks. Raises ``ReadFailed``, ``DataLost``."""
        options = self.options
        source = source_of(options)
        facts = source.facts()
        starts = resolve_start(options, source, facts, unnamed=EARLIEST)
        ends = resolve_end(options, source, facts)
        ranges = [Range(partition, start, ends[partition]) for partition, start in sorted(starts.items())]
        tasks = plan_tasks(
            self.narrowed(ranges, source),
            facts,
            places_in(options, source, facts),
            size_max=options.partition_size_max,
            min_count=options.min_partitions,
        )
        return [ReadTask(spans) for spans in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See ``read_task``."""
        return read_task(partition, self.options, self.schema)
