"""Puts the levers of a control file in front of the clock and the disk of the process that it is in."""

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from courser.model.buffers import Buffer
from courser.storage.local_files import LocalFile, LocalFileSystem
from courser.storage.watched_clock import SystemClock
from tests.chaos.control import CERTAIN, Control, Fault

CONTROL_VARIABLE = "CHAOS_CONTROL"
"""The environment variable that names the control file to further processes."""
WORKER_MODULE = "tests.chaos.worker_program"
"""What a further process runs."""


def obey(path: Path) -> None:
    """Put the levers in front of the clock and the disk of this process."""
    levers = Control(path)
    spoil_files(Dice(levers, archive=path.with_name("archive")))
    turn_clock(levers)


class Dice:
    """Decides which calls fail. Thrown anew from the seed whenever the driver gives another one."""

    def __init__(self, control: Control, archive: Path) -> None:
        """``archive``: the directory that holds it."""
        self._control = control
        self._archive = archive
        self._seed = 0
        self._source = random.Random(0)

    def choose(self, fault: Fault, path: object, *, error: int = errno.EIO) -> None:
        """Raise what this call has to end with, if anything."""
        faults, rate, seed = self._control.faults
        if not rate or not self._is_chosen(faults, fault, path):
            return
        if seed != self._seed:
            self._seed, self._source = seed, random.Random(seed)
        if self._source.randrange(CERTAIN) < rate:
            raise OSError(error, f"injected: {os.strerror(error)}", str(path))

    def _is_chosen(self, faults: Fault, fault: Fault, path: object) -> bool:
        if faults & fault:
            return True
        is_for_archive = bool(faults & Fault.FULL_ARCHIVE) and fault is Fault.FULL
        return is_for_archive and Path(str(path)).is_relative_to(self._archive)

    def part(self, size: int) -> int:
        return self._source.randrange(size + 1)


def spoil_files(dice: Dice) -> None:
    """Put the dice before the calls that storage makes."""
    write_at, open_file = LocalFile.write_at, LocalFileSystem.open

    def write(self: LocalFile, position: int, buffers: Sequence[Buffer]) -> int:
        dice.choose(Fault.FULL, self.path, error=errno.ENOSPC)
        try:
            dice.choose(Fault.WRITE, self.path)
        except OSError:
            # A disk that fails may have taken a part before it.
            data = b"".join(buffers)
            write_at(self, position, [data[: dice.part(len(data))]])
            raise
        return write_at(self, position, buffers)

    def open_(self: LocalFileSystem, path: Path, *, writable: bool = False, create: bool = False) -> LocalFile:
        if create:
            dice.choose(Fault.FULL, path, error=errno.ENOSPC)
            dice.choose(Fault.DIRECTORY, path)
        return open_file(self, path, writable=writable, create=create)

    LocalFile.write_at = write  # type: ignore[method-assign]
    LocalFileSystem.open = open_  # type: ignore[method-assign]
    for holder, name, fault, error in (
        (LocalFile, "sync", Fault.SYNC, errno.EIO),
        (LocalFile, "read_at", Fault.READ, errno.EIO),
        (LocalFile, "truncate", Fault.WRITE, errno.EIO),
        (LocalFile, "allocate", Fault.FULL, errno.ENOSPC),
        (LocalFileSystem, "make_directory", Fault.FULL, errno.ENOSPC),
        (LocalFileSystem, "rename", Fault.DIRECTORY, errno.EIO),
        (LocalFileSystem, "unlink", Fault.DIRECTORY, errno.EIO),
        (LocalFileSystem, "remove_directory", Fault.DIRECTORY, errno.EIO),
        (LocalFileSystem, "sync_directory", Fault.DIRECTORY, errno.EIO),
    ):
        setattr(holder, name, spoiled(getattr(holder, name), dice, fault, error))


def spoiled(call: Callable[..., Any], dice: Dice, fault: Fault, error: int) -> Callable[..., Any]:
    def made(self: Any, *arguments: Any, **named: Any) -> Any:
        place = arguments[0] if isinstance(self, LocalFileSystem) else self.path
        dice.choose(fault, place, error=error)
        return call(self, *arguments, **named)

    return made


def turn_clock(control: Control) -> None:
    """Let the wall clock stand where the driver wants it."""
    now = SystemClock.now

    def turned(self: SystemClock) -> int:
        return now(self) + control.clock_offset

    SystemClock.now = turned  # type: ignore[method-assign]
