"""Check file and directory modes: only the server's user may access its data."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from courser.inspect.findings import Finding, Severity
from courser.storage.files import EntryKind, FileSystem
from courser.storage.paths import METADATA

_OTHERS = 0o077
"""Permissions of the group and of others."""


@dataclass(slots=True)
class _Wide:
    """The first file of a kind with a wrong mode, and their number."""

    path: Path
    mode: int
    count: int = 0


class ModesCheck:
    """Checks the modes of all files in a data directory. Reports one finding per kind, not one per file."""

    def __init__(self, file_system: FileSystem, data_directory: Path) -> None:
        self._file_system = file_system
        self._path = data_directory
        self._wide: dict[tuple[bool, EntryKind], _Wide] = {}
        """By whether it is metadata, and by kind of entry."""

    def findings(self) -> Iterator[Finding]:
        """Files that others may read or write."""
        self._note(self._path, EntryKind.DIRECTORY)
        self._walk(self._path)
        for (_, kind), wide in self._wide.items():
            wanted = 0o600 if kind is EntryKind.FILE else 0o700
            more = f" (and {wide.count - 1} more like it)" if wide.count > 1 else ""
            text = f"mode {wide.mode:04o} gives access to others; the server sets {wanted:04o}{more}"
            yield Finding(Severity.WARNING, "modes", wide.path, text)

    def _walk(self, directory: Path) -> None:
        try:
            entries = self._file_system.list_directory(directory)
        except OSError:
            # Deleted in the meantime, or not accessible: the check that reads the directory reports that.
            return
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = directory / entry.name
            if entry.kind is not EntryKind.OTHER:
                self._note(path, entry.kind)
            if entry.kind is EntryKind.DIRECTORY:
                self._walk(path)

    def _note(self, path: Path, kind: EntryKind) -> None:
        try:
            # The FileSystem protocol has no modes: this is the only direct access.
            mode = stat.S_IMODE(path.lstat().st_mode)
        except OSError:
            return
        if mode & _OTHERS:
            is_metadata = METADATA in path.relative_to(self._path).parts[:1]
            self._wide.setdefault((is_metadata, kind), _Wide(path, mode)).count += 1
