"""The clock that is passed to code that needs the time, so that tests can control it."""

from typing import Protocol

CLOCK_LEAD_MAX = 60_000_000
"""Microseconds that a stored time may be ahead of the clock. Up to this, the time of a partition stands still until the
clock has caught up; time daemons correct smaller errors without a step. Beyond it, the clock was set back and is
followed."""


class Clock(Protocol):
    """A source of time."""

    step: int
    """Total microseconds by which the wall clock was set since the process started, as far as known; forward is
    positive. It changes only within ``now``."""

    def now(self) -> int:
        """Wall clock in microseconds since 1970. It may jump, backward as well as forward."""

    def monotonic(self) -> int:
        """Microseconds from an arbitrary start. It never goes back: for deadlines and durations."""
