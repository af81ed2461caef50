"""Time from the kernel."""

import time


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
