"""Time as it is handed in: never read from the module ``time`` where a test would want to turn it."""

from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> int:
        """Wall clock in microseconds since 1970. It may jump, back as well as forth."""

    def monotonic(self) -> int:
        """Microseconds from an arbitrary start. It never goes back: for deadlines and ages of work."""
