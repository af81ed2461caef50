"""How long requests took: counted in buckets, so that a run of hours needs no more memory than one of seconds.

A bucket is at most a thousandth as wide as the times in it; percentiles are the upper end of their bucket. The
shortest, the longest and the mean are exact.
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
"""Times that are kept as they are before they go into buckets."""

Counts = npt.NDArray[np.int64]


class Tally(msgspec.Struct, frozen=True):
    """What a recorder has found, to be handed to another process."""

    count: int
    total: int
    """Nanoseconds, as all times here."""
    minimum: int
    maximum: int
    buckets: bytes
    """Those that are not empty: numbers, then how many are in each, as 64-bit integers."""


class Recorder:
    """Takes times, in nanoseconds; for one thread."""

    def __init__(self) -> None:
        self._fresh = array("q")
        self._counts: Counts = np.zeros(_BUCKET_COUNT, np.int64)
        self._total = 0
        self._minimum = 2**63 - 1
        self._maximum = 0

    def add(self, nanoseconds: int) -> None:
        """One request took so long."""
        fresh = self._fresh
        fresh.append(nanoseconds)
        if len(fresh) >= _FRESH_COUNT:
            self._fold()

    def _fold(self) -> None:
        times = np.frombuffer(self._fresh, np.int64) if self._fresh else np.zeros(0, np.int64)
        if not len(times):
            return
        # Clocks of two processes may be a little apart.
        times = np.maximum(times, 0)
        self._counts += np.bincount(_bucket_of(times), minlength=_BUCKET_COUNT)
        self._total += int(times.sum())
        self._minimum = min(self._minimum, int(times.min()))
        self._maximum = max(self._maximum, int(times.max()))
        self._fresh = array("q")

    def tally(self) -> Tally:
        """All of them so far."""
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
    """The longest time that goes into a bucket."""
    shift = max(bucket // _HALF - 1, 0)
    return ((bucket - shift * _HALF + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class Distribution:
    """Times of many requests, of one recorder or of several."""

    count: int
    total: int
    minimum: int
    maximum: int
    counts: Counts

    @property
    def mean(self) -> float:
        """Nanoseconds."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> int:
        """The shortest time that at least this share of the requests kept; 0 if there were none."""
        if not self.count:
            return 0
        # A hair less: 0.999 of 1,000 requests are 999, whatever the rounding says.
        rank = max(int(np.ceil(share * self.count - 1e-9)), 1)
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(max(_upper_end(bucket), self.minimum), self.maximum)


def merge(tallies: "list[Tally]") -> Distribution:
    """All of them as one."""
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
