"""Metrics of a running server: one registry of counters, gauges and histograms.

Hot paths add to plain numbers. Everything else, including names and labels, happens when metrics are collected. All of
it runs on the thread of the event loop; work on other threads reports its values when it is done.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

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


class Counter:
    """A number that only increases: ``counter.value += 1``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


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

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound with the number of values that are not above it; the last bound is infinite."""
        count = 0
        for bound, in_bucket in zip((*self._bounds, float("inf")), self.counts, strict=True):
            count += in_bucket
            yield bound, count


DURATION_BOUNDS = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: from a sync on a fast disk to one that hangs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The current value of one time series."""

    labels: Labels
    value: float | Histogram


@dataclass(frozen=True, slots=True)
class Family:
    """All time series of one name."""

    name: str
    kind: MetricKind
    help: str
    samples: tuple[Sample, ...]


class LabeledCounters:
    """Counters of one name with labels. Beyond ``count_max``, all others share one counter."""

    def __init__(self, names: tuple[str, ...], count_max: int) -> None:
        self._names = names
        self._count_max = count_max
        self._counters: dict[tuple[str, ...], Counter] = {}

    def of(self, *values: str) -> Counter:
        """The counter with these label values. Keep it where it is used often."""
        assert len(values) == len(self._names), f"labels are {self._names}"
        counter = self._counters.get(values)
        if counter is None:
            if len(self._counters) >= self._count_max:
                values = (OTHER,) * len(values)
            counter = self._counters.setdefault(values, Counter())
        return counter

    def samples(self) -> Iterator[Sample]:
        """The current values of all."""
        for values, counter in self._counters.items():
            yield Sample(tuple(zip(self._names, values, strict=True)), counter.value)


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    kind: MetricKind
    help: str
    read: Callable[[], Iterable[Sample]]


class Registry:
    """All metrics of a server, by name. Created once and passed to the parts that count."""

    def __init__(self) -> None:
        self._metrics: dict[str, _Metric] = {}

    def counter(self, name: str, help: str) -> Counter:  # noqa: A002 - the word that monitoring systems use
        """A new counter without labels; its name ends in ``_total``."""
        counter = Counter()
        self.gauge(name, help, lambda: counter.value, kind=MetricKind.COUNTER)
        return counter

    def counters(self, name: str, help: str, *labels: str, count_max: int = SERIES_COUNT_MAX) -> LabeledCounters:  # noqa: A002
        """Counters of one name with labels."""
        counters = LabeledCounters(labels, count_max)
        self.collected(name, MetricKind.COUNTER, help, counters.samples)
        return counters

    def histogram(self, name: str, help: str, bounds: Sequence[float] = DURATION_BOUNDS) -> Histogram:  # noqa: A002
        """A new histogram; its name ends in a unit."""
        histogram = Histogram(bounds)
        self.collected(name, MetricKind.HISTOGRAM, help, lambda: (Sample((), histogram),))
        return histogram

    def gauge(
        self,
        name: str,
        help: str,  # noqa: A002
        read: Callable[[], float],
        *,
        kind: MetricKind = MetricKind.GAUGE,
    ) -> None:
        """A value that is kept elsewhere and read when metrics are collected."""
        self.collected(name, kind, help, lambda: (Sample((), read()),))

    def collected(self, name: str, kind: MetricKind, help: str, read: Callable[[], Iterable[Sample]]) -> None:  # noqa: A002
        """Time series that are created when metrics are collected, for example one for each partition."""
        assert _NAME.fullmatch(name), f"{name} is not a valid metric name"
        assert name not in self._metrics, f"metric {name} already exists"
        assert (kind is MetricKind.COUNTER) == name.endswith("_total"), f"{name}: counters end in _total, others do not"
        self._metrics[name] = _Metric(name, kind, help, read)

    def collect(self) -> Iterator[Family]:
        """The current metrics, one name after another; other work may run between two names."""
        for metric in tuple(self._metrics.values()):
            yield Family(metric.name, metric.kind, metric.help, tuple(metric.read()))

    def value(self, name: str, **labels: str) -> float:
        """One value; 0 if it was never counted. For the log, for statistics and for tests."""
        wanted = set(labels.items())
        values = [sample.value for sample in self._metrics[name].read() if wanted == set(sample.labels)]
        return sum(value.count if isinstance(value, Histogram) else value for value in values)
