"""A batch read: everything between two offsets of each partition, planned in the driver, read in tasks."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from courser.spark.decoding import Decoder
from courser.spark.option_kinds import EARLIEST
from courser.spark.places import LossRule, read_span
from courser.spark.planning import Part, Range, Task, plan_tasks, resolve_end, resolve_start
from courser.spark.read_options import ReadOptions
from courser.spark.schema import arrow_schema
from courser.spark.sources import places_in, source_of
from courser.spark.topics import TopicSource
from courser.spark.worker_memory import spare_collections


class ReadTask(InputPartition):
    """What one task reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.topic = task.topic
        self.spans = task.spans


def read_tasks(reads: Sequence[ReadOptions], parts: Sequence[Part]) -> list[InputPartition]:
    """The tasks of a read: its limits are the same for every topic."""
    limits = reads[0]
    tasks = plan_tasks(parts, size_max=limits.partition_size_max, min_count=limits.min_partitions)
    return [ReadTask(task) for task in tasks]


def read_task(task: InputPartition, reads: Sequence[ReadOptions], schema: StructType) -> Iterator[Any]:
    """The record batches of a task. Raises ``ReadFailed``, ``DataLost``."""
    # Spark makes a task of its own if there is nothing to read.
    if not isinstance(task, ReadTask):
        return
    (options,) = (options for options in reads if options.topic == task.topic)
    rule = LossRule(options.name, fails=options.fail_on_data_loss)
    decoder = Decoder(arrow_schema(schema), stream=options.stream, topic=options.topic, size_max=options.batch_size)
    for span in task.spans:
        for piece in read_span(span, rule):
            yield from decoder.decode(piece.records, span.start, span.end)
    spare_collections()


class BatchReader(DataSourceReader):
    """Reads topics once. Built in several processes: it connects when it plans, and in tasks."""

    def __init__(self, reads: Sequence[ReadOptions], schema: StructType) -> None:
        self.reads = reads
        self.schema = schema

    def wants(self, topic: str) -> bool:  # noqa: ARG002
        """For readers that know more about what is wanted."""
        return True

    def narrowed(self, ranges: list[Range], source: TopicSource) -> list[Range]:  # noqa: ARG002
        """The same."""
        return ranges

    def partitions(self) -> list[InputPartition]:
        """The tasks. Raises ``ReadFailed``, ``DataLost``."""
        return read_tasks(self.reads, [self._part(options) for options in self.reads if self.wants(options.topic)])

    def _part(self, options: ReadOptions) -> Part:
        source = source_of(options)
        facts = source.facts()
        starts = resolve_start(options, source, facts, unnamed=EARLIEST)
        ends = resolve_end(options, source, facts)
        ranges = [Range(partition, start, ends[partition]) for partition, start in sorted(starts.items())]
        return Part(options.topic, self.narrowed(ranges, source), facts, places_in(options, source, facts))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See ``read_task``."""
        return read_task(partition, self.reads, self.schema)
