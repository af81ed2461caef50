"""The topic that a job reads, split into ranges of offsets: one range per task, wherever its messages are.

The options are those of the data source (docs/spark/reading.md): ``stream`` and ``topic`` always; ``url`` for a server;
``path`` and ``source=segments`` for files; ``archiveConfig`` or ``archive.*`` and ``source=archive`` for the archive.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from courser.spark.errors import retention_overtook
from courser.spark.option_kinds import EARLIEST
from courser.spark.options import Use, one_topic
from courser.spark.planning import TopicRead, plan_tasks, resolve_end, resolve_start
from courser.spark.read_options import ReadOptions, read_options
from courser.spark.source_choice import metadata_of, sources_in
from courser.spark.sources import FetchedBatches, LossRule, OffsetRange, read_range
from courser.spark.topic_metadata import TopicFacts


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic as it was when the job started. The job reads only offsets that existed then."""

    options: ReadOptions
    facts: TopicFacts
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    """By partition; the end is exclusive."""
    sources_of: Callable[[OffsetRange], tuple[OffsetRange, ...]]
    """Splits a range by the sources that hold its messages."""

    def ranges(self, known_ends: Mapping[int, int]) -> list[OffsetRange]:
        """What is left to read after ``known_ends``, split into ranges of about the size that the options ask for.

        Raises:
            DataLost: messages that no run has read are gone, and the options do not allow that.
        """
        wanted = []
        for partition, start in sorted(self.starts.items()):
            known = known_ends.get(partition)
            first = self.facts.partitions[partition].first
            if known is not None and known < first <= start and self.options.fail_on_data_loss:
                raise retention_overtook(self.options.name, partition, known, first)
            wanted.append(OffsetRange(partition, max(start, known or 0), self.ends[partition]))
        read = TopicRead(self.options.topic, wanted, self.facts, lambda part: [part])
        tasks = plan_tasks([read], size_max=self.options.partition_size_max, min_count=self.options.min_partitions)
        return [part for task in tasks for part in task.ranges]

    def size_of(self, part: OffsetRange) -> int:
        """Approximate size of a range in bytes."""
        bounds = self.facts.partitions[part.partition]
        return int(bounds.size_of(bounds.count_between(part.start, part.end)))


def open_topic(options: Mapping[str, str]) -> SourceTopic:
    """Look up a topic.

    Raises:
        OptionRefused: the options are invalid, or name several topics.
        SourceMissing: the topic does not exist.
        DataLost: it does not hold what the options ask for.
    """
    (chosen, *_), values = read_options(options, Use.BATCH)
    one_topic(values)
    metadata = metadata_of(chosen)
    facts = metadata.facts()
    split = sources_in(chosen, metadata, facts)
    starts = resolve_start(chosen, metadata, facts, unnamed=EARLIEST)
    return SourceTopic(chosen, facts, starts, resolve_end(chosen, metadata, facts), lambda wanted: tuple(split(wanted)))


def fetch_ranges(ranges: tuple[OffsetRange, ...], options: ReadOptions) -> Iterator[tuple[OffsetRange, FetchedBatches]]:
    """In a task: all batches of some ranges, with the range that each belongs to. Raises as ``read_range`` does."""
    rule = LossRule(options.name, fails=options.fail_on_data_loss)
    for wanted in ranges:
        for fetched in read_range(wanted, rule):
            if len(fetched.records):
                yield wanted, fetched
