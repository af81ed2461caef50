"""The figures of ``courser top``: rates, trends and the slowest commands, from two readings of the metrics."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from courser.cli.fields import Record
from courser.model import metric_table as m
from courser.model.metrics import Labels, Metric
from courser.wire.prometheus import decode_series

_MILLISECONDS = 1000
_TAIL = 0.99


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of one moment."""

    seconds: float
    """By any clock that only goes forward."""
    values: Mapping[tuple[str, Labels], float]

    @classmethod
    def of(cls, text: str, seconds: float) -> "Reading":
        """The metrics in a text."""
        return cls(seconds, {(series.name, series.labels): series.value for series in decode_series(text)})

    def value(self, metric: Metric) -> float:
        """The value of a metric, summed over its labels."""
        return sum(value for (name, _), value in self.values.items() if name == metric.name)

    def rows(self, name: str) -> dict[Labels, float]:
        """All time series of a name."""
        return {labels: value for (found, labels), value in self.values.items() if found == name}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two readings of one server."""

    before: Reading
    after: Reading

    @property
    def seconds(self) -> float:
        """The time between them."""
        return max(self.after.seconds - self.before.seconds, 0.001)

    def rate(self, metric: Metric) -> float:
        """How much a counter has grown, per second. Never negative: the server may have been restarted."""
        return max(self.after.value(metric) - self.before.value(metric), 0) / self.seconds

    def growth(self, name: str) -> dict[Labels, float]:
        """How much each time series of a name has grown."""
        before = self.before.rows(name)
        return {labels: value - before.get(labels, 0) for labels, value in self.after.rows(name).items()}


def figures(found: Comparison) -> Record:
    """Everything, as one record."""
    after = found.after
    return {
        "messages_in_per_second": found.rate(m.APPENDED_MESSAGES),
        "bytes_in_per_second": found.rate(m.APPENDED_BYTES),
        "messages_out_per_second": found.rate(m.POLLED_MESSAGES),
        "bytes_out_per_second": found.rate(m.POLLED_BYTES),
        "failures_per_second": found.rate(m.FAILED_REQUESTS),
        "connections": int(after.value(m.CONNECTIONS)),
        "partitions": int(after.value(m.PARTITIONS)),
        "partitions_read_only": int(after.value(m.READ_ONLY)),
        "unsynced_size": int(after.value(m.UNSYNCED_BYTES)),
        "disk_used": int(after.value(m.DISK_USED)),
        "disk_size": int(after.value(m.DISK_SIZE)),
        "processor": found.rate(m.CPU_SECONDS),
        "memory": int(after.value(m.MEMORY)),
        "sync_milliseconds": _tail(found, m.SYNC_DURATION),
        "loop_delay_milliseconds": _tail(found, m.LOOP_DELAY),
        "groups": _groups(found),
        "topics": _topics(found),
        "commands": _commands(found),
        "blocks": _blocks(found),
    }


def _groups(found: Comparison) -> list[Record]:
    """Lag by group, the largest first."""
    lags, ages, trends = (defaultdict[tuple[str, ...], float](float) for _ in range(3))
    for labels, value in found.after.rows(m.GROUP_LAG.name).items():
        lags[_without_partition(labels)] += value
    for labels, value in found.growth(m.GROUP_LAG.name).items():
        trends[_without_partition(labels)] += value
    for labels, value in found.after.rows(m.GROUP_LAG_SECONDS.name).items():
        group = _without_partition(labels)
        ages[group] = max(ages[group], value)
    rows: Iterable[Record] = (
        {
            "stream": group[0],
            "topic": group[1],
            "group": group[2],
            "lag": int(lag),
            "lag_seconds": ages.get(group),
            "growth_per_second": trends[group] / found.seconds,
        }
        for group, lag in lags.items()
    )
    return _sorted(rows, "lag")


def _topics(found: Comparison) -> list[Record]:
    """Bytes by topic, the busiest first."""
    sizes_in, sizes_out, counts_in = (defaultdict[tuple[str, ...], float](float) for _ in range(3))
    for metric, sums in (
        (m.PARTITION_APPENDED_BYTES, sizes_in),
        (m.PARTITION_POLLED_BYTES, sizes_out),
        (m.PARTITION_APPENDED_MESSAGES, counts_in),
    ):
        for labels, grown in found.growth(metric.name).items():
            sums[_without_partition(labels)] += max(grown, 0) / found.seconds
    rows: Iterable[Record] = (
        {
            "stream": topic[0],
            "topic": topic[1],
            "messages_in_per_second": counts_in[topic],
            "bytes_in_per_second": size_in,
            "bytes_out_per_second": sizes_out[topic],
            "bytes_per_second": size_in + sizes_out[topic],
        }
        for topic, size_in in sizes_in.items()
    )
    return _sorted(rows, "bytes_per_second")


def _commands(found: Comparison) -> list[Record]:
    """Requests by command, the slowest first."""
    name = m.REQUEST_DURATION.name
    sums = found.growth(f"{name}_sum")
    rows: list[Record] = []
    for labels, count in found.growth(f"{name}_count").items():
        if count > 0:
            buckets = [
                (float(dict(bucket)["le"]), grown)
                for bucket, grown in found.growth(f"{name}_bucket").items()
                if set(labels) <= set(bucket)
            ]
            rows.append(
                {
                    "command": dict(labels)["command"],
                    "per_second": count / found.seconds,
                    "mean_milliseconds": sums[labels] / count * _MILLISECONDS,
                    "p99_milliseconds": _quantile(buckets, count),
                }
            )
    return _sorted(rows, "p99_milliseconds")


def _blocks(found: Comparison) -> list[Record]:
    """Who blocked the event loop, the longest first."""
    counts = found.growth(m.LOOP_BLOCKS.name)
    rows: Iterable[Record] = (
        {
            "kind": dict(labels)["kind"],
            "name": dict(labels)["name"],
            "per_second": counts.get(labels, 0) / found.seconds,
            "milliseconds_per_second": seconds * _MILLISECONDS / found.seconds,
        }
        for labels, seconds in found.growth(m.LOOP_BLOCKED_SECONDS.name).items()
        if seconds > 0
    )
    return _sorted(rows, "milliseconds_per_second")


def _tail(found: Comparison, metric: Metric) -> float | None:
    """The 99th percentile of a histogram without labels, in milliseconds; None if nothing was measured."""
    buckets = [(float(dict(labels)["le"]), grown) for labels, grown in found.growth(f"{metric.name}_bucket").items()]
    return _quantile(buckets, max((grown for _, grown in buckets), default=0))


def _quantile(buckets: list[tuple[float, float]], count: float) -> float | None:
    """The bound of the bucket with the 99th percentile, in milliseconds; None beyond the last bound."""
    reached = [bound for bound, grown in buckets if grown >= count * _TAIL and bound != inf] if count > 0 else []
    return min(reached) * _MILLISECONDS if reached else None


def _without_partition(labels: Labels) -> tuple[str, ...]:
    return tuple(value for name, value in labels if name != "partition")


def _sorted(rows: Iterable[Record], key: str) -> list[Record]:
    """Descending; what is beyond all bounds comes first."""

    def rank(row: Record) -> float:
        value = row[key]
        return value if isinstance(value, int | float) else inf

    return sorted(rows, key=rank, reverse=True)
