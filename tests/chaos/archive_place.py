"""Where the archive of the server under test is: a directory that goes away and comes back, as a disk does."""

import shutil
import subprocess
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from tests.power.disks import Disk, run
from tests.torture.process import until

DISK_SIZE = 1024 * 1024 * 1024
"""Bytes, of a sparse image."""
UNMOUNT_PATIENCE = 5.0
"""Seconds that somebody may use a disk that is asked for."""
_NAME = "store"


class ArchivePlace:
    """A directory on a disk of its own where that can be had, otherwise just a directory."""

    def __init__(self, directory: Path, *, with_disk: bool) -> None:
        self.root = directory / "archive"
        """The mount point."""
        self.path = self.root / _NAME
        """What the server is told."""
        self.disk = Disk("ext4", directory / "archive.image", self.root) if with_disk else None
        self._away = self.root / "away"
        self._is_mounted = False
        self.is_gone = False

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        if self.disk is not None:
            self.disk.make(DISK_SIZE)
            self._mount()
        self.path.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.disk is not None:
            self.disk.remove()

    def take_away(self, source: Random) -> None:
        """Let nothing be there, or an empty directory: what is left of a disk that is not mounted."""
        if self.is_gone:
            return
        self.is_gone = True
        if self.disk is not None and source.random() < 0.7:
            self._unmount()
        else:
            self.path.rename(self._away)
        if source.random() < 0.7:
            self.path.mkdir(exist_ok=True)

    def bring_back(self) -> list[str]:
        """Let all be there again. Return what somebody has written in its place."""
        if not self.is_gone:
            return []
        found = sorted(str(entry.relative_to(self.path)) for entry in self.path.rglob("*") if entry.is_file())
        shutil.rmtree(self.path, ignore_errors=True)
        if self.disk is not None and not self._is_mounted:
            self._mount()
        else:
            self._away.rename(self.path)
        self.is_gone = False
        return found

    def _mount(self) -> None:
        assert self.disk is not None, "checked before"
        self.disk.mount()
        self._is_mounted = True

    def _unmount(self) -> None:
        """As an operator does it. What is in use for long is taken out of the tree of names: nobody finds it again."""
        try:
            until(self._try_unmount, "the end of its use", UNMOUNT_PATIENCE)
        except AssertionError:
            run("umount", "--lazy", str(self.root))
        self._is_mounted = False

    def _try_unmount(self) -> bool:
        return subprocess.run(("umount", str(self.root)), capture_output=True, check=False).returncode == 0
