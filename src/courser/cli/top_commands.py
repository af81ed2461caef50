"""``courser top``: what the server is doing now, on a page that is drawn anew every few seconds."""

import asyncio
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

import click

from courser.cli.connecting import ask_server
from courser.cli.fields import ABSENT, Record, as_size, fields, size_text
from courser.cli.lag import as_age
from courser.cli.options import option
from courser.cli.output import Section, emit_thing
from courser.cli.server_options import server_command
from courser.cli.terminal import flush
from courser.client.client import Client
from courser.model import metric_table as m
from courser.model.metrics import Labels, Metric
from courser.wire.prometheus import decode_series

# --- rates, trends and the slowest commands, from two readings of the metrics ---

_MILLISECONDS = 1000
_TAIL = 0.99


@dataclass(frozen=True, slots=True)
class MetricValues:
    """The metrics of one moment."""

    seconds: float
    """By any clock that only goes forward."""
    values: Mapping[tuple[str, Labels], float]

    @classmethod
    def of(cls, text: str, seconds: float) -> "MetricValues":
        """The metrics in a text."""
        return cls(seconds, {(series.name, series.labels): series.value for series in decode_series(text)})

    def value(self, metric: Metric) -> float:
        """The value of a metric, summed over its labels."""
        return sum(value for (name, _), value in self.values.items() if name == metric.name)

    def rows(self, name: str) -> dict[Labels, float]:
        """All time series of a name."""
        return {labels: value for (found, labels), value in self.values.items() if found == name}


@dataclass(frozen=True, slots=True)
class MetricChange:
    """Two readings of one server."""

    before: MetricValues
    after: MetricValues

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


def figures(found: MetricChange) -> Record:
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


def _groups(found: MetricChange) -> list[Record]:
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


def _topics(found: MetricChange) -> list[Record]:
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


def _commands(found: MetricChange) -> list[Record]:
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


def _blocks(found: MetricChange) -> list[Record]:
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


def _tail(found: MetricChange, metric: Metric) -> float | None:
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


# --- the page ---

_ROW_COUNT_MIN = 3
_LINES_OF_TITLE = 2
_TREND_MIN = 0.05
"""Messages per second: a lag that changes less is called steady."""


def _as_rate(value: object) -> str:
    if not isinstance(value, int | float):
        return ABSENT
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:.1f}/s"


def _as_size_rate(value: object) -> str:
    return f"{size_text(int(value))}/s" if isinstance(value, int | float) else ABSENT


def _as_milliseconds(value: object) -> str:
    return f"{value:.2f} ms" if isinstance(value, int | float) else ABSENT


def _as_bound(value: object) -> str:
    return f"< {value:.2f} ms" if isinstance(value, int | float) else ABSENT


def _as_percent(value: object) -> str:
    return f"{value * 100:.0f} %" if isinstance(value, int | float) else ABSENT


def _as_trend(value: object) -> str:
    if not isinstance(value, int | float) or abs(value) < _TREND_MIN:
        return "steady"
    return f"{'grows' if value > 0 else 'shrinks'} {abs(value):,.1f}/s"


_FACTS = fields(
    "messages_in_per_second=messages in, bytes_in_per_second=bytes in, messages_out_per_second=messages out, "
    "bytes_out_per_second=bytes out, failures_per_second=failed requests, connections, partitions, "
    "partitions_read_only=read-only partitions, unsynced_size=not synced, disk_used, disk_size, processor, memory, "
    "sync_milliseconds=syncs (p99), loop_delay_milliseconds=event loop delay (p99)",
    bytes_in_per_second=_as_size_rate,
    bytes_out_per_second=_as_size_rate,
    per_second=_as_rate,
    milliseconds=_as_bound,
    disk_used=as_size,
    processor=_as_percent,
)
_SECTIONS = (
    Section(
        "groups",
        fields(
            "stream, topic, group, lag#, lag_seconds=behind#, growth_per_second=trend/1",
            lag_seconds=as_age,
            growth_per_second=_as_trend,
        ),
    ),
    Section(
        "commands",
        fields(
            "command, per_second=rate#, mean_milliseconds=mean#, p99_milliseconds=p99#",
            per_second=_as_rate,
            mean_milliseconds=_as_milliseconds,
            p99_milliseconds=_as_bound,
        ),
    ),
    Section(
        "blocks",
        fields(
            "kind=event loop blocked by, name, per_second=rate#, milliseconds_per_second=time per second#",
            milliseconds_per_second=_as_milliseconds,
            per_second=_as_rate,
        ),
    ),
    Section(
        "topics",
        fields(
            "stream, topic, messages_in_per_second=messages in#, bytes_in_per_second=bytes in#, "
            "bytes_out_per_second=bytes out#/1",
            messages_in_per_second=_as_rate,
            per_second=_as_size_rate,
        ),
    ),
)


@server_command("top", "courser top", "courser top --interval 5", "courser top --once", "courser top -o jsonl")
@option(
    "-i, --interval SECONDS",
    "The time between two readings: rates are averages over it.",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
)
@option("--once", "Print one report and exit. This is the default without a terminal.")
def top_command(*, interval: float, once: bool, output: str) -> None:
    """Show what the server is doing now: rates, lag and its trend, the slowest commands, the disk.

    The page is drawn anew until Ctrl-C. With -o jsonl, one line is printed for each reading. Needs the permission to
    read the server.
    """
    is_page = output == "table" and sys.stdout.isatty() and not once
    is_endless = is_page or (output == "jsonl" and not once)

    def show(record: Record) -> None:
        if is_page:
            click.clear()
        emit_thing(_FACTS, _shortened(record) if output == "table" else record, output, _SECTIONS)
        flush()

    ask_server(lambda client: _watch(client, interval, show, is_endless=is_endless), is_patient=is_endless)


async def _watch(client: Client, interval: float, show: Callable[[Record], None], *, is_endless: bool) -> None:
    before = await _read(client)
    while True:
        await asyncio.sleep(interval)
        after = await _read(client)
        show(figures(MetricChange(before, after)))
        if not is_endless:
            return
        before = after


async def _read(client: Client) -> MetricValues:
    return MetricValues.of(await client.get_metrics(), time.monotonic())


def _shortened(record: Record) -> Record:
    """With as many rows of each list as fit on the terminal, and a few in any case."""
    room = shutil.get_terminal_size().lines - len(_FACTS) - 1
    count = max(room // len(_SECTIONS) - _LINES_OF_TITLE, _ROW_COUNT_MIN)
    return {key: value[:count] if isinstance(value, list) else value for key, value in record.items()}
