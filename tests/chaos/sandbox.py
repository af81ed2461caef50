"""The server under test with its disk, and everything that can be taken from it: room, descriptors, time, its life."""

import contextlib
import http.client
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from tests.chaos.archive_place import ArchivePlace
from tests.chaos.control import CERTAIN, Control, Fault
from tests.chaos.plan import Trouble
from tests.chaos.spoiling import WORKER_MODULE
from tests.power.disks import Disk
from tests.processes.processes import children_of
from tests.servers import RunningServer

DISK_SIZE = 192 * 1024 * 1024
"""Bytes of the small disk: enough for some minutes of messages, little enough to be filled in a moment."""
CONNECTION_COUNT_MAX = 400
"""Slots of the server: few, so that strangers can take them all."""
SETTINGS = {
    "system.segment.size": "512 KiB",
    "system.logging.file_enabled": "false",
    "system.shutdown_timeout": "30s",
    "data_maintenance.messages.interval": "2s",
    "tcp.connection_count_max": str(CONNECTION_COUNT_MAX),
    "http.enabled": "true",
    "http.address": "127.0.0.1:0",
}
ARCHIVE_SETTINGS = {
    "data_maintenance.archiver.enabled": "true",
    "data_maintenance.archiver.interval": "200ms",
    "data_maintenance.archiver.active_interval": "1s",
}
RESTORED_SETTINGS = {
    # What has expired stays: the archive has it, and so has the restored directory.
    "data_maintenance.messages.cleaner_enabled": "false",
}
ARCHIVE_AGE_MAX = "1m"
"""What is older and not needed any more is removed when the archive's disk gets full."""
_HOUR = 3_600_000_000
_YEAR = 365 * 24 * _HOUR
_FAULTS = {
    Trouble.WRITE_ERRORS: Fault.WRITE,
    Trouble.SYNC_ERRORS: Fault.SYNC,
    Trouble.READ_ERRORS: Fault.READ,
    Trouble.DIRECTORY_ERRORS: Fault.DIRECTORY,
}
_PROGRAM = Path(__file__).with_name("server_program.py")


class ArchiveRefused(Exception):
    """A command on an archive that should be well has failed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A start that failed."""

    reason: str


class Sandbox:
    """One directory with all of it. The data is on a small disk of its own where that can be had."""

    def __init__(self, directory: Path, *, with_disk: bool, with_archive: bool) -> None:
        """``with_disk``: mount small file systems, which takes root; otherwise disks only pretend to be full."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._disk = Disk("ext4", directory / "disk.image", directory / "disk") if with_disk else None
        self.control = Control(directory / "control")
        self.archive = ArchivePlace(directory, with_disk=with_disk) if with_archive else None
        data = (directory / "disk" if with_disk else directory) / "data"
        archive = ARCHIVE_SETTINGS | {"data_maintenance.archiver.path": self.archive.path} if self.archive else {}
        self.server = RunningServer(
            directory / "server",
            settings=SETTINGS | archive | {"system.path": data, "server.processes": "1"},
            prefix=(sys.executable, "-P", str(_PROGRAM), str(self.control.path)),
        )
        self.server.data = data
        self._seen_output = 0
        self._faults = Fault.NONE

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            if self._disk is not None:
                stack.callback(self._disk.remove)
                self._disk.make(DISK_SIZE)
                self._disk.mount()
            if self.archive is not None:
                stack.enter_context(self.archive)
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end(self) -> None:
        if self.is_running:
            self.server.thaw()
            self.kill()

    # --- life -----------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        try:
            return self.server.process.poll() is None
        except AssertionError:
            return False

    @property
    def process_count(self) -> int:
        """How many processes the server has, from the next start on."""
        return int(str(self.server.settings["server.processes"]))

    @process_count.setter
    def process_count(self, count: int) -> None:
        self.server.settings["server.processes"] = str(count)

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

    def stop(self) -> tuple[int, float]:
        """Ask it to stop. Return its exit code, and the seconds that it took."""
        began = time.monotonic()
        return self.server.stop(), time.monotonic() - began

    # --- further processes ---

    def signal_process(self, number: int, source: Random) -> None:
        """Send a signal to one of the further processes. It may be away just now."""
        children = children_of(self.server, WORKER_MODULE) if self.is_running else []
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(source.choice(children), number)

    def thaw_processes(self) -> None:
        """Let all of them go on."""
        for child in children_of(self.server, WORKER_MODULE) if self.is_running else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)

    def ask_health(self, path: str, patience: float) -> str | None:
        """Ask over HTTP how the server is. Return why there was no answer."""
        host, _, port = self.server.address_of("http").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=patience)
        try:
            connection.request("GET", path)
            connection.getresponse().read()
        except TimeoutError:
            return f"no answer within {patience} s"
        except OSError as error:
            # Strangers, descriptors that ran out: no sign of a silent process.
            return None if error.errno else str(error)
        finally:
            connection.close()
        return None

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
            case Trouble.ARCHIVE_GONE:
                if self.archive is not None:
                    self.archive.take_away(source)
            case Trouble.ARCHIVE_FULL:
                self._fill_archive(source)
            case Trouble.KILLED_PROCESS:
                self.signal_process(signal.SIGKILL, source)
            case Trouble.FROZEN_PROCESS:
                self.signal_process(signal.SIGSTOP, source)
            case Trouble.KILLED_ON_FULL_DISK:
                self._fill(source)
                self.signal_process(signal.SIGKILL, source)
            case Trouble.FREEZE | Trouble.STRANGERS | Trouble.STOPPED:
                raise ValueError(f"{trouble} is made elsewhere")
            case _:
                self._faults |= _FAULTS[trouble]
                self.control.fail(self._faults, source.choice((2_000, 20_000, 200_000)), source.getrandbits(32))

    def heal(self) -> list[str]:
        """All is well again. Return what was written where the archive had been."""
        self._faults = Fault.NONE
        self.control.work()
        self.control.step_clock(0)
        self._ballast.unlink(missing_ok=True)
        self.thaw_processes()
        misplaced = []
        if self.archive is not None:
            misplaced = self.archive.bring_back()
            self._archive_ballast.unlink(missing_ok=True)
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(self.server.process.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(self.server.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        return misplaced

    @property
    def _ballast(self) -> Path:
        return self.server.data.parent / "ballast"

    def _fill(self, source: Random) -> None:
        if self._disk is None:
            self._faults |= Fault.FULL
            self.control.fail(self._faults, source.choice((CERTAIN, CERTAIN // 2)), source.getrandbits(32))
            return
        fill_disk(self._ballast, room=source.choice((0, 0, 4096, 65536)))

    @property
    def _archive_ballast(self) -> Path:
        assert self.archive is not None, "asked for only with one"
        return self.archive.root / "ballast"

    def _fill_archive(self, source: Random) -> None:
        if self.archive is None or self.archive.is_gone:
            return
        if self.archive.disk is not None:
            fill_disk(self._archive_ballast, room=source.choice((0, 4096, 65536, 1 << 20)))
        else:
            self._faults |= Fault.FULL_ARCHIVE
            self.control.fail(self._faults, source.choice((CERTAIN, CERTAIN // 2)), source.getrandbits(32))

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
        return used_share_of(self._disk.path)

    @property
    def archive_used_share(self) -> float:
        """The same of the archive's disk."""
        return 0.0 if self.archive is None or self.archive.disk is None else used_share_of(self.archive.root)

    # --- the archive ---

    def restore(self) -> RunningServer:
        """A server over what the archive brings back. Raises ``ArchiveRefused``."""
        self.ask_archive("verify")
        restored = self.directory / "restored"
        shutil.rmtree(restored, ignore_errors=True)
        server = RunningServer(restored, settings=SETTINGS | RESTORED_SETTINGS)
        self.ask_archive("restore", str(server.data))
        return server

    def prune_archive(self) -> None:
        """Remove from it what no restore needs. Raises ``ArchiveRefused``."""
        self.ask_archive("prune", "--keep", ARCHIVE_AGE_MAX, "--yes")

    def ask_archive(self, *arguments: str) -> None:
        """``courser archive``, as an operator uses it."""
        assert self.archive is not None, "asked for only with one"
        file = self.directory / "archive.toml"
        file.write_text(f'[data_maintenance.archiver]\nenabled = true\nkind = "disk"\npath = "{self.archive.path}"\n')
        words = (str(Path(sys.executable).with_name("courser")), "archive", *arguments, "--config", str(file))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            output = f"{done.stdout}{done.stderr}"[-2000:]
            raise ArchiveRefused(f"courser archive {arguments[0]} ended with {done.returncode}: {output}")

    def keep_evidence(self, target: Path) -> None:
        """Copy data and output to where they outlive the disk."""
        target.mkdir(parents=True, exist_ok=True)
        if self.server.data.exists():
            shutil.copytree(self.server.data, target / "data", dirs_exist_ok=True)
        shutil.copy(self.server.output_file, target / "output.txt")
        if self.archive is not None and self.archive.path.exists():
            shutil.copytree(self.archive.path, target / "archive", dirs_exist_ok=True)
        if (restored := self.directory / "restored").exists():
            shutil.copytree(restored, target / "restored", dirs_exist_ok=True)


def fill_disk(ballast: Path, room: int) -> None:
    """Let so many bytes be left, or none."""
    with ballast.open("wb", buffering=0) as file:
        free = os.statvfs(ballast.parent).f_bavail * 4096 - room
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, free))
        with contextlib.suppress(OSError):
            while not room:
                # Not posix_fallocate, which takes all or nothing.
                file.seek(0, os.SEEK_END)
                file.write(bytes(4096))


def used_share_of(path: Path) -> float:
    """How much of a disk is taken."""
    facts = os.statvfs(path)
    return 1.0 - facts.f_bavail / facts.f_blocks
