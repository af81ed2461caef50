"""The findings of a check, and their summary."""

import errno
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Severity(Enum):
    """The severity of a finding."""

    DAMAGE = "damage"
    """Stored data is missing or has changed."""
    UNREADABLE = "unreadable"
    """It could not be read, for example because of missing permissions."""
    WARNING = "warning"
    """Unusual, but no stored data is lost."""
    NOTE = "note"
    """For information: a write in progress, a file that retention deleted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a check noticed about a file."""

    severity: Severity
    check: str
    """The check: log, frames, continuity, times, index, ledger, consumers, session or files.

    For metadata: journal, snapshot, descriptors, tree (the directories against the state) or modes.
    """
    path: Path
    reason: str
    position: int | None = None
    end_position: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """The offset after the last affected one; None if unknown."""


def reading_failure(path: Path, error: OSError) -> Finding:
    """The finding for a file that cannot be read: a disk error is damage, missing permissions are not."""
    severity = Severity.DAMAGE if error.errno == errno.EIO else Severity.UNREADABLE
    return Finding(severity, "files", path, f"cannot be read: {error.strerror or error}")


@dataclass(slots=True)
class VerifySummary:
    """The number of checked things, and of findings by severity."""

    partition_count: int = 0
    segment_count: int = 0
    batch_count: int = 0
    message_count: int = 0
    stream_count: int = 0
    topic_count: int = 0
    """Streams and topics in the metadata."""
    entry_count: int = 0
    """Entries of the metadata journal that are not in the snapshot."""
    size: int = 0
    """Bytes that were read from logs, indexes, the metadata and the small files."""
    damage_count: int = 0
    unreadable_count: int = 0
    warning_count: int = 0
    note_count: int = 0

    def count(self, finding: Finding) -> None:
        match finding.severity:
            case Severity.DAMAGE:
                self.damage_count += 1
            case Severity.UNREADABLE:
                self.unreadable_count += 1
            case Severity.WARNING:
                self.warning_count += 1
            case Severity.NOTE:
                self.note_count += 1
