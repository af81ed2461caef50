"""Time as it is handed in: never read from the module ``time`` where a test would want to turn it."""

from typing import Protocol

CLOCK_LEAD_MAX = 60_000_000
"""Microseconds that a stored time may be ahead of the clock. Within it the time of a partition stands still until the
clock has caught up; time daemons correct less than this without a step. Beyond it the clock was set, and is followed.
"""


class Clock(Protocol):
    """Where time comes from."""

    step: int
    """Microseconds, in all, by which the wall clock is known to have been set since the process began: forward counts
    as positive. It changes only within ``now``."""

    def now(self) -> int:
        """Wall clock in microseconds since 1970. It may jump, back as well as forth."""

    def monotonic(self) -> int:
        """Microseconds from an arbitrary start. It never goes back: for deadlines and ages of work."""
