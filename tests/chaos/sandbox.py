"""The server under test with its disk, and everything that can be taken from it: room, descriptors, time, its life."""

import contextlib
import os
import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from tests.chaos.control import CERTAIN, Control, Fault
from tests.chaos.plan import Trouble
from tests.power.disks import Disk
from tests.servers import RunningServer

DISK_SIZE = 192 * 1024 * 1024
"""Bytes of the small disk: enough for some minutes of messages, little enough to be filled in a moment."""
CONNECTION_COUNT_MAX = 400
"""Slots of the server: few, so that strangers can take them all."""
SETTINGS = {
    "system.segment.size": "512 KiB",
    "system.logging.file_enabled": "false",
    "system.shutdown_timeout": "2s",
    "data_maintenance.messages.interval": "2s",
    "tcp.connection_count_max": str(CONNECTION_COUNT_MAX),
}
_HOUR = 3_600_000_000
_YEAR = 365 * 24 * _HOUR
_FAULTS = {
    Trouble.WRITE_ERRORS: Fault.WRITE,
    Trouble.SYNC_ERRORS: Fault.SYNC,
    Trouble.READ_ERRORS: Fault.READ,
    Trouble.DIRECTORY_ERRORS: Fault.DIRECTORY,
}
_PROGRAM = Path(__file__).with_name("server_program.py")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A start that failed."""

    reason: str


class Sandbox:
    """One directory with all of it. The data is on a small disk of its own where that can be had."""

    def __init__(self, directory: Path, *, with_disk: bool) -> None:
        """``with_disk``: mount a small file system, which takes root; otherwise the disk only pretends to be full."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._disk = Disk("ext4", directory / "disk.image", directory / "disk") if with_disk else None
        self.control = Control(directory / "control")
        data = (directory / "disk" if with_disk else directory) / "data"
        self.server = RunningServer(
            directory / "server",
            settings=SETTINGS | {"system.path": data},
            prefix=(sys.executable, "-P", str(_PROGRAM), str(self.control.path)),
        )
        self.server.data = data
        self._seen_output = 0
        self._faults = Fault.NONE
        self._full = False

    def __enter__(self) -> Self:
        if self._disk is not None:
            self._disk.make(DISK_SIZE)
            self._disk.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_running:
                self.server.thaw()
                self.server.process.kill()
                self.server.process.wait(60.0)
        finally:
            if self._disk is not None:
                self._disk.remove()

    # --- life -----------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        try:
            return self.server.process.poll() is None
        except AssertionError:
            return False

    def start(self) -> Refusal | None:
        """Start the server; say why it does not want to, if so."""
        try:
            self.server.start()
        except AssertionError as refusal:
            return Refusal(str(refusal)[-2000:])
        return None

    def kill(self) -> None:
        self.server.process.kill()
        self.server.process.wait(60.0)

    def stop(self) -> int:
        return self.server.stop()

    # --- trouble --------------------------------------------------------------------------------------

    @property
    def is_clock_set(self) -> bool:
        """Whether the server's clock is another one than the machine's."""
        return self.control.clock_offset != 0

    def make(self, trouble: Trouble, source: Random) -> None:
        """Begin some trouble. Strangers and freezes are not made here."""
        match trouble:
            case Trouble.FULL_DISK:
                self._fill(source)
            case Trouble.DESCRIPTORS:
                self._take_descriptors(source.randrange(8))
            case Trouble.CLOCK_AHEAD:
                self.control.step_clock(source.choice((_HOUR, 24 * _HOUR, _YEAR, 10 * _YEAR)))
            case Trouble.CLOCK_BEHIND:
                self.control.step_clock(-source.choice((1_000_000, _HOUR, 24 * _HOUR, 10 * _YEAR)))
            case Trouble.FREEZE | Trouble.STRANGERS:
                raise ValueError(f"{trouble} is made elsewhere")
            case _:
                self._faults |= _FAULTS[trouble]
                self.control.fail(self._faults, source.choice((2_000, 20_000, 200_000)), source.getrandbits(32))

    def heal(self) -> None:
        """All is well again."""
        self._faults, self._full = Fault.NONE, False
        self.control.work()
        self.control.step_clock(0)
        self._ballast.unlink(missing_ok=True)
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(self.server.process.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(self.server.process.pid, resource.RLIMIT_NOFILE, (hard, hard))

    @property
    def _ballast(self) -> Path:
        return self.server.data.parent / "ballast"

    def _fill(self, source: Random) -> None:
        if self._disk is None:
            self._faults |= Fault.FULL
            self.control.fail(self._faults, source.choice((CERTAIN, CERTAIN // 2)), source.getrandbits(32))
            return
        room = source.choice((0, 0, 4096, 65536))
        with self._ballast.open("wb", buffering=0) as file:
            free = os.statvfs(self._ballast.parent).f_bavail * 4096 - room
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, free))
            with contextlib.suppress(OSError):
                while not room:
                    # Not posix_fallocate, which takes all or nothing.
                    file.seek(0, os.SEEK_END)
                    file.write(bytes(4096))

    def _take_descriptors(self, left: int) -> None:
        if not self.is_running:
            return
        pid = self.server.process.pid
        used = max((int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()), default=0) + 1
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(used + left, hard), hard))

    # --- facts ----------------------------------------------------------------------------------------

    def new_output(self) -> str:
        """What the server has printed since the last call."""
        output = self.server.output
        seen, self._seen_output = self._seen_output, len(output)
        return output[seen:]

    @property
    def used_share(self) -> float:
        """How much of the small disk is taken; 0 where there is none."""
        if self._disk is None:
            return 0.0
        facts = os.statvfs(self._disk.path)
        return 1.0 - facts.f_bavail / facts.f_blocks

    def keep_evidence(self, target: Path) -> None:
        """Copy data and output to where they outlive the disk."""
        target.mkdir(parents=True, exist_ok=True)
        if self.server.data.exists():
            shutil.copytree(self.server.data, target / "data", dirs_exist_ok=True)
        shutil.copy(self.server.output_file, target / "output.txt")
