"""The clock of a simulated server: set forward and back, also between two starts, and what times must hold to."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from courser.model.clock import CLOCK_LEAD_MAX
from courser.storage.partition_log import PartitionLog
from courser.storage.watched_clock import WatchedClock
from tests.fakes.clocks import ManualClock
from tests.simulator.partition_model import PartitionModel, SentBatch, promise

_SECOND = 1_000_000
_HOUR = 3600 * _SECOND
_TEN_YEARS = 10 * 365 * 24 * _HOUR
_STEPS = (-_SECOND // 20, 5 * _SECOND, -_HOUR, _HOUR, -_TEN_YEARS, _TEN_YEARS)
_BEGINNING = 2_200_000_000 * _SECOND
"""In 2039: ten years earlier a clock is behind but may be right, twenty years earlier it has not been set."""
_TOLERANCE = 2 * CLOCK_LEAD_MAX
"""Steps that are not noticed, because they are small, add up."""


class SimulatedClock:
    """A wall clock that somebody sets, and the watch that each start keeps over it."""

    def __init__(self, source: random.Random, note: Callable[[str, str], None]) -> None:
        self.manual = ManualClock(_BEGINNING)
        self.watched = WatchedClock(self.manual)
        self._source = source
        self._note = note
        self._session_starts: dict[PartitionLog, int] = {}

    def begin(self, last_known: int) -> None:
        """A start: what the last one saw of the clock is forgotten."""
        self.watched = WatchedClock(self.manual, last_known=last_known)
        self._session_starts = {}

    def opened(self, log: PartitionLog) -> None:
        """A partition was opened in this start."""
        self._session_starts[log] = log.next_offset

    def set(self) -> None:
        """Somebody sets the clock."""
        step = self._source.choice(_STEPS)
        if self.manual.now() + step < 0:
            step = -step
        self._note("clock set", f"{step // _SECOND} seconds")
        self.manual.jump(step)

    def check_append(self, batch: SentBatch) -> None:
        """(e) A message carries the time of now, but for the little that a clock may be waited for."""
        ahead = batch.timestamp - self.watched.now()
        promise(0 <= ahead <= CLOCK_LEAD_MAX, f"(e) offset {batch.base_offset} is {ahead} us ahead of the clock")

    def check(self, log: PartitionLog, model: PartitionModel) -> None:
        """(e) Time does not go back in a segment, nothing seems to come from the future, ages are right."""
        if log.failure is not None:
            return
        log.follow_clock()
        now = self.watched.now()
        for segment in log.segments:
            batches = [
                batch for batch in model.batches if segment.base_offset <= batch.base_offset < segment.end_offset
            ]
            for before, after in pairwise(batches):
                promise(before.timestamp <= after.timestamp, f"(e) time goes back at offset {after.base_offset}")
            ahead = segment.last_stored_at - now
            promise(ahead <= CLOCK_LEAD_MAX, f"(e) segment {segment.base_offset} seems to be {ahead} us ahead")
            if batches and batches[-1].base_offset >= self._session_starts.get(log, log.next_offset):
                self._check_age(batches[-1], segment.last_stored_at, now)

    def _check_age(self, batch: SentBatch, stored_at: int, now: int) -> None:
        error = (now - stored_at) - (self.manual.monotonic() - batch.written_at)
        promise(abs(error) <= _TOLERANCE, f"(e) offset {batch.base_offset} seems {error} us older than it is")


def stored_times(log: PartitionLog, batches: Sequence[SentBatch]) -> dict[SentBatch, int]:
    """When each batch was stored, as far as the log knows."""
    return {
        batch: batch.timestamp + segment.correction
        for segment in log.segments
        for batch in batches
        if segment.base_offset <= batch.base_offset < segment.end_offset
    }
