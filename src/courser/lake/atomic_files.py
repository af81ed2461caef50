"""Atomic file writes: a file is written aside, synced and renamed, so that it appears complete or not at all.

Only for local disks and mounts that behave like them. A power cut or a crash leaves at most a hidden ``.partial`` file,
which ``remove_partial_files`` removes in the next run.
"""

import contextlib
import os
from pathlib import Path
from uuid import uuid4

from courser.lake.file_names import PARTIAL_SUFFIX


class AtomicFile:
    """A file that is being written. Write to ``partial``, then call ``publish`` or ``discard``.

    Two writers of one file do not interfere before the rename. Both write the same rows, so either may win.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folders(path.parent)
        self.partial = path.with_name(f".{path.name}.{uuid4().hex}{PARTIAL_SUFFIX}")

    def publish(self) -> int:
        """Rename it into place durably, replacing any file of that name. Returns its size in bytes."""
        descriptor = os.open(self.partial, os.O_RDONLY)
        try:
            # Before the rename: otherwise a power cut may leave the name with an empty file.
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        self.partial.replace(self.path)
        sync_folder(self.path.parent)
        return size

    def discard(self) -> None:
        """Remove it. Any file that had the name before stays."""
        self.partial.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the contents of a small file atomically and durably."""
    file = AtomicFile(path)
    try:
        file.partial.write_bytes(data)
        file.publish()
    except BaseException:
        file.discard()
        raise


def make_folders(folder: Path) -> None:
    """Create ``folder`` and its missing parents durably."""
    missing = []
    place = folder
    while not place.is_dir():
        missing.append(place)
        place = place.parent
    for place in reversed(missing):
        # Another task may have just created it, and may have died before it synced the parent. So sync in any case.
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


def remove_partial_files(root: Path) -> None:
    """Remove half-written files of earlier runs. Nothing may be writing below ``root`` meanwhile."""
    for path in root.rglob(f".*{PARTIAL_SUFFIX}"):
        path.unlink(missing_ok=True)
