"""Log files and their rotation: a full file is closed, and the oldest files are deleted by age and total size.

The newest file is ``courser.log``; older ones have the time of their closing in the name. Everything here runs on the
thread of the log writer.
"""

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from courser.model.clock import Clock

NEWEST = "courser.log"
_CLOSED = re.compile(r"courser-(\d{8}T\d{6}\.\d{6})Z(?:-\d+)?\.log")
_TIME_FORMAT = "%Y%m%dT%H%M%S.%f"
_SHOWN_SIZE_MAX = 8 * 1024 * 1024
"""Bytes of the log that go into a diagnosis."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        if self._descriptor is None:
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
