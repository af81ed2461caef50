"""Latency histograms. Their memory does not grow with the length of a run.

The width of a bucket is at most a thousandth of its times. A percentile is the upper end of its bucket. Minimum,
maximum and mean are exact.
"""

from array import array
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

_PRECISION_BITS = 10
_HALF = 1 << _PRECISION_BITS
"""Buckets for each power of two."""
_BUCKET_COUNT = (64 - _PRECISION_BITS) * _HALF
_FRESH_COUNT = 32 * 1024
"""How many times are collected before they are sorted into buckets."""

Counts = npt.NDArray[np.int64]


class Tally(msgspec.Struct, frozen=True):
    """The contents of a recorder, for another process."""

    count: int
    total: int
    """Nanoseconds, like all times here."""
    minimum: int
    maximum: int
    buckets: bytes
    """The numbers of all nonempty buckets, then their counts, as 64-bit integers."""


class Recorder:
    """Records times in nanoseconds, on one thread."""

    def __init__(self) -> None:
        self._fresh = array("q")
        self._counts: Counts = np.zeros(_BUCKET_COUNT, np.int64)
        self._total = 0
        self._minimum = 2**63 - 1
        self._maximum = 0

    def add(self, nanoseconds: int) -> None:
        """Record the duration of one request."""
        fresh = self._fresh
        fresh.append(nanoseconds)
        if len(fresh) >= _FRESH_COUNT:
            self._fold()

    def _fold(self) -> None:
        times = np.frombuffer(self._fresh, np.int64) if self._fresh else np.zeros(0, np.int64)
        if not len(times):
            return
        # The clocks of two processes may differ slightly.
        times = np.maximum(times, 0)
        self._counts += np.bincount(_bucket_of(times), minlength=_BUCKET_COUNT)
        self._total += int(times.sum())
        self._minimum = min(self._minimum, int(times.min()))
        self._maximum = max(self._maximum, int(times.max()))
        self._fresh = array("q")

    def tally(self) -> Tally:
        """What was recorded so far."""
        self._fold()
        (used,) = np.nonzero(self._counts)
        counts = self._counts[used]
        buckets = used.astype("<i8").tobytes() + counts.astype("<i8").tobytes()
        return Tally(int(counts.sum()), self._total, self._minimum, self._maximum, buckets)


def _bucket_of(times: Counts) -> Counts:
    _, bit_lengths = np.frexp(times.astype(np.float64))
    shifts = np.maximum(bit_lengths.astype(np.int64) - _PRECISION_BITS - 1, 0)
    buckets: Counts = shifts * _HALF + (times >> shifts)
    return buckets


def _upper_end(bucket: int) -> int:
    """The longest time in a bucket."""
    shift = max(bucket // _HALF - 1, 0)
    return ((bucket - shift * _HALF + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class Distribution:
    """The times of many requests, from one or more recorders."""

    count: int
    total: int
    minimum: int
    maximum: int
    counts: Counts

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> int:
        """The shortest time that at least this share of the requests did not exceed; 0 without requests."""
        if not self.count:
            return 0
        # The small correction compensates for rounding: 0.999 of 1,000 requests are 999.
        rank = max(int(np.ceil(share * self.count - 1e-9)), 1)
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(max(_upper_end(bucket), self.minimum), self.maximum)


def merge(tallies: "list[Tally]") -> Distribution:
    """Combine the contents of several recorders."""
    counts: Counts = np.zeros(_BUCKET_COUNT, np.int64)
    for tally in tallies:
        numbers, found = np.frombuffer(tally.buckets, "<i8").reshape(2, -1)
        counts[numbers] += found
    filled = [tally for tally in tallies if tally.count]
    return Distribution(
        sum(tally.count for tally in filled),
        sum(tally.total for tally in filled),
        min((tally.minimum for tally in filled), default=0),
        max((tally.maximum for tally in filled), default=0),
        counts,
    )
