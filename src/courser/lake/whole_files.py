"""Files that are there whole or not at all: written aside, synced, renamed.

Only for local disks and what is mounted like one. A power cut or a kill leaves at most a hidden ``.partial`` file,
which ``remove_partial_files`` takes away at the next run.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from courser.lake.naming import PARTIAL_SUFFIX


class WholeFile:
    """One file on its way. ``partial`` is where to write; then ``publish`` or ``discard``.

    Two writers of one file do not meet before the rename, and then both bring the same rows: the later one stands.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folders(path.parent)
        self.partial = path.with_name(f".{path.name}.{uuid4().hex}{PARTIAL_SUFFIX}")

    def publish(self) -> int:
        """Give it its name, durably; return its size in bytes. What had the name before is gone."""
        descriptor = os.open(self.partial, os.O_RDONLY)
        try:
            # Before the rename: else a power cut may leave the name with nothing behind it.
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        self.partial.replace(self.path)
        sync_folder(self.path.parent)
        return size

    def discard(self) -> None:
        """Take it away; whatever had the name before stays."""
        self.partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Give a small file new contents in one durable step."""
    file = WholeFile(path)
    try:
        file.partial.write_bytes(data)
        file.publish()
    except BaseException:
        file.discard()
        raise


def make_folders(folder: Path) -> None:
    """Make every missing folder down to ``folder``, each one durable in the one above it."""
    missing = []
    place = folder
    while not place.is_dir():
        missing.append(place)
        place = place.parent
    for place in reversed(missing):
        # Another task may have made it a moment ago; whether it lived to sync it nobody knows.
        with contextlib.suppress(FileExistsError):
            place.mkdir()
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_partial_files(root: Path) -> list[Path]:
    """Take away what runs before this one left half-written. Nobody may be writing below ``root`` meanwhile."""
    removed = list(_partial_files(root))
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def _partial_files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names if name.startswith(".") and name.endswith(PARTIAL_SUFFIX))
