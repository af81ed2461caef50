"""Set up logging for a server: levels by module, one format, one writer. Undone by ``stop``."""

import logging
from typing import TextIO

from courser.model.clock import Clock
from courser.server.configuration.settings import LoggingSettings
from courser.server.log_files import LogFile, newest_bytes
from courser.server.log_format import JsonFormatter, TextFormatter
from courser.server.log_limit import LineLimit
from courser.server.log_writer import LogWriter

_LIMITED = ("courser.transports.connections", "courser.transports.session_loop", "courser.handlers.audit.refused")
"""Loggers that strangers can make say something."""


class Logs:
    """The logging of one server. One at a time in a process, since the loggers are the process's."""

    def __init__(self, settings: LoggingSettings, stream: TextIO, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._writer = LogWriter(stream, awaits_file=settings.directory is not None)
        self._writer.setFormatter(JsonFormatter() if settings.is_json else TextFormatter())
        root = logging.getLogger()
        self._before = [(root, root.level)]
        root.addHandler(self._writer)
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
        """The data directory is ours: write to files too, if files are wanted, also what was logged so far."""
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
        return b"This server keeps no logs in files.\n" if directory is None else newest_bytes(directory)

    def check(self) -> None:
        """Delete log files that are too old or too many, soon."""
        self._writer.check()

    def stop(self) -> None:
        """Write everything, and leave logging as it was."""
        logging.captureWarnings(capture=False)
        for logger, level in self._before:
            logger.setLevel(level)
        for logger, limit in zip(self._limited, self._limits, strict=True):
            logger.removeFilter(limit)
        logging.getLogger().removeHandler(self._writer)
        self._writer.stop()
