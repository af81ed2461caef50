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

    def make(self, size: int = IMAGE_SIZE) -> None:
        """A fresh file system."""
        require_tools(self.kind)
        with self.image.open("wb") as file:
            file.truncate(size)
        run(*_MAKE[self.kind], str(self.image))

    def mount(self) -> None:
        """With it the journal is replayed. The loop device goes with the mount."""
        self.path.mkdir(exist_ok=True)
        run("mount", "-t", self.kind, "-o", self._options, str(self.image), str(self.path))

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
