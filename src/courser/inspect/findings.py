"""What a check of a directory reports."""

import errno
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Severity(Enum):
    """How bad it is."""

    DAMAGE = "damage"
    """Something that was stored is not there or not what it was."""
    UNREADABLE = "unreadable"
    """Could not be looked at: missing rights, say."""
    WARNING = "warning"
    """Odd, but no stored byte is lost."""
    NOTE = "note"
    """Worth knowing: a write under way, a file that retention took."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    severity: Severity
    check: str
    """Which check: log, frames, continuity, times, index, ledger, consumers, session or files.

    Of the metadata: journal, snapshot, descriptors, tree (the directories against the state) or modes.
    """
    path: Path
    reason: str
    position: int | None = None
    end_position: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """The offset behind the last one that is concerned; None if nobody knows."""


def reading_failure(path: Path, error: OSError) -> Finding:
    """What to report for a file that cannot be read: a bad disk is damage, missing rights are not."""
    severity = Severity.DAMAGE if error.errno == errno.EIO else Severity.UNREADABLE
    return Finding(severity, "files", path, f"cannot be read: {error.strerror or error}")


@dataclass(slots=True)
class VerifySummary:
    """What was looked at, and how much of each kind was found."""

    partition_count: int = 0
    segment_count: int = 0
    batch_count: int = 0
    message_count: int = 0
    stream_count: int = 0
    topic_count: int = 0
    """Streams and topics that the metadata knows."""
    entry_count: int = 0
    """Entries of the metadata journal that no snapshot covers."""
    size: int = 0
    """Bytes that were read from logs, indexes, the metadata and the small files."""
    damage_count: int = 0
    unreadable_count: int = 0
    warning_count: int = 0
    note_count: int = 0

    def count(self, finding: Finding) -> None:
        """Take note of a finding."""
        match finding.severity:
            case Severity.DAMAGE:
                self.damage_count += 1
            case Severity.UNREADABLE:
                self.unreadable_count += 1
            case Severity.WARNING:
                self.warning_count += 1
            case Severity.NOTE:
                self.note_count += 1
