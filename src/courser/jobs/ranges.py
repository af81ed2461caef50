"""What a job reads: a topic cut into ranges of offsets, each for one task, from the server or from segment files.

The options are those of the data source (docs/spark/reading.md): ``stream`` and ``topic`` always, then ``url`` for a
server, ``path`` and ``source=segments`` for files.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from courser.spark.errors import retention_overtook
from courser.spark.option_kinds import EARLIEST
from courser.spark.options import Use, one_topic
from courser.spark.places import LossRule, Piece, Span, read_span
from courser.spark.planning import Part, Range, plan_tasks, resolve_end, resolve_start
from courser.spark.read_options import ReadOptions, read_options
from courser.spark.sources import places_in, source_of
from courser.spark.topics import TopicFacts


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic as it was when the job began. Everything that is read lies between two offsets of that moment."""

    options: ReadOptions
    facts: TopicFacts
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    """By partition; the end is exclusive."""
    spans_of: Callable[[Range], tuple[Span, ...]]
    """Where the messages of a range are."""

    def ranges(self, known_ends: Mapping[int, int]) -> list[Range]:
        """What is left to read behind ``known_ends``, in pieces of about the size that the options say.

        Raises:
            DataLost: messages are gone that no run has read, unless the options allow that.
        """
        wanted = []
        for partition, start in sorted(self.starts.items()):
            known = known_ends.get(partition)
            first = self.facts.partitions[partition].first
            if known is not None and known < first <= start and self.options.fail_on_data_loss:
                raise retention_overtook(self.options.name, partition, known, first)
            wanted.append(Range(partition, max(start, known or 0), self.ends[partition]))
        part = Part(self.options.topic, wanted, self.facts, lambda part: [(part, ())])
        tasks = plan_tasks([part], size_max=self.options.partition_size_max, min_count=self.options.min_partitions)
        return [Range(span.partition, span.start, span.end) for task in tasks for span in task.spans]

    def size_of(self, part: Range) -> int:
        """Bytes of a range, about."""
        return int((part.end - part.start) * self.facts.partitions[part.partition].message_size)


def open_topic(options: Mapping[str, str]) -> SourceTopic:
    """Look at a topic.

    Raises:
        OptionRefused: options that make no sense, or that name several topics.
        ReadFailed: there is no such topic.
        DataLost: it does not hold what the options ask for.
    """
    (chosen, *_), values = read_options(options, Use.BATCH)
    one_topic(values)
    source = source_of(chosen)
    facts = source.facts()
    places_of = places_in(chosen, source, facts)

    def spans_of(part: Range) -> tuple[Span, ...]:
        return tuple(Span(cut.partition, cut.start, cut.end, places) for cut, places in places_of(part))

    starts = resolve_start(chosen, source, facts, unnamed=EARLIEST)
    return SourceTopic(chosen, facts, starts, resolve_end(chosen, source, facts), spans_of)


def pieces_of(spans: tuple[Span, ...], options: ReadOptions) -> Iterator[tuple[Span, Piece]]:
    """In a task: all batches of some spans, and the span that each belongs to. Raises as ``read_span`` does."""
    rule = LossRule(options.name, fails=options.fail_on_data_loss)
    for span in spans:
        for piece in read_span(span, rule):
            if len(piece.records):
                yield span, piece
