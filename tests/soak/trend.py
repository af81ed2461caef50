"""Whether something stays flat. Pure: no clock, no files."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

PART_COUNT = 3
"""The last part of a run is compared with the first."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much more the end may have than the beginning: a factor, and an amount that is noise in any case."""

    factor: float
    amount: float

    def limit(self, first: float) -> float:
        return first * self.factor + self.amount


MEMORY_TOLERANCE = Tolerance(1.05, 4.0)
"""MiB."""
LATENCY_TOLERANCE = Tolerance(1.5, 5.0)
"""Milliseconds."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory over time."""

    first: float
    """MiB: the median of the first part."""
    last: float
    rise: float
    """MiB from begin to end, according to a straight line through all samples."""

    def violations(self) -> list[str]:
        limit = MEMORY_TOLERANCE.limit(self.first)
        found = []
        if self.last > limit:
            found.append(f"memory grew from {self.first:.1f} to {self.last:.1f} MiB; at most {limit:.1f} MiB allowed")
        if self.rise > limit - self.first:
            rise = f"{self.rise:.1f} MiB over the whole run; at most {limit - self.first:.1f} MiB allowed"
            found.append(f"memory has a slope of {rise}")
        return found


def part_of(moment: float, seconds: float) -> int:
    """The part of a run of so many seconds that a moment belongs to."""
    return min(max(int(moment * PART_COUNT / seconds), 0), PART_COUNT - 1)


def memory_of(samples: Sequence[tuple[float, float]], seconds: float) -> Memory:
    """Judge samples of seconds since the begin and MiB. There are some in each part."""
    parts: list[list[float]] = [[] for _ in range(PART_COUNT)]
    for moment, size in samples:
        parts[part_of(moment, seconds)].append(size)
    slope, _ = linear_regression([moment for moment, _ in samples], [size for _, size in samples])
    return Memory(median(parts[0]), median(parts[-1]), slope * seconds)


def latency_violations(percentiles: Sequence[float]) -> list[str]:
    """Judge the same percentile of each part, in milliseconds."""
    limit = LATENCY_TOLERANCE.limit(percentiles[0])
    if percentiles[-1] <= limit:
        return []
    return [
        f"p99.9 of sends grew from {percentiles[0]:.1f} to {percentiles[-1]:.1f} ms; at most {limit:.1f} ms allowed"
    ]
