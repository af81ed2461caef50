"""Set up logging for a server: levels by module, one format, one writer. ``stop`` undoes it."""

import logging
from collections import deque
from itertools import count
from typing import TextIO

from courser.api.operating_replies import LogLine
from courser.model.clock import Clock
from courser.server.configuration.settings import LoggingSettings
from courser.server.log_format import JsonFormatter, TextFormatter, escaped
from courser.server.log_writer import LogFile, LogWriter, newest_bytes

_LIMITED = ("courser.transports.connections", "courser.transports.session_loop", "courser.handlers.audit.refused")
"""Loggers whose lines anyone on the network can trigger."""
_LINE_COUNT_MAX = 20
"""Lines that one limited logger may write in each ``_LINE_INTERVAL``."""
_LINE_INTERVAL = 1_000_000
"""Microseconds."""
_RING_LINE_COUNT_MAX = 2_000
"""Lines that are kept: some minutes of a busy server."""
_MESSAGE_LENGTH_MAX = 2_000
"""Letters of a line: with the number of lines, this bounds the memory."""
_TRACES = logging.Formatter()


class LogRing(logging.Handler):
    """The newest lines in memory, for whoever watches the server over the network.

    Takes records on any thread. The base class holds a lock while a record is added.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=_RING_LINE_COUNT_MAX)
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


class Logs:
    """The logging of one server. A process can have one at a time, since loggers are global."""

    def __init__(self, settings: LoggingSettings, stream: TextIO, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._writer = LogWriter(stream, awaits_file=settings.directory is not None)
        self._writer.setFormatter(JsonFormatter() if settings.is_json else TextFormatter())
        self.ring = LogRing()
        root = logging.getLogger()
        self._before = [(root, root.level)]
        root.addHandler(self._writer)
        root.addHandler(self.ring)
        root.setLevel(settings.levels.root)
        for name, level in settings.levels.modules:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.level))
            logger.setLevel(level)
        self._limited = [logging.getLogger(name) for name in _LIMITED]
        self._limits = [LineLimit(clock) for _ in _LIMITED]
        for logger, limit in zip(self._limited, self._limits, strict=True):
            logger.addFilter(limit)
        logging.captureWarnings(capture=True)

    def open_file(self) -> None:
        """Start to write log files, if enabled, including the lines logged so far. Call it with the lock held."""
        settings = self._settings
        if settings.directory is not None:
            self._writer.attach(
                LogFile(
                    settings.directory,
                    self._clock,
                    file_size_max=settings.file_size_max,
                    total_size_max=settings.total_size_max,
                    retention=settings.retention,
                )
            )

    def newest(self) -> bytes:
        """The end of the newest log file, for a diagnosis. Blocks."""
        directory = self._settings.directory
        return b"This server does not write log files.\n" if directory is None else newest_bytes(directory)

    def check(self) -> None:
        """Ask the writer to delete log files that are too old or too large in total."""
        self._writer.check()

    def stop(self) -> None:
        """Write the queued lines, and restore the previous logging setup."""
        logging.captureWarnings(capture=False)
        for logger, level in self._before:
            logger.setLevel(level)
        for logger, limit in zip(self._limited, self._limits, strict=True):
            logger.removeFilter(limit)
        logging.getLogger().removeHandler(self._writer)
        logging.getLogger().removeHandler(self.ring)
        self._writer.stop()


class LineLimit(logging.Filter):
    """Drops lines that a logger writes too often, and reports how many were dropped. Errors always pass.

    For loggers that are used on one thread.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._since = clock.monotonic()
        self._count = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line."""
        if record.levelno >= logging.ERROR:
            return True
        now = self._clock.monotonic()
        if now - self._since >= _LINE_INTERVAL:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > _LINE_COUNT_MAX:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg = f"({self._left_out} lines were suppressed before this one) {record.msg}"
            self._left_out = 0
        return True
