"""The metrics of all processes of a server as one: what is counted is added up."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from courser.model import metric_table as m
from courser.model.metrics import AnyHistogram, Family, Labels, MetricKind, Registry, Sample

Snapshot: TypeAlias = Mapping[str, list[Sample]]
"""All time series of one process, by the name of the metric."""

_OF_THE_FIRST = frozenset(
    metric.name
    for metric in (m.CONNECTIONS, m.DISK_SIZE, m.DISK_FREE, m.DISK_USED, m.INFORMATION, m.START_TIME, m.PROCESS_UP)
)
"""What the first process knows for all: the list of connections, the disk, and the server itself."""
_LARGEST = frozenset(
    metric.name for metric in (m.DISK_FULL, m.DISK_BELOW_MINIMUM, m.SEGMENTS_MAX, m.ARCHIVE_OLDEST_AGE)
)
"""What is not a sum, but the largest value of any process."""
_GROWING = (MetricKind.COUNTER, MetricKind.HISTOGRAM)


def snapshot_of(registry: Registry) -> dict[str, list[Sample]]:
    """The current time series of one process."""
    return {family.metric.name: [copy.deepcopy(sample) for sample in family.samples] for family in registry.collect()}


def merged(registry: Registry, others: Iterable[Snapshot]) -> Iterator[Family]:
    """The metrics of the first process, and with them those of all others."""
    snapshots = tuple(others)
    for family in registry.collect():
        name = family.metric.name
        if name in _OF_THE_FIRST:
            yield family
            continue
        found: dict[Labels, float | AnyHistogram] = {}
        theirs = (sample for snapshot in snapshots for sample in snapshot.get(name, ()))
        for sample in (*family.samples, *theirs):
            known = found.get(sample.labels)
            found[sample.labels] = sample.value if known is None else _sum(name, known, sample.value)
        yield Family(family.metric, (Sample(labels, value) for labels, value in found.items()))


def grown(registry: Registry, retired: Snapshot, last: Snapshot) -> dict[str, list[Sample]]:
    """What ended processes have counted: it stays part of the sums, which must not decrease."""
    growing = {metric.name for metric in registry.metrics if metric.kind in _GROWING}
    sums: dict[str, list[Sample]] = {}
    for name in growing:
        found: dict[Labels, float | AnyHistogram] = {}
        for sample in (*retired.get(name, ()), *last.get(name, ())):
            known = found.get(sample.labels)
            found[sample.labels] = sample.value if known is None else _sum(name, known, sample.value)
        sums[name] = [Sample(labels, value) for labels, value in found.items()]
    return sums


def _sum(name: str, one: float | AnyHistogram, other: float | AnyHistogram) -> float | AnyHistogram:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return max(one, other) if name in _LARGEST else one + other
    assert not isinstance(one, int | float), "samples of one metric have one kind"
    assert not isinstance(other, int | float), "samples of one metric have one kind"
    both = copy.copy(one)
    both.counts = [count + more for count, more in zip(one.counts, other.counts, strict=True)]
    both.total = one.total + other.total
    return both
