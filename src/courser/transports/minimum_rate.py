"""How slow a client may be: a minimum rate, with some patience.

Every byte earns the client time, but never more than the patience. A client that is fast at first and then stops is
therefore detected as soon as any other.
"""

from dataclasses import dataclass

_SECOND = 1_000_000


@dataclass(slots=True)
class MinimumRate:
    """Judges one transfer after another. It is polled from time to time, and costs the transfers nothing."""

    patience: int
    """Microseconds that a transfer may fall behind the rate."""
    rate_min: int
    """Minimum rate in bytes per second."""
    _since: int | None = None
    _size: int = 0
    _due: int = 0

    def is_late(self, now: int, since: int, size: int) -> bool:
        """Whether the transfer that started at ``since`` and has moved ``size`` bytes is too slow."""
        if since != self._since:
            self._since, self._size, self._due = since, 0, since + self.patience
        earned = (size - self._size) * _SECOND // self.rate_min
        self._size = size
        is_late = now > self._due + earned
        self._due = min(self._due + earned, now + self.patience)
        return is_late
