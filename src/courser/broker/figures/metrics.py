"""The metrics of a broker, by name.

To add one, declare it in ``model/metric_table``. If it is counted as things happen, take a ``Counter`` or ``Histogram``
from the registry and hand it to the part that counts. If it can be read off, add a line here.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from courser import __version__
from courser.api import commands as c
from courser.broker.figures.statistics import Machine, MachineFigures
from courser.broker.messages.consuming import PollCounters
from courser.broker.partition.disk_watch import DiskWatch
from courser.broker.partition.partition_survey import PartitionSurvey
from courser.broker.publishing.staging import Staging
from courser.broker.upkeep.retention import DeletionReason, RetentionCounters
from courser.errors import CourserError
from courser.model import metric_table as m
from courser.model.metrics import MICROSECOND, REQUEST_POWERS, Metric, PowerHistogram, Registry, Sample

_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class CountingParts:
    """The parts of a broker that keep figures."""

    survey: PartitionSurvey
    polls: PollCounters
    retention: RetentionCounters
    staging: Staging
    disk_watch: DiskWatch


def register_broker_metrics(registry: Registry, parts: CountingParts) -> None:
    """Name the figures that the parts of a broker keep."""
    parts.survey.register(registry)
    polls, retention, staging = parts.polls, parts.retention, parts.staging
    registry.value_of(m.POLLS_BELOW_START, lambda: polls.gone_count)
    registry.value_of(m.POLLS_DAMAGED, lambda: polls.damaged_count)
    registry.value_of(m.STAGED_BYTES, lambda: staging.size)
    registry.value_of(m.STAGED_PARTS, lambda: staging.part_count)
    registry.value_of(m.DISK_FULL, lambda: int(parts.disk_watch.is_full))
    registry.value_of(m.DISK_BELOW_MINIMUM, lambda: int(parts.disk_watch.refusal is not None))

    registry.collected(m.RETENTION_MESSAGES, lambda: _by_reason(m.RETENTION_MESSAGES, retention.message_count))
    registry.collected(m.RETENTION_BYTES, lambda: _by_reason(m.RETENTION_BYTES, retention.size))
    registry.collected(m.SEGMENTS_DELETED, lambda: _segments_deleted(retention, parts.survey))


def _by_reason(metric: Metric, counts: Mapping[DeletionReason, int]) -> Iterator[Sample]:
    return (Sample(metric.labeled(reason.value), counts.get(reason, 0)) for reason in DeletionReason)


def _segments_deleted(retention: RetentionCounters, survey: PartitionSurvey) -> Iterator[Sample]:
    yield from _by_reason(m.SEGMENTS_DELETED, retention.segment_count)
    yield Sample(m.SEGMENTS_DELETED.labeled("purged"), survey.counters.segment_purged_count)
    yield Sample(m.SEGMENTS_DELETED.labeled("dropped"), survey.counters.segment_dropped_count)


class MachineSurvey:
    """Measures the process and the disk before each scrape, in the pool: a disk that hangs must not stop all."""

    def __init__(self, machine: Machine, pool: Executor) -> None:
        self._machine = machine
        self._pool = pool
        self._figures: MachineFigures | None = None

    async def run(self) -> None:
        """Measure the machine."""
        self._figures = await asyncio.get_running_loop().run_in_executor(self._pool, self._machine.measure)

    def register(self, registry: Registry) -> None:
        """Name what is measured."""
        registry.surveys.append(self.run)
        for metric, read in _MACHINE:
            registry.collected(metric, partial(self._sample, read))
        registry.value_of(m.CPU_SECONDS, lambda: sum(os.times()[:2]))
        registry.value_of(m.START_TIME, lambda: self._machine.started_at / _SECOND)
        registry.collected(m.INFORMATION, lambda: (Sample(m.INFORMATION.labeled(__version__), 1),))

    def _sample(self, read: Callable[[MachineFigures], float]) -> Iterator[Sample]:
        """A figure, once it was measured: a wrong 0 would look like a full disk."""
        if self._figures is not None:
            yield Sample((), read(self._figures))


_MACHINE: tuple[tuple[Metric, Callable[[MachineFigures], float]], ...] = (
    (m.DISK_SIZE, lambda found: found.total_disk_space),
    (m.DISK_FREE, lambda found: found.free_disk_space),
    (m.DISK_USED, lambda found: found.total_disk_space - found.free_disk_space),
    (m.MEMORY, lambda found: found.memory_usage),
    (m.THREADS, lambda found: found.thread_count),
)


class RequestMetrics:
    """How long the requests of all transports take and why they fail, by command. The dispatcher adds to it."""

    def __init__(self, registry: Registry) -> None:
        self._durations: dict[type[c.Command], PowerHistogram] = {}
        self._failures = registry.counters(m.FAILED_REQUESTS)
        registry.collected(m.REQUEST_DURATION, self._samples)

    def durations_of(self, command: type[c.Command]) -> PowerHistogram:
        """For one command, in microseconds."""
        return self._durations.setdefault(command, PowerHistogram(REQUEST_POWERS, MICROSECOND))

    def note_failure(self, command: c.Command, error: CourserError) -> None:
        """A request was refused, or failed."""
        self._failures.of(type(command).__name__, error.code.name.lower()).value += 1

    def _samples(self) -> Iterator[Sample]:
        """The durations of the commands that were used."""
        for command, durations in self._durations.items():
            if durations.count:
                yield Sample(m.REQUEST_DURATION.labeled(command.__name__), durations)
