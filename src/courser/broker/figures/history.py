"""The main figures of the last hour, in a small ring: for charts without a monitoring system."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from courser.api.operating_replies import History, HistorySeries
from courser.broker.figures.scraping import Scrapes
from courser.model import metric_table as m
from courser.model.clock import Clock
from courser.model.metrics import Metric, MetricKind, Sample

INTERVAL = 10 * 1_000_000
"""Microseconds between two samples."""
_SAMPLE_COUNT_MAX = 360
"""An hour. A sample has some 20 numbers, so the ring takes less than half a MiB."""
_FRESH = 1_000_000
"""Microseconds for which a sample is taken for the present: however many ask, the server is measured once a second."""
_MICROSECONDS = 1_000_000


def _total(samples: Iterable[Sample]) -> float:
    return sum(sample.value if isinstance(sample.value, int | float) else sample.value.count for sample in samples)


def _highest(samples: Iterable[Sample]) -> float:
    return max((sample.value for sample in samples if isinstance(sample.value, int | float)), default=0.0)


def _duration(samples: Iterable[Sample]) -> float:
    """The sum of a histogram of seconds."""
    return sum(0 if isinstance(sample.value, int | float) else sample.value.sum for sample in samples)


@dataclass(frozen=True, slots=True)
class _Figure:
    """One series: where it comes from."""

    name: str
    metric: Metric
    read: Callable[[Iterable[Sample]], float] = _total
    unit: int = 1
    """What one of the metric's unit is in ours."""
    is_counter: bool = False


def _counter(name: str, metric: Metric, read: Callable[[Iterable[Sample]], float] = _total, unit: int = 1) -> _Figure:
    assert metric.kind is not MetricKind.GAUGE, "a gauge does not only increase"
    return _Figure(name, metric, read, unit, is_counter=True)


_FIGURES = (
    _counter("appended_messages", m.APPENDED_MESSAGES),
    _counter("appended_bytes", m.APPENDED_BYTES),
    _counter("polled_messages", m.POLLED_MESSAGES),
    _counter("polled_bytes", m.POLLED_BYTES),
    _counter("sync_count", m.SYNC_DURATION),
    _counter("sync_time", m.SYNC_DURATION, _duration, _MICROSECONDS),
    _counter("request_count", m.REQUEST_DURATION),
    _counter("request_time", m.REQUEST_DURATION, _duration, _MICROSECONDS),
    _counter("failed_requests", m.FAILED_REQUESTS),
    _counter("cpu_time", m.CPU_SECONDS, _total, _MICROSECONDS),
    _Figure("connections", m.CONNECTIONS),
    _Figure("lag_messages", m.GROUP_LAG),
    _Figure("lag_time", m.GROUP_LAG_SECONDS, _highest, _MICROSECONDS),
    _Figure("stored_messages", m.STORED_MESSAGES),
    _Figure("stored_bytes", m.STORED_BYTES),
    _Figure("disk_free", m.DISK_FREE),
    _Figure("disk_size", m.DISK_SIZE),
    _Figure("memory", m.MEMORY),
    _Figure("read_only_partitions", m.READ_ONLY),
    _Figure("damaged_polls", m.POLLS_DAMAGED),
    _Figure("archive_backlog", m.ARCHIVE_BACKLOG),
)


class FigureHistory:
    """Takes samples of all metrics. Used on one event loop."""

    def __init__(self, scrapes: Scrapes, clock: Clock) -> None:
        self._scrapes = scrapes
        self._clock = clock
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=_SAMPLE_COUNT_MAX)
        self._newest: tuple[int, tuple[int, ...]] | None = None
        """The last sample that somebody asked for; not part of the ring."""

    async def take(self) -> None:
        """Add a sample. To be called every ``INTERVAL``."""
        self._samples.append(await self._measure())

    async def since(self, time: int) -> History:
        """What is newer than a time, and a sample of now."""
        if self._newest is None or not 0 <= self._clock.now() - self._newest[0] < _FRESH:
            self._newest = await self._measure()
        samples = [sample for sample in self._samples if time < sample[0] < self._newest[0]]
        samples.append(self._newest)
        series = [
            HistorySeries(figure.name, figure.is_counter, tuple(values[index] for _, values in samples))
            for index, figure in enumerate(_FIGURES)
        ]
        return History(INTERVAL, tuple(at for at, _ in samples), series)

    async def _measure(self) -> tuple[int, tuple[int, ...]]:
        families = await self._scrapes.families()
        wanted = {figure.metric for figure in _FIGURES}
        samples = {family.metric: tuple(family.samples) for family in families if family.metric in wanted}
        values = (int(figure.read(samples.get(figure.metric, ())) * figure.unit) for figure in _FIGURES)
        return self._clock.now(), tuple(values)
