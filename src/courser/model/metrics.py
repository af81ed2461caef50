"""Metrics of a running server: one registry of counters, gauges and histograms.

Hot paths add to plain numbers. Everything else, including names and labels, happens when metrics are collected. All of
it runs on the thread of the event loop; work on other threads reports its values when it is done.
"""

import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order of their declaration."""

OTHER = "other"
"""The label value for everything that is counted after the limit of a family was reached."""
SERIES_COUNT_MAX = 1000
"""Default limit of time series per name: clients must not be able to flood a monitoring system."""
_NAME = re.compile(r"courser_[a-z][a-z0-9_]*")


class MetricKind(Enum):
    """The kind of a metric."""

    COUNTER = "counter"
    """Only increases, until a restart."""
    GAUGE = "gauge"
    """Increases and decreases."""
    HISTOGRAM = "histogram"
    """The distribution of durations or sizes."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as it is declared: see ``metric_table``."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), f"{self.name} is not a valid metric name"
        is_counter = self.kind is MetricKind.COUNTER
        assert is_counter == self.name.endswith("_total"), f"{self.name}: counters end in _total, others do not"

    def labeled(self, *values: str) -> Labels:
        """These values, with the names of the labels."""
        return tuple(zip(self.labels, values, strict=True))


class Counter:
    """A number that only increases: ``counter.value += 1``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """The distribution of values over buckets."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert all(low < high for low, high in pairwise(bounds)), "bounds grow"
        self._bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """Values in each bucket; the last one has no upper bound."""
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        """Add one value. A value equal to a bound is counted below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self.counts)

    @property
    def sum(self) -> float:
        """The sum of all values, in the unit of the metric."""
        return self.total

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound with the number of values that are not above it; the last bound is infinite."""
        count = 0
        for bound, in_bucket in zip((*self._bounds, float("inf")), self.counts, strict=True):
            count += in_bucket
            yield bound, count


class PowerHistogram:
    """The distribution of whole numbers over powers of two, for the path of every request: it takes no search.

    Such a path adds a number by itself, because a call would take longer than the addition::

        histogram.counts[number.bit_length()] += 1
        histogram.total += number
    """

    __slots__ = ("_powers", "_unit", "counts", "total")

    def __init__(self, powers: range, unit: float) -> None:
        """``powers`` are those of the bounds; a number counts ``unit`` in the unit of the metric."""
        self._powers = powers
        self._unit = unit
        self.counts = [0] * 65
        """By the number of bits: those with ``n`` bits are below 2 to the power of ``n``."""
        self.total = 0
        """The sum of all numbers."""

    def observe(self, number: int) -> None:
        """Add one number, which is not negative."""
        self.counts[number.bit_length()] += 1
        self.total += number

    @property
    def count(self) -> int:
        """How many numbers were added."""
        return sum(self.counts)

    @property
    def sum(self) -> float:
        """The sum of all values, in the unit of the metric."""
        return self.total * self._unit

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound with the number of values below it; the last bound is infinite."""
        for power in self._powers:
            yield 2**power * self._unit, sum(self.counts[: power + 1])
        yield float("inf"), sum(self.counts)


AnyHistogram: TypeAlias = Histogram | PowerHistogram

DURATION_BOUNDS = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: from a sync on a fast disk to one that hangs."""
REQUEST_POWERS = range(6, 25)
"""Of microseconds: from 64 us to 17 s."""
SIZE_POWERS = range(8, 27)
"""Of bytes: from the smallest batch to the largest, 64 MiB."""
COUNT_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MICROSECOND = 0.000_001


@dataclass(frozen=True, slots=True)
class Sample:
    """The current value of one time series."""

    labels: Labels
    value: float | AnyHistogram


@dataclass(frozen=True, slots=True)
class Family:
    """All time series of one name. Its samples can be read once, with pauses in between."""

    metric: Metric
    samples: Iterator[Sample]


class LabeledCounters:
    """Counters of one name with labels. Beyond ``count_max``, all others share one counter."""

    def __init__(self, metric: Metric, count_max: int) -> None:
        self._metric = metric
        self._count_max = count_max
        self._counters: dict[tuple[str, ...], Counter] = {}

    def of(self, *values: str) -> Counter:
        """The counter with these label values. Keep it where it is used often."""
        assert len(values) == len(self._metric.labels), f"labels are {self._metric.labels}"
        counter = self._counters.get(values)
        if counter is None:
            if len(self._counters) >= self._count_max:
                values = (OTHER,) * len(values)
            counter = self._counters.setdefault(values, Counter())
        return counter

    def samples(self) -> Iterator[Sample]:
        """The current values of all."""
        for values, counter in tuple(self._counters.items()):
            yield Sample(self._metric.labeled(*values), counter.value)


@dataclass(frozen=True, slots=True)
class _Source:
    metric: Metric
    read: Callable[[], Iterable[Sample]]


class Registry:
    """All metrics of a server, by name. Created once and passed to the parts that count."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self.surveys: list[Callable[[], Awaitable[None]]] = []
        """Work to be done before metrics are collected, for figures that nobody keeps. Each pauses now and then."""

    def counter(self, metric: Metric) -> Counter:
        """A new counter without labels."""
        counter = Counter()
        self.value_of(metric, lambda: counter.value)
        return counter

    def counters(self, metric: Metric, *, count_max: int = SERIES_COUNT_MAX) -> LabeledCounters:
        """Counters of one name with labels."""
        counters = LabeledCounters(metric, count_max)
        self.collected(metric, counters.samples)
        return counters

    def histogram(self, metric: Metric, bounds: Sequence[float] = DURATION_BOUNDS) -> Histogram:
        histogram = Histogram(bounds)
        self.collected(metric, lambda: (Sample((), histogram),))
        return histogram

    def value_of(self, metric: Metric, read: Callable[[], float]) -> None:
        """A value that is kept elsewhere and read when metrics are collected."""
        self.collected(metric, lambda: (Sample((), read()),))

    def collected(self, metric: Metric, read: Callable[[], Iterable[Sample]]) -> None:
        """Time series that are created when metrics are collected, for example one for each partition.

        Other work may run between two samples: ``read`` must not go through something that changes.
        """
        assert metric.name not in self._sources, f"metric {metric.name} already exists"
        self._sources[metric.name] = _Source(metric, read)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(source.metric for source in self._sources.values())

    def collect(self) -> Iterator[Family]:
        """The current metrics, one name after another. Values that need one are as of the last survey."""
        for source in tuple(self._sources.values()):
            yield Family(source.metric, iter(source.read()))

    def samples(self, metric: Metric) -> Iterable[Sample]:
        """The time series of one metric. A value that needs one is as of the last survey."""
        return self._sources[metric.name].read()

    def value(self, metric: Metric, **labels: str) -> float:
        """One value; 0 if it was never counted. For the log, for statistics and for tests."""
        wanted = set(labels.items())
        values = [sample.value for sample in self._sources[metric.name].read() if wanted == set(sample.labels)]
        return sum(value if isinstance(value, int | float) else value.count for value in values)
