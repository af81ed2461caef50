"""A whole directory: every partition below it, and the session file of the data directory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from courser.inspect.findings import Finding, Severity, VerifySummary
from courser.inspect.partition_check import PartitionCheck, is_partition, reading_failure
from courser.inspect.small_files import BadRecordRow, SessionInspection
from courser.storage.files import EntryKind, FileSystem
from courser.storage.paths import SESSION
from courser.storage.session import DIRECTORY_FORMAT, read_session

_PARTITION_DEPTH = 6
"""From ``streams/<id>/topics/<id>/partitions/<id>`` up to the data directory."""


@dataclass(frozen=True, slots=True)
class VerifyHead:
    """What is about to be checked."""

    path: Path
    partition_count: int
    size: int
    """Bytes of all files in them when the check began."""


def _ignore(_size: int) -> None:
    pass


class Verification:
    """Checks everything below a directory. ``findings`` once, then ``summary``.

    Reads only, takes no lock, and may run beside a server: what is being written or deleted meanwhile is no damage.
    """

    def __init__(self, file_system: FileSystem, directory: Path, on_progress: Callable[[int], None] = _ignore) -> None:
        self._file_system = file_system
        self._directory = directory
        self._on_progress = on_progress
        self._failures: list[Finding] = []
        self._partitions: list[Path] = []
        self._size = 0
        self.summary = VerifySummary()
        # The directory itself must be readable: this error is the caller's.
        self._has_session = any(entry.name == SESSION for entry in file_system.list_directory(directory))
        self._search(directory)
        self.head = VerifyHead(directory, len(self._partitions), self._size)

    @property
    def is_pointless(self) -> bool:
        """Whether there is nothing here that could be checked."""
        return not self._partitions and not self._has_session and not self._failures

    def _search(self, directory: Path) -> None:
        """Find the partitions below ``directory``, in the order of their names."""
        try:
            entries = self._file_system.list_directory(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            self._failures.append(reading_failure(directory, error))
            return
        if is_partition([entry.name for entry in entries if entry.kind is EntryKind.FILE]):
            self._partitions.append(directory)
            self._size += sum(entry.size for entry in entries if entry.kind is EntryKind.FILE)
            return
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.kind is EntryKind.DIRECTORY:
                self._search(directory / entry.name)

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong, partition by partition."""
        for finding in self._all():
            self.summary.count(finding)
            yield finding

    def _all(self) -> Iterator[Finding]:
        yield from self._failures
        if self._has_session:
            yield from self._check_session(self._directory / SESSION)
        for path in self._partitions:
            check = PartitionCheck(
                self._file_system,
                path,
                self.summary,
                is_settled=partial(self._is_settled, path),
                on_progress=self._on_progress,
            )
            try:
                yield from check.findings()
            except FileNotFoundError:
                yield Finding(Severity.NOTE, "files", path, "gone since the directory was listed: skipped")
            except OSError as error:
                yield reading_failure(path, error)

    def _check_session(self, path: Path) -> Iterator[Finding]:
        try:
            session = SessionInspection(self._file_system, path)
        except FileNotFoundError:
            return
        except OSError as error:
            yield reading_failure(path, error)
            return
        self.summary.size += len(session.data)
        for row in session.rows():
            if isinstance(row, BadRecordRow):
                yield Finding(Severity.DAMAGE, "session", path, row.reason, row.position, row.end_position)
            elif row.directory_format > DIRECTORY_FORMAT:
                text = f"the directory has format {row.directory_format}; this version knows up to {DIRECTORY_FORMAT}"
                yield Finding(Severity.WARNING, "session", path, text)

    def _is_settled(self, partition: Path) -> bool:
        """Whether the server of a partition has stopped cleanly and not started again since."""
        directory = self._directory if self._has_session else _data_directory_of(partition)
        if directory is None:
            return False
        try:
            session = read_session(self._file_system, directory)
        except OSError:
            return False
        return session is not None and session.is_clean


def _data_directory_of(partition: Path) -> Path | None:
    """The data directory above a partition, if the directories between them have the names that they should."""
    parts = partition.absolute()
    if len(parts.parents) < _PARTITION_DEPTH:
        return None
    names = (parts.parents[0].name, parts.parents[2].name, parts.parents[4].name)
    return parts.parents[5] if names == ("partitions", "topics", "streams") else None
