"""Statistics of the process and its machine, as Linux reports them. Unavailable values are 0 or empty.

Reading them blocks while a few small files are read: call it in a pool.
"""

import os
import resource
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from courser import __version__
from courser.api.replies import Stats
from courser.broker.access.sessions import Sessions
from courser.broker.partition.peers import Sums
from courser.catalog.state import CatalogState
from courser.model.clock import Clock

_KIB = 1024
_PERCENT = 100
_MEASURED_FOR_MIN = 250_000
"""Microseconds: over a shorter time, CPU percentages are mostly noise."""


@dataclass(frozen=True, slots=True)
class _CpuTimes:
    """Counters that only increase."""

    measured_at: int
    """Microseconds of the monotonic clock."""
    process: float
    """Seconds of CPU that this process used."""
    busy: int
    """Ticks in which a core of the machine was busy."""
    total: int
    """All ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFigures:
    """What was measured of the process and its machine."""

    cpu_usage: float
    total_cpu_usage: float
    memory_usage: int
    total_memory: int
    available_memory: int
    read_bytes: int
    written_bytes: int
    thread_count: int
    free_disk_space: int
    total_disk_space: int
    open_file_count: int
    open_file_limit: int
    """Of one process: each has a limit of its own."""


class Machine:
    """Measures this process and its machine. May be used from several threads."""

    def __init__(self, clock: Clock, data_path: Path, *, proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._data_path = data_path
        self._proc = proc
        self.started_at = clock.now()
        self.hostname = os.uname().nodename
        self.kernel_version = os.uname().release
        self.os_name, self.os_version = _operating_system(Path("/etc/os-release"))
        self._last = self._cpu_times()
        self._usage = (0.0, 0.0)
        self._lock = threading.Lock()
        self.other_processes: Callable[[], Iterable[int]] = tuple
        """The ids of the other processes of this server."""
        self._others_last: dict[int, float] = {}
        """Seconds of CPU that they had used at the last measurement ..."""
        self._others_measured_at = 0
        self._others_usage = 0.0
        """... and the percentage since the one before."""

    def measure(self) -> MachineFigures:
        """All values. Percentages cover the time since the last measurement that is not too recent."""
        cpu_usage, total_cpu_usage = self._cpu_usage()
        memory = _fields(self._proc / "meminfo")
        io = _fields(self._proc / "self" / "io")
        free_disk_space, total_disk_space = self.disk_space()
        return MachineFigures(
            cpu_usage=cpu_usage,
            total_cpu_usage=total_cpu_usage,
            memory_usage=_resident_size(self._proc / "self"),
            total_memory=memory.get("MemTotal", 0) * _KIB,
            available_memory=memory.get("MemAvailable", 0) * _KIB,
            read_bytes=io.get("read_bytes", 0),
            written_bytes=io.get("write_bytes", 0),
            thread_count=_fields(self._proc / "self" / "status").get("Threads", threading.active_count()),
            free_disk_space=free_disk_space,
            total_disk_space=total_disk_space,
            open_file_count=_open_file_count(self._proc / "self"),
            open_file_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )

    def measure_all(self) -> MachineFigures:
        """``measure``, with what the other processes of this server use."""
        own, processes = self.measure(), tuple(self.other_processes())
        if not processes:
            return own
        found = [self._proc / str(process_id) for process_id in processes]
        inputs = [_fields(path / "io") for path in found]
        return replace(
            own,
            cpu_usage=own.cpu_usage + self._usage_of(processes),
            memory_usage=own.memory_usage + sum(map(_resident_size, found)),
            read_bytes=own.read_bytes + sum(fields.get("read_bytes", 0) for fields in inputs),
            written_bytes=own.written_bytes + sum(fields.get("write_bytes", 0) for fields in inputs),
            thread_count=own.thread_count + sum(_fields(path / "status").get("Threads", 0) for path in found),
            open_file_count=own.open_file_count + sum(map(_open_file_count, found)),
        )

    def _usage_of(self, processes: Iterable[int]) -> float:
        """The percentage of a core that other processes have used. One that was just started counts from then on."""
        with self._lock:
            now = self._clock.monotonic()
            elapsed = now - self._others_measured_at
            if elapsed >= _MEASURED_FOR_MIN:
                times = {process_id: _cpu_time(self._proc / str(process_id)) for process_id in processes}
                last = self._others_last
                used = sum(max(time - last[number], 0.0) for number, time in times.items() if number in last)
                self._others_usage = used * 1_000_000 / elapsed * _PERCENT
                self._others_last, self._others_measured_at = times, now
            return self._others_usage

    def disk_space(self) -> tuple[int, int]:
        """Free bytes and all bytes of the disk with the data."""
        return _disk_space(self._data_path)

    def _cpu_usage(self) -> tuple[float, float]:
        with self._lock:
            times, last = self._cpu_times(), self._last
            elapsed = times.measured_at - last.measured_at
            if elapsed >= _MEASURED_FOR_MIN:
                of_process = (times.process - last.process) * 1_000_000 / elapsed
                of_machine = (times.busy - last.busy) / max(times.total - last.total, 1)
                self._usage = (of_process * _PERCENT, of_machine * _PERCENT)
                self._last = times
            return self._usage

    def _cpu_times(self) -> _CpuTimes:
        own = os.times()
        first_line = _text(self._proc / "stat").partition("\n")[0]
        ticks = [int(word) for word in first_line.split()[1:9]]
        idle = sum(ticks[3:5])
        return _CpuTimes(self._clock.monotonic(), own.user + own.system, sum(ticks) - idle, sum(ticks))


def _resident_size(process: Path) -> int:
    words = _text(process / "statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


def _open_file_count(process: Path) -> int:
    try:
        return len(list((process / "fd").iterdir()))
    except OSError:
        return 0


def _cpu_time(process: Path) -> float:
    """Seconds of CPU that a process has used. Its name, which comes first, may have spaces."""
    words = _text(process / "stat").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK") if len(words) > 12 else 0.0


def describe_server(
    machine: Machine,
    figures: MachineFigures,
    *,
    clock: Clock,
    state: CatalogState,
    found: Sums,
    sessions: Sessions,
) -> Stats:
    """The statistics of the machine and the totals of the server. ``found`` are the figures of all topics."""
    topics = [topic for stream in state.streams.values() for topic in stream.topics.values()]
    return Stats(
        process_id=os.getpid(),
        cpu_usage=figures.cpu_usage,
        total_cpu_usage=figures.total_cpu_usage,
        memory_usage=figures.memory_usage,
        total_memory=figures.total_memory,
        available_memory=figures.available_memory,
        run_time=max(clock.now() - machine.started_at, 0),
        start_time=machine.started_at,
        read_bytes=figures.read_bytes,
        written_bytes=figures.written_bytes,
        messages_size=sum(sums.size for sums in found.values()),
        stream_count=len(state.streams),
        topic_count=len(topics),
        partition_count=sum(len(topic.partitions) for topic in topics),
        segment_count=sum(sums.segment_count for sums in found.values()),
        message_count=sum(sums.message_count for sums in found.values()),
        client_count=len(sessions),
        group_count=sum(len(topic.groups) for topic in topics),
        hostname=machine.hostname,
        os_name=machine.os_name,
        os_version=machine.os_version,
        kernel_version=machine.kernel_version,
        server_version=__version__,
        server_semver=semver_number(__version__),
        thread_count=figures.thread_count,
        free_disk_space=figures.free_disk_space,
        total_disk_space=figures.total_disk_space,
        open_file_count=figures.open_file_count,
        open_file_limit=figures.open_file_limit,
    )


def semver_number(version: str) -> int:
    """A version as one number: three digits each for minor and patch. 0 if it has another form."""
    words = version.partition("-")[0].partition("+")[0].split(".")
    if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        return 0
    major, minor, patch = map(int, words)
    return major * 1_000_000 + minor * 1_000 + patch


def _text(path: Path) -> str:
    """The contents of a small kernel file. Empty if it cannot be read, which depends on the system and the user."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file with lines like ``MemTotal: 1024 kB``."""
    fields: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[0] if rest.strip() else ""
        if number.isascii() and number.isdigit():
            fields[name] = int(number)
    return fields


def _disk_space(path: Path) -> tuple[int, int]:
    """Bytes that are free for this user, and all bytes."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _operating_system(path: Path) -> tuple[str, str]:
    """Name and version of the distribution, or else of the kernel."""
    lines = (line.partition("=") for line in _text(path).splitlines())
    facts = {name: value.strip("\"'") for name, _, value in lines}
    return facts.get("NAME", os.uname().sysname), facts.get("VERSION_ID", "")
