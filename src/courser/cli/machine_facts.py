"""Measurements for ``courser doctor``: disk, mount and limits of the process. Linux only."""

import contextlib
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_SYNC_COUNT = 30
_SYNC_TIME_MAX = 3.0
"""Seconds that measuring may take: enough to recognize a slow disk."""
_SYNC_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount of a directory."""

    point: str
    kind: str
    """The type of the file system: ext4, xfs, tmpfs..."""
    source: str
    options: tuple[str, ...]
    """Options of the mount and of the file system."""


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """The duration of a small write with fsync, in seconds."""

    median: float
    longest: float
    count: int


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of a file system."""

    size: int
    free: int
    """Available to users other than root."""

    @property
    def used_share(self) -> float:
        """The share of the disk that is used, from 0 to 1."""
        return 1 - self.free / self.size if self.size else 0.0


def nearest_directory(path: Path) -> Path:
    """The directory itself, or its closest parent that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.is_dir())


def find_mount(directory: Path, table: str | None = None) -> Mount | None:
    """The mount of a directory; None if the kernel does not report it."""
    if table is None:
        try:
            table = _MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return None
    place = str(directory.resolve())
    found: Mount | None = None
    for mount in _mounts(table.splitlines()):
        is_above = mount.point == "/" or place == mount.point or place.startswith(f"{mount.point}/")
        # If several mounts have the same mount point, the last one is visible.
        if is_above and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _mounts(lines: Iterable[str]) -> Iterable[Mount]:
    for line in lines:
        before, _, after = line.partition(" - ")
        first, rest = before.split(), after.split()
        if len(first) < 6 or len(rest) < 3:
            continue
        options = dict.fromkeys((*first[5].split(","), *rest[2].split(",")))
        yield Mount(_unescape(first[4]), rest[0], _unescape(rest[1]), tuple(options))


def _unescape(text: str) -> str:
    """Decode octal escapes of spaces and similar characters."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def measure_syncs(directory: Path) -> SyncTimes:
    """Append some bytes and fsync them, several times, in a file without a name. Raises ``OSError``."""
    times: list[float] = []
    descriptor = _open_nameless(directory)
    try:
        block = b"\0" * _SYNC_SIZE
        begin = time.perf_counter()
        while len(times) < _SYNC_COUNT and (len(times) < 3 or time.perf_counter() - begin < _SYNC_TIME_MAX):
            started = time.perf_counter()
            os.write(descriptor, block)
            os.fsync(descriptor)
            times.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
    return SyncTimes(statistics.median(times), max(times), len(times))


def _open_nameless(directory: Path) -> int:
    with contextlib.suppress(OSError):
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    # Some file systems cannot do that, such as NFS: there the name is gone at once.
    descriptor, name = tempfile.mkstemp(prefix=".courser-doctor-", dir=directory)
    Path(name).unlink()
    return descriptor


def measure_space(directory: Path) -> DiskSpace:
    """Measure the space of the file system. Raises ``OSError``."""
    figures = os.statvfs(directory)
    return DiskSpace(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)


def file_limits() -> tuple[int, int]:
    """The soft and hard limit of open files of this process."""
    import resource  # noqa: PLC0415 -- not on every system

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    return (sys.maxsize if soft == unlimited else soft), (sys.maxsize if hard == unlimited else hard)


def kernel_number(name: str) -> int | None:
    """A setting below ``/proc/sys``; None if it does not exist."""
    with contextlib.suppress(OSError, ValueError):
        return int((Path("/proc/sys") / name).read_text())
    return None


def available_memory(table: str | None = None) -> int | None:
    """Bytes available without swapping; None if the kernel does not report it."""
    if table is None:
        try:
            table = Path("/proc/meminfo").read_text()
        except OSError:
            return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", table, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on the file. Reads the kernel's list: taking the lock could disturb a server."""
    try:
        figures = path.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    place = f"{os.major(figures.st_dev):02x}:{os.minor(figures.st_dev):02x}:{figures.st_ino}"
    return any(f" {place} " in line for line in locks.splitlines())
