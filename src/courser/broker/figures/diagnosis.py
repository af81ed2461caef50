"""The diagnosis archive: a ZIP file with the information that support needs, without secrets.

Processes are listed without arguments, which may contain passwords. Configuration and logs come from the server, which
masks secrets.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

from courser.api.operating_replies import LogLine, Setting
from courser.broker.figures.statistics import Machine
from courser.broker.figures.zip_archive import METHODS, write_zip
from courser.errors import CommandRejected, ErrorCode

ALL = 100
"""The kind that stands for all others except the test."""
_TEST = 4
_FILE_COUNT_MAX = 20_000
_PROCESS_COUNT_MAX = 5_000
"""Maximum rows of a list: the archive is sent as one reply."""
_LOGS_SIZE_MAX = 8 * 1024 * 1024
"""Bytes of the newest logs."""

Source = Callable[[], bytes]


class Diagnosis:
    """Creates archives, one at a time."""

    def __init__(self, machine: Machine, data_path: Path, pool: Executor, *, proc: Path = Path("/proc")) -> None:
        self._machine = machine
        self._data_path = data_path
        self._pool = pool
        self._proc = proc
        self._turn = asyncio.Lock()
        self.read_logs: Source = lambda: b"This server keeps no logs in files.\n"
        """Set by the server: its newest logs."""
        self.read_configuration: Source = lambda: b"This server was started without a configuration.\n"
        """Set by the server: the effective configuration, secrets masked."""
        self.list_settings: Callable[[], list[Setting]] = list
        """Set by the server: the same, key by key."""
        self.list_log_lines: Callable[[int], list[LogLine]] = lambda _: []
        """Set by the server: the newest lines of the log, with a higher number than this one."""

    async def make_archive(self, compression: int, kinds: tuple[int, ...]) -> bytes:
        """A ZIP file with one text for each kind, in the requested order.

        Raises:
            CommandRejected: 3 for unknown numbers, 9000 if the system cannot be inspected.
        """
        method = METHODS.get(compression)
        if method is None:
            raise CommandRejected(ErrorCode.INVALID_COMMAND, f"unknown compression {compression}")
        wanted = _resolve(kinds)
        async with self._turn:
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._pool, lambda: write_zip([self._entry(kind) for kind in wanted], method)
                )
            except OSError as error:
                raise CommandRejected(ErrorCode.SNAPSHOT_FAILED, f"could not create the snapshot: {error}") from error

    def _entry(self, kind: int) -> tuple[str, bytes]:
        match kind:
            case 1:
                return "filesystem_overview.txt", "".join(self._files()).encode(errors="replace")
            case 2:
                return "process_list.txt", "".join(self._processes()).encode(errors="replace")
            case 3:
                return "resource_usage.txt", "".join(self._resources()).encode(errors="replace")
            case 5:
                return "server_logs.txt", self.read_logs()[-_LOGS_SIZE_MAX:]
            case 6:
                return "server_config.txt", self.read_configuration()
            case _:
                return "test.txt", b"test\n"

    def _resources(self) -> Iterator[str]:
        figures = self._machine.measure()
        for name in figures.__dataclass_fields__:
            yield f"{name} {getattr(figures, name)}\n"

    def _files(self) -> Iterator[str]:
        figures = self._machine.measure()
        yield f"total_disk_space {figures.total_disk_space}\nfree_disk_space {figures.free_disk_space}\n\nsize path\n"
        count = 0
        for directory, subdirectories, names in os.walk(self._data_path):
            subdirectories.sort()
            for name in sorted(names):
                count += 1
                if count > _FILE_COUNT_MAX:
                    yield f"... and more: this list is limited to {_FILE_COUNT_MAX} files\n"
                    return
                path = Path(directory, name)
                yield f"{_size(path)} {path.relative_to(self._data_path)}\n"

    def _processes(self) -> Iterator[str]:
        yield "pid state memory name\n"
        numbers = sorted(int(path.name) for path in self._proc.iterdir() if path.name.isdigit())
        page_size = os.sysconf("SC_PAGE_SIZE")
        for number in numbers[:_PROCESS_COUNT_MAX]:
            try:
                line = (self._proc / str(number) / "stat").read_text(errors="replace")
            except OSError:
                # The process has ended meanwhile.
                continue
            # The name is in parentheses and may itself contain parentheses.
            name, _, rest = line.partition("(")[2].rpartition(")")
            words = rest.split()
            yield f"{number} {words[0]} {int(words[21]) * page_size} {name}\n"


def _resolve(kinds: tuple[int, ...]) -> tuple[int, ...]:
    if kinds == (ALL,):
        return (1, 2, 3, 5, 6)
    unknown = [kind for kind in kinds if not 1 <= kind <= 6]
    if unknown:
        reason = f"unknown snapshot kind {unknown[0]}, or one that cannot be combined with others"
        raise CommandRejected(ErrorCode.INVALID_COMMAND, reason)
    return tuple(dict.fromkeys(kinds))


def _size(path: Path) -> int | str:
    try:
        return path.lstat().st_size
    except OSError:
        # Deleted meanwhile.
        return "-"
