"""Lines that anybody on the network can cause: each once, thousands of the same kind not at all."""

import logging

from courser.model.clock import Clock

_COUNT_MAX = 20
"""Lines of one logger in each ..."""
_INTERVAL = 1_000_000
"""... so many microseconds."""


class LineLimit(logging.Filter):
    """Leaves out what a logger says too often, and says how much that was. Errors always get through.

    For loggers that are used on one thread.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._since = clock.monotonic()
        self._count = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.levelno >= logging.ERROR:
            return True
        now = self._clock.monotonic()
        if now - self._since >= _INTERVAL:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > _COUNT_MAX:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg = f"({self._left_out} lines before this one were left out) {record.msg}"
            self._left_out = 0
        return True
