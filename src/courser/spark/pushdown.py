"""Filters that Spark offers before a batch read: those on topic, partition, offset and time make ranges smaller.

Only what cannot match is left out; Spark applies every filter again to what is read. A reader that looks at filters
fails in a session where that is switched off, so there are two of them.
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

from courser.spark.batch_reader import BatchReader
from courser.spark.planning import Range
from courser.spark.read_options import ReadOptions
from courser.spark.topics import TopicSource

_MICROSECOND = 1_000_000
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Bounded:
    """What of a column can match: from ``first`` to ``last``, both included; None: no bound."""

    first: int | None = None
    last: int | None = None
    among: set[int] | None = None

    def at_least(self, value: int) -> None:
        """Nothing below it."""
        self.first = value if self.first is None else max(self.first, value)

    def at_most(self, value: int) -> None:
        """Nothing above it."""
        self.last = value if self.last is None else min(self.last, value)

    def only(self, values: Iterable[int]) -> None:
        """Nothing else."""
        self.among = set(values) if self.among is None else self.among & set(values)
        self.at_least(min(self.among, default=2**63 - 1))
        self.at_most(max(self.among, default=-1))


@dataclass(slots=True)
class Wanted:
    """What a query can want at all."""

    topics: set[str] | None = None
    """None: all."""
    partition: Bounded = field(default_factory=Bounded)
    offset: Bounded = field(default_factory=Bounded)
    timestamp: Bounded = field(default_factory=Bounded)

    def take(self, given: Filter) -> None:
        """Learn from a filter; from others nothing is learned."""
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

    def part_of(self, part: Range, source: TopicSource) -> Range | None:
        """What of a range can match."""
        among, first, last = self.partition.among, self.partition.first, self.partition.last
        if among is not None and part.partition not in among:
            return None
        if (first is not None and part.partition < first) or (last is not None and part.partition > last):
            return None
        start, end = part.start, part.end
        if self.offset.first is not None:
            start = max(start, self.offset.first)
        if self.offset.last is not None:
            end = min(end, self.offset.last + 1)
        if self.timestamp.first is not None:
            found = source.offset_at_time(part.partition, max(self.timestamp.first, 0))
            start = end if found is None else max(start, found)
        if self.timestamp.last is not None:
            found = source.offset_at_time(part.partition, max(self.timestamp.last + 1, 0))
            end = end if found is None else min(end, found)
        return Range(part.partition, start, end) if start < end else None


def _number(value: object) -> int:
    if isinstance(value, datetime):
        moment = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _BEGINNING
        return (moment.days * 86_400 + moment.seconds) * _MICROSECOND + moment.microseconds
    assert isinstance(value, int), "columns of numbers are compared with numbers"
    return value


class PushingReader(BatchReader):
    """A batch read that looks at filters."""

    def __init__(self, reads: Sequence[ReadOptions], schema: StructType) -> None:
        super().__init__(reads, schema)
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Learn from the filters. All of them are left to Spark as well."""
        for given in filters:
            self._wanted.take(given)
        return filters

    def wants(self, topic: str) -> bool:
        """Whether something of it can match."""
        return self._wanted.topics is None or topic in self._wanted.topics

    def narrowed(self, ranges: list[Range], source: TopicSource) -> list[Range]:
        """Only what can match."""
        parts = (self._wanted.part_of(part, source) for part in ranges)
        return [part for part in parts if part is not None]
