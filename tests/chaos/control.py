"""The levers of a server under test: a small file that the driver writes and the server's process reads at each call.

The server is the real ``courser serve`` (``server_program``): only the last step to the kernel's clock and files looks
here first.
"""

import mmap
import struct
from enum import IntFlag
from pathlib import Path

_LAYOUT = struct.Struct("<qIIQ")
"""Microseconds that the wall clock is ahead, faults, calls out of a million that fail, seed."""
CERTAIN = 1_000_000
"""A rate at which every call fails."""


class Fault(IntFlag):
    """Which calls may fail."""

    NONE = 0
    WRITE = 1
    """EIO, before or after a part of the bytes was taken."""
    SYNC = 2
    READ = 4
    DIRECTORY = 8
    """Names: made, renamed, removed, synced."""
    FULL = 16
    """ENOSPC of all that needs room."""
    FULL_ARCHIVE = 32
    """The same, on the archive's disk alone."""


class Control:
    """One such file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.path = path

    @property
    def clock_offset(self) -> int:
        """Microseconds."""
        return int(_LAYOUT.unpack_from(self._map)[0])

    @property
    def faults(self) -> tuple[Fault, int, int]:
        """Which ones, calls out of a million, and the seed of the dice."""
        _, faults, rate, seed = _LAYOUT.unpack_from(self._map)
        return Fault(faults), rate, seed

    def step_clock(self, microseconds: int) -> None:
        """Set the wall clock so far ahead of the real one; 0 is right again."""
        struct.pack_into("<q", self._map, 0, microseconds)

    def fail(self, faults: Fault, rate: int, seed: int) -> None:
        """Let calls fail from now on."""
        # The rate last: half of an order is harmless.
        struct.pack_into("<I", self._map, 12, 0)
        struct.pack_into("<Q", self._map, 16, seed)
        struct.pack_into("<I", self._map, 8, int(faults))
        struct.pack_into("<I", self._map, 12, rate)

    def work(self) -> None:
        """The disk works again."""
        self.fail(Fault.NONE, 0, 0)
