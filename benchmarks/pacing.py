"""Send at a steady rate that the disk can sustain. A stall is then a fault and not the limit of the machine."""

import os
import time
from pathlib import Path

from benchmarks.harness import MIB


class Pace:
    """Spreads sends evenly. A rate of 0 means no limit."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._begin = time.perf_counter()
        self._size = 0

    def delay(self, size: int) -> float:
        """Count ``size`` sent bytes. Returns the seconds to wait before the next send."""
        self._size += size
        return max(self._begin + self._size / self._rate - time.perf_counter(), 0) if self._rate else 0


def disk_speed(path: Path, size: int) -> float:
    """The write rate of the disk in bytes per second."""
    block = os.urandom(MIB)
    descriptor = os.open(path / "probe", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        begin = time.perf_counter()
        for position in range(0, size, MIB):
            os.pwrite(descriptor, block, position)
        os.fdatasync(descriptor)
        return size / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)
