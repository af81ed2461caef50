"""Check a whole directory: every partition in it, and the session file and metadata of the data directory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from courser.inspect.findings import Finding, Severity, VerifySummary, reading_failure
from courser.inspect.metadata_check import Metadata, MetadataCheck
from courser.inspect.partition_check import CheckSegment, PartitionCheck, PartitionSurvey, is_partition
from courser.inspect.segment_check import SegmentOutcome, SegmentPlan, check_segment
from courser.inspect.small_files import BadRecordRow, SessionInspection
from courser.inspect.tree_check import TreeCheck, check_modes
from courser.records.encryption import NO_KEYS, KeyRing
from courser.storage.files import EntryKind, FileSystem
from courser.storage.paths import DESCRIPTOR, JOURNAL, METADATA, METADATA_SNAPSHOT, QUARANTINE, SESSION, STREAMS
from courser.storage.session_file import DIRECTORY_FORMAT

_PARTITION_DEPTH = 6
"""From ``streams/<id>/topics/<id>/partitions/<id>`` up to the data directory."""


@dataclass(frozen=True, slots=True)
class VerifyHead:
    """What will be checked."""

    path: Path
    partition_count: int
    size: int
    """Bytes of all files in them at the start of the check."""


def _ignore(_size: int) -> None:
    pass


class Verification:
    """Checks everything in a directory. Call ``findings`` once, then ``summary``.

    Read-only, takes no lock, and may run while a server is running: files that change meanwhile are not damage.
    """

    def __init__(self, file_system: FileSystem, directory: Path, *, keys: KeyRing = NO_KEYS) -> None:
        """``keys`` are needed to check the messages in encrypted batches, not for their hashes."""
        self._keys = keys
        self._file_system = file_system
        self._directory = directory
        self._surveys: dict[Path, PartitionSurvey] = {}
        self._failures: list[Finding] = []
        self._partitions: list[Path] = []
        self._size = 0
        self.summary = VerifySummary()
        # The directory itself must be readable: the caller handles this error.
        names = {entry.name for entry in file_system.list_directory(directory)}
        self._has_session = SESSION in names
        self._is_data_directory = not names.isdisjoint((SESSION, METADATA, STREAMS))
        self._has_descriptor = False
        self._has_metadata = METADATA in names
        self._metadata_check = MetadataCheck(file_system, directory)
        self._search(directory)
        self.head = VerifyHead(directory, len(self._partitions), self._size)

    @property
    def is_pointless(self) -> bool:
        """Whether the directory contains nothing to check."""
        has_anything = self._has_session or self._has_metadata or self._has_descriptor
        return not self._partitions and not self._failures and not has_anything

    def _search(self, directory: Path) -> None:
        """Find the partitions in ``directory``, ordered by name."""
        try:
            entries = self._file_system.list_directory(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            self._failures.append(reading_failure(directory, error))
            return
        names = [entry.name for entry in entries if entry.kind is EntryKind.FILE]
        self._has_descriptor |= DESCRIPTOR in names
        if is_partition(names):
            self._partitions.append(directory)
            self._size += sum(entry.size for entry in entries if entry.kind is EntryKind.FILE)
            return
        if directory == self._directory / METADATA:
            self._size += sum(entry.size for entry in entries if entry.name in (JOURNAL, METADATA_SNAPSHOT))
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.kind is EntryKind.DIRECTORY:
                self._search(directory / entry.name)

    def plan(self) -> list[SegmentPlan]:
        """Every segment that exists now. ``findings`` ignores segments that are created later."""
        plans: list[SegmentPlan] = []
        for path in self._partitions:
            try:
                survey = self._partition_check(path).survey()
            except OSError:
                # Deleted or unreadable: ``findings`` tries again and reports it.
                continue
            self._surveys[path] = survey
            plans += survey.plans(path, self._data_directory_of(path))
        return plans

    def findings(
        self, on_progress: Callable[[int], None] = _ignore, check: CheckSegment | None = None
    ) -> Iterator[Finding]:
        """All findings, partition by partition.

        Args:
            on_progress: Called with the number of bytes that were read since the last call.
            check: Returns the outcome of a segment of the ``plan`` that was checked elsewhere, perhaps in parallel.
        """

        def check_here(plan: SegmentPlan) -> SegmentOutcome:
            return check_segment(self._file_system, plan, self._keys, on_progress)

        for finding in self._all(check or check_here, on_progress):
            self.summary.count(finding)
            yield finding

    def _all(self, check: CheckSegment, on_progress: Callable[[int], None]) -> Iterator[Finding]:
        yield from self._failures
        if self._has_session:
            yield from self._check_session(self._directory / SESSION)
        if self._is_data_directory:
            yield from self._check_metadata(on_progress)
        for path in self._partitions:
            yield from self._check_partition(path, check)
        if self._is_data_directory:
            yield from check_modes(self._file_system, self._directory)

    # --- partitions ---

    def _partition_check(self, path: Path) -> PartitionCheck:
        return PartitionCheck(self._file_system, path, self._data_directory_of(path), self.summary)

    def _check_partition(self, path: Path, check: CheckSegment) -> Iterator[Finding]:
        findings: list[Finding] = []
        try:
            findings += self._partition_check(path).findings(check, self._surveys.get(path))
        except FileNotFoundError:
            findings.append(Finding(Severity.NOTE, "files", path, "deleted since the directory was listed: skipped"))
        except OSError as error:
            findings.append(reading_failure(path, error))
        if any(finding.severity is Severity.DAMAGE for finding in findings) and self._is_being_deleted(path):
            text = "deleted: being removed now or at the next start; not checked"
            findings = [Finding(Severity.NOTE, "files", path, text)]
        yield from findings

    def _is_being_deleted(self, partition: Path) -> bool:
        """Whether the partition, its topic or its stream is deleted according to the metadata, or does not exist."""
        try:
            self._file_system.list_directory(partition)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        if not self._has_metadata:
            return False
        try:
            state = self._metadata_check.load().state
        except OSError:
            return False
        paths = [partition, *partition.parents]
        below = paths[: paths.index(self._directory)]
        return state is not None and any(str(path.relative_to(self._directory)) in state.deleted for path in below)

    # --- session and metadata ---

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
                text = (
                    f"the directory has format {row.directory_format}; this version supports up to {DIRECTORY_FORMAT}"
                )
                yield Finding(Severity.WARNING, "session", path, text)

    def _check_metadata(self, on_progress: Callable[[int], None]) -> Iterator[Finding]:
        tree = TreeCheck(self._file_system, self._directory, self._metadata_check)
        path = self._directory / METADATA
        try:
            metadata = self._metadata_check.load()
            yield from metadata.findings
            on_progress(self._note_metadata(metadata))
            if metadata.state is not None:
                yield from tree.findings(metadata)
            else:
                yield from self._report_absence(metadata)
                yield from tree.findings_without_state()
            if self._has_metadata and self._has_directory(path / QUARANTINE):
                text = "contains files quarantined by earlier starts: not checked"
                yield Finding(Severity.NOTE, "files", path / QUARANTINE, text)
        except OSError as error:
            yield reading_failure(Path(error.filename) if isinstance(error.filename, str) else path, error)

    def _note_metadata(self, metadata: Metadata) -> int:
        """Count what the metadata contains. Returns the bytes of its files."""
        summary, files = self.summary, metadata.files
        size = len(files.journal or b"") + len(files.snapshot or b"")
        summary.size += size
        summary.entry_count = len(metadata.entries)
        if metadata.state is not None:
            streams = metadata.state.streams.values()
            summary.stream_count = len(streams)
            summary.topic_count = sum(len(stream.topics) for stream in streams)
        return size

    def _report_absence(self, metadata: Metadata) -> Iterator[Finding]:
        """Metadata may be missing only if there is no data."""
        if not metadata.files.is_absent or not self._has_directory(self._directory / STREAMS):
            return
        path = self._directory / METADATA
        if self._has_descriptor:
            text = "the metadata is missing, but descriptors exist: the server refuses to start, or rebuilds from them"
            yield Finding(Severity.DAMAGE, "tree", path, text)
        elif self._partitions:
            text = "the metadata is missing, so streams and topics are unknown: the server refuses to start"
            yield Finding(Severity.WARNING, "tree", path, text)

    def _has_directory(self, path: Path) -> bool:
        try:
            self._file_system.list_directory(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _data_directory_of(self, partition: Path) -> Path | None:
        """The data directory of a partition, if it is this directory or those in between have the expected names."""
        if self._has_session:
            return self._directory
        parents = partition.absolute().parents
        if len(parents) < _PARTITION_DEPTH:
            return None
        names = (parents[0].name, parents[2].name, parents[4].name)
        return parents[5] if names == ("partitions", "topics", "streams") else None
