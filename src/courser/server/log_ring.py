"""The newest lines of the log in memory, for whoever watches the server over the network."""

import logging
from collections import deque
from itertools import count

from courser.api.operating_replies import LogLine
from courser.server.log_format import escaped

_LINE_COUNT_MAX = 2_000
"""Lines that are kept: some minutes of a busy server."""
_MESSAGE_LENGTH_MAX = 2_000
"""Letters of a line: with the number of lines, this bounds the memory."""
_TRACES = logging.Formatter()


class LogRing(logging.Handler):
    """Takes records on any thread. The base class holds a lock while a record is added."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=_LINE_COUNT_MAX)
        self._numbers = count(1)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info and record.exc_info[0]:
                text += f" | {_TRACES.formatException(record.exc_info)}"
        except Exception:  # noqa: BLE001 - a record that cannot be formatted must not stop whoever logs
            self.handleError(record)
            return
        time = int(record.created * 1_000_000)
        message = escaped(text[:_MESSAGE_LENGTH_MAX])
        self._lines.append(LogLine(next(self._numbers), time, record.levelname.lower(), record.name, message))

    def after(self, number: int) -> list[LogLine]:
        """Lines with a higher number, oldest first."""
        self.acquire()
        try:
            return [line for line in self._lines if line.number > number]
        finally:
            self.release()
