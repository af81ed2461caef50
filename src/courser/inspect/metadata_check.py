"""Check the snapshot and the journal of a data directory: complete, consistent, and yielding a state.

Reads the same files as a start, with the same rules, but opens nothing for writing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from courser.catalog.changes import decode_change
from courser.catalog.state import CatalogState
from courser.catalog.store import load_state
from courser.catalog.transitions import apply
from courser.errors import CommandRejected, MetadataDamaged
from courser.inspect.findings import Finding, Severity
from courser.inspect.journal_file import UNKNOWN_CHANGE, describe_change
from courser.inspect.small_files import read_whole, stopped_cleanly
from courser.storage.files import FileSystem
from courser.storage.journal import SLOT_COUNT
from courser.storage.journal_entries import Fault, FaultKind, JournalScan, ScannedEntry, SnapshotMark
from courser.storage.paths import JOURNAL, METADATA, METADATA_SNAPSHOT
from courser.storage.snapshot import Snapshot, decode_snapshot


@dataclass(frozen=True, slots=True)
class MetadataFiles:
    """The bytes of both files; None if a file is missing."""

    journal: bytes | None
    snapshot: bytes | None

    @property
    def is_absent(self) -> bool:
        """Whether there is no metadata at all."""
        return self.journal is None and self.snapshot is None


@dataclass(slots=True)
class Metadata:
    """The contents of the files."""

    files: MetadataFiles
    state: CatalogState | None = None
    """None if the files are damaged or missing."""
    last_op: int = -1
    """The newest change in the state; -1 before the first."""
    entries: list[ScannedEntry] = field(default_factory=list)
    """Entries after the snapshot: a start replays them."""
    findings: list[Finding] = field(default_factory=list)
    torn: Finding | None = None
    """A torn end of the journal. It is damage only if no crash explains it."""


def read_metadata_files(file_system: FileSystem, data_directory: Path) -> MetadataFiles:
    """Read both files. They are consistent even if a server changes them in the meantime.

    First the journal, then the snapshot: a server drops entries only after a snapshot contains them.
    """
    journal = _read(file_system, data_directory / METADATA / JOURNAL)
    return MetadataFiles(journal, _read(file_system, data_directory / METADATA / METADATA_SNAPSHOT))


def _read(file_system: FileSystem, path: Path) -> bytes | None:
    try:
        return read_whole(file_system, path)
    except FileNotFoundError:
        return None


def examine_metadata(files: MetadataFiles, data_directory: Path, *, skip_last: bool = False) -> Metadata:
    """Check both files and build the state; with ``skip_last``, the state before the last change."""
    metadata = Metadata(files)
    if files.is_absent:
        return metadata
    directory = data_directory / METADATA
    snapshot, state = _examine_snapshot(metadata, directory / METADATA_SNAPSHOT)
    is_snapshot_whole = files.snapshot is None or state is not None
    _examine_journal(metadata, directory / JOURNAL, snapshot, is_start_known=is_snapshot_whole)
    if not is_snapshot_whole or any(finding.severity is Severity.DAMAGE for finding in metadata.findings):
        return metadata
    metadata.last_op = metadata.entries[-1].entry.op if metadata.entries else snapshot.op if snapshot else -1
    entries = metadata.entries[:-1] if skip_last else metadata.entries
    metadata.state = state or CatalogState()
    metadata.findings += _replay(metadata.state, entries, directory / JOURNAL)
    return metadata


def _examine_snapshot(metadata: Metadata, path: Path) -> tuple[SnapshotMark | None, CatalogState | None]:
    if metadata.files.snapshot is None:
        return None, None
    snapshot: Snapshot | None = None
    try:
        snapshot = decode_snapshot(metadata.files.snapshot, path)
        return snapshot.mark, load_state(snapshot, path)
    except MetadataDamaged as damage:
        text = f"{damage.damage}: the server refuses to start"
        metadata.findings.append(Finding(Severity.DAMAGE, "snapshot", path, text, damage.position))
        return snapshot.mark if snapshot is not None else None, None


def _examine_journal(metadata: Metadata, path: Path, snapshot: SnapshotMark | None, *, is_start_known: bool) -> None:
    findings = metadata.findings
    data = metadata.files.journal
    if data is None:
        text = "the journal is missing, but a snapshot exists: the server refuses to start"
        findings.append(Finding(Severity.DAMAGE, "journal", path, text))
        return
    for found in JournalScan(data, snapshot, is_start_known=is_start_known).walk():
        if isinstance(found, Fault):
            finding = _fault_finding(found, path)
            if found.fault == FaultKind.TORN_TAIL.value:
                metadata.torn = finding
            else:
                findings.append(finding)
            continue
        name, _, problem = describe_change(found.entry)
        if problem is not None:
            severity = Severity.DAMAGE if name == UNKNOWN_CHANGE else Severity.WARNING
            end = found.position + found.entry.size
            findings.append(Finding(severity, "journal", path, problem, found.position, end))
        is_live = snapshot is None or found.entry.op > snapshot.op
        if is_live and found.chain != "duplicate":
            metadata.entries.append(found)
    if len(metadata.entries) > SLOT_COUNT:
        count = len(metadata.entries)
        text = f"{count} entries since the snapshot: more than {SLOT_COUNT}, so the server refuses to start by default"
        findings.append(Finding(Severity.WARNING, "journal", path, text))


def _fault_finding(found: Fault, path: Path) -> Finding:
    if found.fault == FaultKind.REPETITION.value:
        text = f"{found.reason}: a start skips it"
        return Finding(Severity.NOTE, "journal", path, text, found.position, found.end_position)
    if found.fault == FaultKind.TORN_TAIL.value:
        text = f"bad bytes at the end after a clean stop: {found.reason}"
        return Finding(Severity.DAMAGE, "journal", path, text, found.position, found.end_position)
    text = f"{found.fault}: {found.reason}: the server refuses to start"
    end = found.end_position if found.end_position > found.position else None
    return Finding(Severity.DAMAGE, "journal", path, text, found.position, end)


def _replay(state: CatalogState, entries: list[ScannedEntry], path: Path) -> Iterator[Finding]:
    for found in entries:
        entry = found.entry
        outcome = apply(state, decode_change(entry.body), entry.op, entry.timestamp)
        if isinstance(outcome, CommandRejected):
            text = f"op {entry.op} has no effect because the rules reject it: {outcome}"
            yield Finding(Severity.WARNING, "journal", path, text, found.position, found.position + entry.size)


class MetadataCheck:
    """Reads the metadata of a data directory, repeatedly if something seems wrong, and reports findings."""

    def __init__(self, file_system: FileSystem, data_directory: Path) -> None:
        self._file_system = file_system
        self._directory = data_directory

    def load(self) -> Metadata:
        """The current metadata. Raises ``OSError``."""
        metadata = self._load()
        if metadata.torn is None and not metadata.findings:
            return metadata
        # The files may have been written at that moment.
        is_settled = self.is_settled()
        metadata = self._load()
        if metadata.torn is not None:
            metadata.findings.append(metadata.torn if is_settled and self.is_settled() else _as_note(metadata.torn))
        return metadata

    def is_settled(self) -> bool:
        """Whether the server stopped cleanly, so that no crash explains what is incomplete."""
        return stopped_cleanly(self._file_system, self._directory)

    def _load(self) -> Metadata:
        return examine_metadata(read_metadata_files(self._file_system, self._directory), self._directory)


def _as_note(torn: Finding) -> Finding:
    text = "incomplete tail: an entry being written, or cut off by a crash; a start truncates it"
    return Finding(Severity.NOTE, torn.check, torn.path, text, torn.position, torn.end_position)
