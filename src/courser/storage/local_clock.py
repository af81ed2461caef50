"""Time from the kernel."""

import time


class SystemClock:
    """The ``Clock`` of a real server."""

    def now(self) -> int:
        """Wall clock in microseconds since 1970. It may jump, back as well as forth."""
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        """Microseconds from an arbitrary start. It never goes back."""
        return time.monotonic_ns() // 1000
