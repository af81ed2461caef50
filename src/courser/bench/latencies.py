"""Latency histograms. Their memory does not grow with the length of a run.

The width of a bucket is at most a thousandth of its times. A percentile is the upper end of its bucket. Minimum,
maximum and mean are exact.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_PRECISION_BITS = 11
"""Leading bits of a time that tell its bucket."""


@dataclass(slots=True)
class Latencies:
    """The times of requests, in nanoseconds. Processes can send them to each other."""

    count: int = 0
    total: int = 0
    minimum: int = 0
    maximum: int = 0
    buckets: Counter[int] = field(default_factory=Counter)
    """How many times are in each bucket, by the shortest time of the bucket."""

    def add(self, nanoseconds: int) -> None:
        """Record the duration of one request."""
        # The clocks of two processes may differ slightly.
        time = max(nanoseconds, 0)
        shift = _width_bits(time)
        self.buckets[time >> shift << shift] += 1
        self.minimum = min(time, self.minimum) if self.count else time
        self.maximum = max(time, self.maximum)
        self.count += 1
        self.total += time

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> int:
        """The shortest time that at least this share of the requests did not exceed; 0 without requests."""
        # The small correction compensates for rounding: 0.999 of 1,000 requests are 999.
        wanted, seen = share * self.count - 1e-9, 0
        for bucket, count in sorted(self.buckets.items()):
            seen += count
            if seen >= wanted:
                upper_end = bucket + (1 << _width_bits(bucket)) - 1
                return min(max(upper_end, self.minimum), self.maximum)
        return self.maximum


def _width_bits(time: int) -> int:
    return max(time.bit_length() - _PRECISION_BITS, 0)


def merge(parts: Iterable[Latencies]) -> Latencies:
    """Combine what was recorded apart."""
    filled = [part for part in parts if part.count]
    return Latencies(
        sum(part.count for part in filled),
        sum(part.total for part in filled),
        min((part.minimum for part in filled), default=0),
        max((part.maximum for part in filled), default=0),
        sum((part.buckets for part in filled), Counter()),
    )
