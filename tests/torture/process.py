"""What the kernel knows about a server process."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1024 * 1024


class Process:
    """Memory and descriptors of a process, by its number."""

    def __init__(self, pid: int) -> None:
        self._directory = Path("/proc") / str(pid)

    @property
    def memory(self) -> int:
        """Bytes that are in memory now."""
        return self._from_status("VmRSS")

    @property
    def memory_peak(self) -> int:
        """Bytes that were in memory at most, since the last ``forget_peak``."""
        return self._from_status("VmHWM")

    def forget_peak(self) -> None:
        (self._directory / "clear_refs").write_text("5")

    @property
    def descriptor_count(self) -> int:
        return len(list((self._directory / "fd").iterdir()))

    @property
    def thread_count(self) -> int:
        return len(list((self._directory / "task").iterdir()))

    def _from_status(self, name: str) -> int:
        (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", (self._directory / "status").read_text())
        return int(kilobytes) * 1024


def until(condition: Callable[[], bool], what: str, patience: float = 60.0) -> None:
    """Look again and again until something has happened in another process."""
    deadline, pause = time.monotonic() + patience, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not happened"
        pause.wait(0.01)
