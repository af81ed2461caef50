"""Write log lines on a separate thread, through a queue: a slow disk or terminal does not delay the event loop."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import TextIO

from courser.server.log_files import LogFile

_QUEUE_COUNT_MAX = 10_000
"""Lines that may be queued. Further lines are dropped, and their count is logged: logging never blocks the server."""
_EARLY_COUNT_MAX = 10_000
"""Lines kept for the log file until it is attached."""
_BATCH_COUNT_MAX = 500
_STOP_TIME_MAX = 5.0
"""Seconds that a stop waits for queued lines."""


class _Request:
    """A request to the writer's thread, handled between lines."""

    def __init__(self, name: str) -> None:
        self.name = name


_CHECK = _Request("check")
_STOP = _Request("stop")


class LogWriter(logging.Handler):
    """Accepts records on any thread and writes them on its own: to a stream, and to a file once it is attached."""

    def __init__(self, stream: TextIO, *, awaits_file: bool) -> None:
        super().__init__()
        self._stream = stream
        self._queue: queue.Queue[str | _Request | LogFile] = queue.Queue(_QUEUE_COUNT_MAX)
        self._file: LogFile | None = None
        self._early: list[str] | None = [] if awaits_file else None
        self._file_failure: str | None = None
        self._dropped = 0
        self._dropped_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    # --- any thread ---

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._queue.put_nowait(f"{self.format(record)}\n")
        except queue.Full:
            with self._dropped_lock:
                self._dropped += 1
        except Exception:  # noqa: BLE001 - a record that cannot be formatted must not stop whoever logs
            self.handleError(record)

    def attach(self, file: LogFile) -> None:
        """From now on write to this file too, starting with the lines logged so far."""
        self._queue.put(file)

    def check(self) -> None:
        """Ask the thread to delete old log files. Does not wait."""
        try:
            self._queue.put_nowait(_CHECK)
        except queue.Full:
            return  # under this load rotation itself deletes old files

    def stop(self) -> None:
        """Write the queued lines, then stop the thread."""
        if self._thread.is_alive():
            try:
                self._queue.put(_STOP, timeout=_STOP_TIME_MAX)
            except queue.Full:
                return
            self._thread.join(_STOP_TIME_MAX)

    # --- the writer's thread ---

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            lines: list[str] = []
            while isinstance(item, str):
                lines.append(item)
                if len(lines) >= _BATCH_COUNT_MAX or self._queue.empty():
                    break
                item = self._queue.get()
            self._write("".join(lines))
            if isinstance(item, LogFile):
                self._begin_file(item)
            elif item is _CHECK:
                self._with_file(lambda file: file.check())
            elif item is _STOP:
                self._with_file(lambda file: file.close())
                return

    def _write(self, text: str) -> None:
        with self._dropped_lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            text += self._own_line(f"dropped {dropped} log lines because they could not be written fast enough")
        if not text:
            return
        self._write_stream(text)
        if self._early is not None:
            if len(self._early) < _EARLY_COUNT_MAX:
                self._early.append(text)
        else:
            self._with_file(lambda file: file.write(text))

    def _write_stream(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # stderr was closed, or its disk is full. The log file still gets every line.
            return

    def _begin_file(self, file: LogFile) -> None:
        self._file = file
        early, self._early = "".join(self._early or ()), None
        self._with_file(lambda file: file.check())
        if early:
            self._with_file(lambda file: file.write(early))

    def _with_file(self, action: Callable[[LogFile], None]) -> None:
        if self._file is None:
            return
        try:
            action(self._file)
        except OSError as error:
            reason = str(error)
            if reason != self._file_failure:
                self._file_failure = reason
                self._write_stream(self._own_line(f"cannot write the log file; logging to stderr only: {reason}"))
            self._close_file()
        else:
            self._file_failure = None

    def _close_file(self) -> None:
        assert self._file is not None
        try:
            self._file.close()
        except OSError:
            return  # already reported when the previous write failed

    def _own_line(self, message: str) -> str:
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
        return f"{self.format(record)}\n"
