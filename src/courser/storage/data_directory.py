"""A data directory in use by this process: locked, its last stop known, its partitions opened one by one.

The order of a start: check the format, take the lock, learn how the last session ended, open every partition, then
``begin``. Nothing is appended before ``begin``; a start that dies earlier is repeated with the same facts.
"""

import errno
import os
from pathlib import Path

from courser.model.clock import Clock
from courser.records.stored_header import PartitionIdentity
from courser.storage.durable_files import sync_directory
from courser.storage.files import FileSystem
from courser.storage.local_files import DirectoryLock, LocalFileSystem, lock_directory
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import (
    begin_session,
    check_format,
    end_session,
    how_it_stopped,
    last_known_time,
    read_session,
)
from courser.storage.settings import LogSettings
from courser.storage.watched_clock import SystemClock, WatchedClock

_MILLISECOND = 1000
_LOGINS_RESERVED = 2**20
"""Numbers that a start after a kill passes over, whether or not they were given: a million, a quarter of an hour of the
clock. A session may give more. It is then the clock that keeps the numbers of the next one apart: only 1000 logins a
second would be faster."""


class DataDirectory:
    """Where a server keeps everything. One per process and path."""

    def __init__(self, path: Path, file_system: FileSystem, lock: DirectoryLock, stop: StopKind, clock: Clock) -> None:
        self.path = path
        self.file_system = file_system
        self.clock = clock
        self.stop = stop
        """How the last session ended."""
        session = read_session(file_system, path)
        self._next_login = session.login_end if session is not None else 0
        self.unopened = session.unopened if session is not None else frozenset()
        """Partitions that the last session did not open; from ``begin`` on, those that this one did not."""
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> "DataDirectory":
        """Take the directory, making it if there is none.

        Raises:
            StartRefused: another process has it, or a newer version wrote it.
            OSError: it cannot be created, or it is not a directory.
        """
        file_system = LocalFileSystem()
        if not path.exists():
            path.mkdir(0o700, parents=True)
            sync_directory(file_system, path.parent)
        elif not path.is_dir():
            # Otherwise reading the session would fail, and that would look like a failing disk.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        # Before the lock, which writes: a directory of a newer version is left exactly as it is.
        check_format(file_system, path)
        lock = lock_directory(path)
        system = SystemClock()
        clock = WatchedClock(system, elapsed=system.since_boot, last_known=last_known_time(file_system, path))
        return cls(path, file_system, lock, how_it_stopped(file_system, path), clock)

    @property
    def lock_descriptor(self) -> int:
        """The open lock file, to be shared with processes of the same server."""
        return self._lock.descriptor

    def create_partition(self, directory: Path, identity: PartitionIdentity, settings: LogSettings) -> PartitionLog:
        """Make a new partition below this directory and open it. Durable on return."""
        PartitionLog.create(self.file_system, directory, identity, below=self.path)
        # Whatever happened to the others, this one is new: it has nothing to recover.
        return self._open(directory, identity, settings, StopKind.CLEAN)

    def open_partition(self, directory: Path, identity: PartitionIdentity, settings: LogSettings) -> PartitionLog:
        """Open an existing partition and recover what the last session left of it."""
        return self._open(directory, identity, settings, self.stop)

    def _open(
        self, directory: Path, identity: PartitionIdentity, settings: LogSettings, stop: StopKind
    ) -> PartitionLog:
        return PartitionLog.open(self.file_system, directory, identity, settings=settings, clock=self.clock, stop=stop)

    def begin(self, unopened: frozenset[PartitionIdentity] = frozenset()) -> None:
        """All partitions are open but these: appends may begin."""
        now = self.clock.now()
        # Above all numbers of earlier sessions. Of those that a copy or a backup of this directory does not know, too.
        self._next_login = max(self._next_login, now // _MILLISECOND, 1)
        begin_session(self.file_system, self.path, now, unopened, self._next_login + _LOGINS_RESERVED)
        self.unopened = unopened

    def number_login(self) -> int:
        """The number of the next login. No login of this directory ever has the same one, after any kind of restart.

        It is below 2^43, so that clients can make longer numbers of it (``records.producers``).
        """
        number = self._next_login
        self._next_login += 1
        return number

    def close(self, *, is_clean: bool) -> None:
        """Give the directory back. ``is_clean`` only if every partition was closed without a failure."""
        if is_clean:
            end_session(self.file_system, self.path, self.clock.now(), self.unopened, self._next_login)
        self._lock.close()
