"""The clock of the system, and the watch over it: it is followed wherever it goes, and every step is reported.

Two witnesses tell a step from the passing of time: a clock that nobody can set, and what the clock said in the last
session. Why it is followed, and what becomes of messages that were stored while it was wrong: ADR 0014.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from courser.model.clock import CLOCK_LEAD_MAX, Clock

_log = logging.getLogger(__name__)

EARLIEST_TIME = 1_672_531_200_000_000
"""The beginning of 2023, before there was anything to run here. A clock that says less has not been set yet, as on a
machine without a battery before its time daemon has an answer."""
_CHECK_INTERVAL = 10_000_000
"""Microseconds between two looks at the other clock while the wall clock behaves: one comparison is all that a call
costs in between, and no step that matters fits in."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SystemClock:
    """The wall clock and the monotonic clock of the kernel. ``WatchedClock`` notices when the former is set."""

    def __init__(self) -> None:
        self.step = 0

    def now(self) -> int:
        """Wall clock in microseconds since 1970. It may jump, back as well as forth."""
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        """Microseconds from an arbitrary start. It never goes back."""
        return time.monotonic_ns() // 1000

    @staticmethod
    def since_boot() -> int:
        """Time since the boot. It goes on while the machine is suspended, as the wall clock does."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class _Anchor(NamedTuple):
    """What both clocks said at the last look, and the sum of the steps until then."""

    now: int
    elapsed: int
    step: int


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
        self._last_known = last_known
        now = self._read()
        # The first call looks closely, and reports what it sees: by then there is a log to report to.
        self._low, self._high = 1, 0
        self._anchor = _Anchor(now if now >= EARLIEST_TIME else max(last_known, EARLIEST_TIME), self._elapsed(), 0)

    def now(self) -> int:
        """Wall clock in microseconds since 1970. While it is not set: the last time known, and what passed since."""
        # Cached in a local: Python 3.11 is slow at calling functions that are attributes.
        read = self._read
        now = read()
        if self._low <= now <= self._high:
            return now
        return self._look()

    def _look(self) -> int:
        """Compare both clocks.

        Two threads at a time do no harm: they come from the same anchor to the same result, and count a step once.
        """
        anchor, now, elapsed = self._anchor, self._read(), self._elapsed()
        expected = anchor.now + elapsed - anchor.elapsed
        if now < EARLIEST_TIME:
            if not self._is_unset:
                self._is_unset = True
                _log.warning(
                    "the clock is not set; continuing with estimated time clock=%s time=%s", _text(now), _text(expected)
                )
            return expected
        self._is_unset = False
        self._compare_with_last_session(now)
        moved = now - expected
        is_step = abs(moved) > CLOCK_LEAD_MAX
        self._anchor = anchor = _Anchor(now, elapsed, anchor.step + moved if is_step else anchor.step)
        self.step = anchor.step
        self._low, self._high = now, now + _CHECK_INTERVAL
        if is_step:
            _log.warning(
                "the clock was set; message timestamps follow it from=%s to=%s seconds=%d",
                _text(expected),
                _text(now),
                moved // 1_000_000,
            )
        return now

    def _compare_with_last_session(self, now: int) -> None:
        last_known, self._last_known = self._last_known, 0
        if now < last_known - CLOCK_LEAD_MAX:
            _log.warning(
                "the clock is behind the last session; message timestamps follow it now=%s last_session=%s seconds=%d",
                _text(now),
                _text(last_known),
                (last_known - now) // 1_000_000,
            )


def _text(moment: int) -> str:
    """A time for the log, whatever a clock may say."""
    try:
        return (_EPOCH + timedelta(microseconds=moment)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{moment} us"
