"""Disks that can lose their power: file systems in image files, mounted through loop devices.

The cut is the shutdown ioctl: from that moment on nothing reaches the image, not even the journal. What was not synced
is then gone for good, as far as the file system had not written it of its own accord. What it does not show: a disk
that lies about its own cache.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING_THE_JOURNAL = 2
IMAGE_SIZE = 384 * 1024 * 1024
"""Bytes, sparse: XFS takes no less than 300 MiB."""

_MAKE = {
    # Everything written at once: no thread of the kernel goes on initialising behind the test's back.
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
FILE_SYSTEMS = tuple(_MAKE)


def require_tools(kind: str) -> None:
    """Fail, with the remedy, if the file system cannot be made here."""
    if shutil.which(_MAKE[kind][0]) is None:
        pytest.fail(f"{_MAKE[kind][0]} is missing: apt-get install {_PACKAGES[kind]}")


class Disk:
    """One image, and the directory where it is mounted."""

    def __init__(self, kind: str, image: Path, mount_point: Path, *, options: str = "loop") -> None:
        self.kind = kind
        self.image = image
        self.path = mount_point
        self._options = options
        self._is_thin = False

    def make(self, size: int = IMAGE_SIZE) -> None:
        """A fresh file system."""
        require_tools(self.kind)
        with self.image.open("wb") as file:
            file.truncate(size)
        run(*_MAKE[self.kind], str(self.image))

    def make_thin(self, size: int, backed_size: int) -> None:
        """A file system whose own tables have room below them, and whose data has not."""
        require_tools(self.kind)
        self._is_thin = True
        with self.image.open("wb") as file:
            file.truncate(size)
        # All tables and the journal at the beginning, directories right behind them.
        layout = "packed_meta_blocks=1,lazy_itable_init=0,lazy_journal_init=0"
        run("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", layout, "-J", "size=4", "-N", "256", str(self.image))
        with self.image.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, backed_size)

    def mount(self) -> None:
        """With it the journal is replayed. The loop device goes with the mount."""
        self.path.mkdir(exist_ok=True)
        run("mount", "-t", self.kind, "-o", self._options, str(self.image), str(self.path))
        if self._is_thin:
            # The loop driver takes a request that was written in part for a success: a disk that lies. One page at a
            # time there is no part.
            device = Path(run("losetup", "--noheadings", "--output", "NAME", "--associated", str(self.image)).strip())
            Path("/sys/block", device.name, "queue/max_sectors_kb").write_text("4", "ascii")

    def cut_power(self) -> None:
        """Nothing reaches the image any more."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING_THE_JOURNAL))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Nobody may use it any more."""
        run("umount", str(self.path))

    def restore_power(self) -> None:
        """Off and on again."""
        self.unmount()
        self.mount()

    def remove(self) -> None:
        """Whatever state it is in: no mount, no loop device and no image is left."""
        while os.path.ismount(self.path):
            run("umount", "--lazy", str(self.path))
        self.image.unlink(missing_ok=True)


def run(*command: str) -> str:
    """Run a tool; a failure shows what it said."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}"
    return result.stdout
