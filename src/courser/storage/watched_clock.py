"""The wall clock under watch: it is followed wherever it goes, and every step of it is noticed and reported.

Two witnesses tell a step from the passing of time: a clock that nobody can set, and what the clock said in the last
session. Why it is followed, and what becomes of messages that were stored while it was wrong: ADR 0014.
"""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from courser.model.clock import CLOCK_LEAD_MAX, Clock

_log = logging.getLogger(__name__)

EARLIEST_TIME = 1_672_531_200_000_000
"""The beginning of 2023, before there was anything to run here. A clock that says less has not been set yet, as on a
machine without a battery before its time daemon has an answer."""
_CHECK_INTERVAL = 10_000_000
"""Microseconds between two looks at the other clock while the wall clock behaves: one comparison is all that a call
costs in between, and no step that matters fits in."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WatchedClock:
    """A ``Clock`` that knows by how much it was set. Any thread may ask it."""

    def __init__(self, clock: Clock, *, elapsed: Callable[[], int] | None = None, last_known: int = 0) -> None:
        """Watch ``clock``.

        Args:
            clock: The clock of the system.
            elapsed: Microseconds from an arbitrary start, of a clock that nobody can set. The monotonic one if absent.
            last_known: What the clock said in the last session; 0 if that is not known.
        """
        self.step = 0
        self.monotonic = clock.monotonic
        self._read = clock.now
        self._elapsed = elapsed or clock.monotonic
        self._is_unset = False
        self._lock = threading.Lock()
        self._last_known = last_known
        now = self._read()
        self._anchor(now if now >= EARLIEST_TIME else max(last_known, EARLIEST_TIME), self._elapsed())
        # The first call looks closely, and reports what it sees: by then there is a log to report to.
        self._high = self._low - 1

    def now(self) -> int:
        """Wall clock in microseconds since 1970. While it is not set: the last time known, and what passed since."""
        now = self._read()
        if self._low <= now <= self._high:
            return now
        with self._lock:
            return self._look(self._read())

    def _anchor(self, now: int, elapsed: int) -> None:
        """From here to the next look the wall clock is believed."""
        self._low, self._high, self._elapsed_then = now, now + _CHECK_INTERVAL, elapsed

    def _look(self, now: int) -> int:
        """Compare both clocks."""
        elapsed = self._elapsed()
        expected = self._low + elapsed - self._elapsed_then
        if now < EARLIEST_TIME:
            if not self._is_unset:
                self._is_unset = True
                _log.warning("the clock is not set, going on without it clock=%s time=%s", _text(now), _text(expected))
            return expected
        self._is_unset = False
        self._compare_with_last_session(now)
        moved = now - expected
        if abs(moved) > CLOCK_LEAD_MAX:
            self.step += moved
            _log.warning(
                "the clock was set, times of messages follow it from=%s to=%s seconds=%d",
                _text(expected),
                _text(now),
                moved // 1_000_000,
            )
        self._anchor(now, elapsed)
        return now

    def _compare_with_last_session(self, now: int) -> None:
        last_known, self._last_known = self._last_known, 0
        if now < last_known - CLOCK_LEAD_MAX:
            _log.warning(
                "the clock is behind the last session, times of messages follow it now=%s last_session=%s seconds=%d",
                _text(now),
                _text(last_known),
                (last_known - now) // 1_000_000,
            )


def _text(time: int) -> str:
    """A time for the log, whatever a clock may say."""
    try:
        return (_EPOCH + timedelta(microseconds=time)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{time} us"
