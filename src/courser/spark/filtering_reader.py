"""A batch read that accepts filters.

Filters on topic, partition, offset and timestamp narrow the ranges to read. Only messages that cannot match are left
out; Spark applies every filter again to the rows. Spark rejects a reader that accepts filters if pushdown is disabled
in the session, so this is a reader of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from courser.client.messages import microseconds
from courser.spark.batch_reader import BatchReader
from courser.spark.read_options import ReadOptions
from courser.spark.sources import OffsetRange
from courser.spark.topic_metadata import TopicMetadata


@dataclass(slots=True)
class ColumnBounds:
    """The values of a column that can match: from ``first`` to ``last``, inclusive; None: unbounded."""

    first: int | None = None
    last: int | None = None
    among: set[int] | None = None

    def at_least(self, value: int) -> None:
        self.first = value if self.first is None else max(self.first, value)

    def at_most(self, value: int) -> None:
        self.last = value if self.last is None else min(self.last, value)

    def only(self, values: Iterable[int]) -> None:
        """Exclude all other values."""
        self.among = set(values) if self.among is None else self.among & set(values)
        self.at_least(min(self.among, default=2**63 - 1))
        self.at_most(max(self.among, default=-1))


@dataclass(slots=True)
class FilterBounds:
    """What the filters of a query leave to be read."""

    topics: set[str] | None = None
    """None: all."""
    partition: ColumnBounds = field(default_factory=ColumnBounds)
    offset: ColumnBounds = field(default_factory=ColumnBounds)
    timestamp: ColumnBounds = field(default_factory=ColumnBounds)

    def take(self, given: Filter) -> None:
        """Narrow the bounds by a filter. Filters of other kinds or on other columns change nothing."""
        column = getattr(given, "attribute", ("",))
        if column == ("topic",):
            self._take_topics(given)
            return
        bounded = {"partition": self.partition, "offset": self.offset, "timestamp": self.timestamp}.get(column[0])
        if bounded is None or len(column) != 1:
            return
        match given:
            case EqualTo() | EqualNullSafe() if given.value is not None:
                bounded.only([_number(given.value)])
            case In():
                bounded.only(_number(value) for value in given.value if value is not None)
            case GreaterThan():
                bounded.at_least(_number(given.value) + 1)
            case GreaterThanOrEqual():
                bounded.at_least(_number(given.value))
            case LessThan():
                bounded.at_most(_number(given.value) - 1)
            case LessThanOrEqual():
                bounded.at_most(_number(given.value))

    def _take_topics(self, given: Filter) -> None:
        match given:
            case EqualTo() | EqualNullSafe():
                named = {given.value}
            case In():
                named = set(given.value)
            case _:
                return
        self.topics = named if self.topics is None else self.topics & named

    def part_of(self, wanted: OffsetRange, metadata: TopicMetadata) -> OffsetRange | None:
        """The part of a range that can match; None if nothing can."""
        among, first, last = self.partition.among, self.partition.first, self.partition.last
        if among is not None and wanted.partition not in among:
            return None
        if (first is not None and wanted.partition < first) or (last is not None and wanted.partition > last):
            return None
        start, end = wanted.start, wanted.end
        if self.offset.first is not None:
            start = max(start, self.offset.first)
        if self.offset.last is not None:
            end = min(end, self.offset.last + 1)
        if self.timestamp.first is not None:
            found = metadata.offset_at_time(wanted.partition, max(self.timestamp.first, 0))
            start = end if found is None else max(start, found)
        if self.timestamp.last is not None:
            found = metadata.offset_at_time(wanted.partition, max(self.timestamp.last + 1, 0))
            end = end if found is None else min(end, found)
        return OffsetRange(wanted.partition, start, end) if start < end else None


def _number(value: object) -> int:
    if isinstance(value, datetime):
        return microseconds(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    assert isinstance(value, int), "Spark compares number columns with numbers"
    return value


class FilteringReader(BatchReader):
    """A batch reader that accepts filters."""

    def __init__(self, reads: Sequence[ReadOptions], schema: StructType) -> None:
        super().__init__(reads, schema)
        self._wanted = FilterBounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use the filters to read less. All of them are returned, so that Spark applies them too."""
        for given in filters:
            self._wanted.take(given)
        return filters

    def wants(self, topic: str) -> bool:
        """Whether any message of the topic can match."""
        return self._wanted.topics is None or topic in self._wanted.topics

    def narrowed(self, ranges: list[OffsetRange], metadata: TopicMetadata) -> list[OffsetRange]:
        """The parts of the ranges that can match."""
        parts = (self._wanted.part_of(wanted, metadata) for wanted in ranges)
        return [part for part in parts if part is not None]
