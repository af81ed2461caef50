"""A batch read: everything between two offsets of each partition. The driver plans it, tasks read it."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from courser.spark.background_clients import freeze_loaded_modules
from courser.spark.decoding import Decoder
from courser.spark.option_kinds import EARLIEST
from courser.spark.planning import Task, TopicRead, plan_tasks, resolve_end, resolve_start
from courser.spark.read_options import ReadOptions
from courser.spark.releases import arrow_schema
from courser.spark.sent_to_tasks import SentToTasks
from courser.spark.source_choice import metadata_of, sources_in
from courser.spark.sources import LossRule, OffsetRange, read_range


def read_tasks(options: Sequence[ReadOptions], reads: Sequence[TopicRead]) -> list[InputPartition]:
    """The tasks of a read. Its limits are the same for every topic."""
    limits = options[0]
    return list(plan_tasks(reads, size_max=limits.partition_size_max, min_count=limits.min_partitions))


def read_task(task: InputPartition, reads: Sequence[ReadOptions], schema: StructType) -> Iterator[Any]:
    """The record batches of a task. Raises ``ReadFailed``, ``DataLost``."""
    # If there is nothing to read, Spark creates a task of its own.
    if not isinstance(task, Task):
        return
    (options,) = (options for options in reads if options.topic == task.topic)
    rule = LossRule(options.name, fails=options.fail_on_data_loss)
    decoder = Decoder(arrow_schema(schema), stream=options.stream, topic=options.topic, size_max=options.batch_size)
    for wanted in task.ranges:
        for fetched in read_range(wanted, rule):
            yield from decoder.decode(fetched.records, wanted.start, wanted.end)
    freeze_loaded_modules()


class BatchReader(SentToTasks, DataSourceReader):
    """Reads topics once. Spark builds it in several processes, so it connects only when it plans and in tasks."""

    def __init__(self, reads: Sequence[ReadOptions], schema: StructType) -> None:
        self.reads = reads
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks. Raises ``ReadFailed``, ``DataLost``."""
        return read_tasks(self.reads, [self._read_of(options) for options in self.reads])

    def _read_of(self, options: ReadOptions) -> TopicRead:
        metadata = metadata_of(options)
        facts = metadata.facts()
        starts = resolve_start(options, metadata, facts, unnamed=EARLIEST)
        ends = resolve_end(options, metadata, facts)
        ranges = [OffsetRange(partition, start, ends[partition]) for partition, start in sorted(starts.items())]
        return TopicRead(options.topic, ranges, facts, sources_in(options, metadata, facts))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(partition, self.reads, self.schema)
