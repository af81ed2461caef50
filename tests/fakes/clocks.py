"""A clock that a test turns by hand."""


class ManualClock:
    """A ``Clock`` that stands still until it is told otherwise."""

    def __init__(self, now: int = 1_700_000_000_000_000, monotonic: int = 0) -> None:
        self.step = 0
        self._now = now
        self._monotonic = monotonic

    def now(self) -> int:
        """Wall clock in microseconds since 1970."""
        return self._now

    def monotonic(self) -> int:
        """Microseconds from an arbitrary start."""
        return self._monotonic

    def advance(self, microseconds: int) -> None:
        """Let time pass on both clocks."""
        if microseconds < 0:
            raise ValueError("time does not pass backwards: use jump for a wall clock that was set back")
        self._now += microseconds
        self._monotonic += microseconds

    def jump(self, microseconds: int) -> None:
        """Set the wall clock forth or back, as an operator or a time daemon does."""
        self._now += microseconds
