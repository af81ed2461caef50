"""The entries of one metadata journal, with their changes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from courser.catalog.changes import change_number, decode_change
from courser.errors import MetadataDamaged
from courser.inspect.metadata_files import readable_fields
from courser.inspect.small_files import read_whole
from courser.storage.files import FileSystem
from courser.storage.journal_entries import Entry, Fault, FaultKind, JournalScan, ScannedEntry, SnapshotMark
from courser.storage.paths import METADATA_SNAPSHOT
from courser.storage.snapshot import read_snapshot

UNKNOWN_CHANGE = "unknown"


@dataclass(frozen=True, slots=True)
class JournalHead:
    """Facts about the whole file."""

    path: Path
    size: int
    snapshot_op: int | None
    """The last op in the snapshot in the same directory; None if it is missing or cannot be read."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A complete entry of the journal."""

    position: int
    size: int
    op: int
    timestamp: int
    change: str
    """The name of the change, or ``unknown``."""
    change_number: int
    fields: dict[str, object]
    """The fields of the change by name; secrets are masked."""
    checksum: str
    parent: str
    chain: str
    """``ok``, ``start`` (of op 0), ``broken``, ``duplicate``, or ``unchecked`` if the previous entry is missing."""
    is_covered: bool
    """Whether the snapshot already includes it."""


@dataclass(slots=True)
class JournalSummary:
    """Counts up to the point where reading stopped, including rows that were not shown."""

    entry_count: int = 0
    fault_count: int = 0
    torn_size: int = 0
    first_op: int | None = None
    last_op: int | None = None


JournalRow = ChangeRow | Fault


class JournalInspection:
    """Reads one journal. Call ``rows`` once, then ``summary``."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        # First the journal, then the snapshot: a server drops entries only after a snapshot contains them.
        self.data = read_whole(file_system, path)
        self._snapshot = _snapshot_beside(file_system, path)
        self.head = JournalHead(path, len(self.data), self._snapshot.op if self._snapshot is not None else None)
        self.summary = JournalSummary()

    def rows(self, *, from_op: int = 0, limit: int | None = None) -> Iterator[JournalRow]:
        """Every entry from ``from_op`` on, and the faults between them. ``limit`` counts entries."""
        left = limit
        summary = self.summary
        # A journal that was copied without its snapshot may start at any op: that is not a fault.
        for found in JournalScan(self.data, self._snapshot, is_start_known=False).walk():
            if isinstance(found, Fault):
                summary.fault_count += 1
                if found.fault == FaultKind.TORN_TAIL.value:
                    summary.torn_size += found.end_position - found.position
                if found.end_op is None or found.end_op > from_op:
                    yield found
                continue
            row, fault = self._change(found)
            summary.fault_count += fault is not None
            if row.op < from_op:
                self._count(row)
                continue
            if left is not None and left <= 0:
                return
            self._count(row)
            left = left - 1 if left is not None else None
            if fault is not None:
                yield fault
            yield row

    def _count(self, row: ChangeRow) -> None:
        summary = self.summary
        summary.entry_count += 1
        summary.first_op = row.op if summary.first_op is None else summary.first_op
        summary.last_op = row.op

    def _change(self, found: ScannedEntry) -> tuple[ChangeRow, Fault | None]:
        entry = found.entry
        name, fields, problem = describe_change(entry)
        fault = None
        if problem is not None:
            end = found.position + entry.size
            fault = Fault(FaultKind.BAD_CHANGE.value, found.position, end, entry.op, entry.op + 1, problem)
        row = ChangeRow(
            found.position,
            entry.size,
            entry.op,
            entry.timestamp,
            name,
            entry.kind,
            fields,
            entry.checksum.hex(),
            entry.parent.hex(),
            found.chain,
            self._snapshot is not None and entry.op <= self._snapshot.op,
        )
        return row, fault


def describe_change(entry: Entry) -> tuple[str, dict[str, object], str | None]:
    """Name and fields of the change in an entry, and a problem, if any."""
    try:
        change = decode_change(entry.body)
    except ValueError as error:
        return UNKNOWN_CHANGE, {}, f"op {entry.op} contains {error}"
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(change).__name__).lower()
    number = change_number(change)
    if number != entry.kind:
        # One of the two is wrong. If it is the body, a secret may be in the field of a name.
        return name, {}, f"the header names change {entry.kind}, the body contains {number}"
    return name, readable_fields(change), None


def _snapshot_beside(file_system: FileSystem, path: Path) -> SnapshotMark | None:
    try:
        snapshot = read_snapshot(file_system, path.with_name(METADATA_SNAPSHOT))
    except (MetadataDamaged, OSError):
        # The journal is shown without it; ``inspect snapshot`` reports the problem.
        return None
    return snapshot.mark if snapshot is not None else None
