"""The metrics of the registry in the form of OpenTelemetry.

The registry counts; the library only sends. So both ways to the metrics, this and ``/metrics``, show the same numbers.
"""

from collections.abc import Iterable
from itertools import pairwise

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from courser.model.metrics import Family, MetricKind, Sample

_CUMULATIVE = AggregationTemporality.CUMULATIVE
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
"""By the last word of a name, before ``_total``."""


def metric_of(family: Family, started_at: int, now: int) -> Metric:
    """All time series of one name. Times are in nanoseconds since 1970."""
    data: Sum | Gauge | HistogramPoints
    metric = family.metric
    if metric.kind is MetricKind.HISTOGRAM:
        data = HistogramPoints([_distribution(sample, started_at, now) for sample in family.samples], _CUMULATIVE)
    else:
        points = [
            NumberDataPoint(dict(sample.labels), started_at, now, sample.value)
            for sample in family.samples
            if isinstance(sample.value, int | float)
        ]
        is_counter = metric.kind is MetricKind.COUNTER
        data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    return Metric(metric.name, metric.help, _unit_of(metric.name), data)


def metrics_data(metrics: Iterable[Metric], resource: Resource, scope: InstrumentationScope) -> MetricsData:
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, list(metrics), "")], "")])


def _distribution(sample: Sample, started_at: int, now: int) -> HistogramDataPoint:
    histogram = sample.value
    assert not isinstance(histogram, int | float), "of a family of histograms"
    buckets = list(histogram.cumulative())
    counts = [count for _, count in buckets]
    return HistogramDataPoint(
        attributes=dict(sample.labels),
        start_time_unix_nano=started_at,
        time_unix_nano=now,
        count=histogram.count,
        sum=histogram.sum,
        bucket_counts=[count - before for before, count in pairwise((0, *counts))],
        explicit_bounds=[bound for bound, _ in buckets[:-1]],
        # The registry does not keep the extremes.
        min=float("inf"),
        max=float("-inf"),
    )


def _unit_of(name: str) -> str:
    return _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")
