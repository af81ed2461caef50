"""How slow a client may be: at a minimum rate, with some patience.

Every byte earns time, but never more than the patience: who sends or reads much at first and then stops is found out as
soon as anybody else.
"""

from dataclasses import dataclass

_SECOND = 1_000_000


@dataclass(slots=True)
class Pace:
    """The progress of one transfer after another. Looked at now and then; the transfers themselves pay nothing."""

    patience: int
    """Microseconds that a transfer may fall behind the rate."""
    rate_min: int
    """Bytes a second."""
    _since: int | None = None
    _size: int = 0
    _due: int = 0

    def is_late(self, now: int, since: int, size: int) -> bool:
        """Whether the transfer that began at ``since``, of which ``size`` bytes have passed, is too slow."""
        if since != self._since:
            self._since, self._size, self._due = since, 0, since + self.patience
        earned = (size - self._size) * _SECOND // self.rate_min
        self._size = size
        is_late = now > self._due + earned
        self._due = min(self._due + earned, now + self.patience)
        return is_late
