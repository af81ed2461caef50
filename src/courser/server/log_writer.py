"""Log lines on their way to a terminal and to files, written on a thread of their own: a slow disk delays nobody.

A full file is closed, and the oldest files are deleted by age and total size. The newest file is ``courser.log``; older
ones have the time of their closing in the name.
"""

import logging
import os
import queue
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

from courser.model.clock import Clock

NEWEST = "courser.log"
_CLOSED = re.compile(r"courser-(\d{8}T\d{6}\.\d{6})Z(?:-\d+)?\.log")
_TIME_FORMAT = "%Y%m%dT%H%M%S.%f"
_SHOWN_SIZE_MAX = 8 * 1024 * 1024
"""Bytes of the log that go into a diagnosis."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUEUE_COUNT_MAX = 10_000
"""Lines that may be queued. Further lines are dropped, and their count is logged: logging never blocks the server."""
_EARLY_COUNT_MAX = 10_000
"""Lines kept for the log file until it is attached."""
_BATCH_COUNT_MAX = 500
_STOP_TIME_MAX = 5.0
"""Seconds that a stop waits for queued lines."""


@dataclass(frozen=True, slots=True)
class _ClosedFile:
    closed_at: int
    """Microseconds since 1970."""
    path: Path
    size: int


class LogFile:
    """The current log file and its predecessors. Methods raise ``OSError``; a later call may succeed."""

    def __init__(
        self, directory: Path, clock: Clock, *, file_size_max: int, total_size_max: int, retention: int
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._file_size_max = file_size_max
        self._total_size_max = total_size_max
        self._retention = retention
        self._descriptor: int | None = None
        self._size = 0

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        if self._descriptor is None:
            self._open()
        if self._file_size_max and self._size and self._size + len(data) > self._file_size_max:
            self._rotate()
            self._open()
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            count = os.write(self._descriptor, view)
            self._size += count
            view = view[count:]

    def check(self) -> None:
        """Delete files that are too old, and the oldest ones if the total size is too large. Keeps the current file."""
        closed = self._closed_files()
        oldest_allowed = self._clock.now() - self._retention
        total = self._size + sum(file.size for file in closed)
        for file in closed:
            is_old = bool(self._retention) and file.closed_at < oldest_allowed
            is_too_much = bool(self._total_size_max) and total > self._total_size_max
            if is_old or is_too_much:
                file.path.unlink(missing_ok=True)
                total -= file.size

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open(self) -> None:
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._directory / NEWEST, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        self.close()
        moment = (_EPOCH + timedelta(microseconds=self._clock.now())).strftime(_TIME_FORMAT)
        target = self._directory / f"courser-{moment}Z.log"
        number = 1
        while target.exists():
            number += 1
            target = self._directory / f"courser-{moment}Z-{number}.log"
        (self._directory / NEWEST).rename(target)
        self._size = 0
        self.check()

    def _closed_files(self) -> list[_ClosedFile]:
        """The predecessors, oldest first."""
        files = []
        for path in self._directory.glob("courser-*.log"):
            match = _CLOSED.fullmatch(path.name)
            if match is None:
                continue
            try:
                moment = datetime.strptime(match[1], _TIME_FORMAT).replace(tzinfo=UTC)
                size = path.stat().st_size
            except (ValueError, FileNotFoundError):
                # The name contains an invalid date, or the file was just deleted by someone else.
                continue
            files.append(_ClosedFile((moment - _EPOCH) // timedelta(microseconds=1), path, size))
        return sorted(files, key=lambda file: (file.closed_at, file.path.name))


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


def newest_bytes(directory: Path, size_max: int = _SHOWN_SIZE_MAX) -> bytes:
    """The last lines of the log, at most ``size_max`` bytes."""
    try:
        with (directory / NEWEST).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - size_max, 0))
            data = file.read(size_max)
    except FileNotFoundError:
        return b""
    return data if size <= size_max else data.partition(b"\n")[2]
