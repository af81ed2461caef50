"""The decision table of recovery: what a segment file may look like at a start, and what to do about it.

``docs/recovery.md`` explains it in prose. Two facts select a case: how the last session ended, and what the scan found
after the recovery point. Everything except zeros is copied to ``quarantine`` before it is removed.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class StopKind(Enum):
    """How the last session on this data directory ended."""

    CLEAN = "clean"
    """The server stopped in order, and everything was synced."""
    KILLED = "killed"
    """The process ended but the kernel did not, so every completed write exists."""
    CRASHED = "crashed"
    """The kernel ended, the mount or directory has changed, or the cause is unknown. Unsynced writes may be lost."""


class Tail(Enum):
    """What the scan found after the last good batch, or after the last one before damage."""

    NOTHING = "nothing"
    ZEROS = "zeros"
    TORN_AT_THE_END = "the first part of a batch, and nothing after it"
    BAD_AT_THE_END = "bad bytes, and no good batch after them"
    BAD_IN_BETWEEN = "bad bytes, and good batches after them"


class RecoveryAction(Enum):
    """What to do with a segment file."""

    KEEP = "keep"
    CUT_ZEROS = "remove the zeros"
    CUT = "copy to quarantine, then remove"
    CUT_ALL_BEHIND = "copy to quarantine, then remove, including later segments"
    MARK = "keep everything, mark the range as damaged"


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    letter: str
    stops: frozenset[StopKind]
    tails: frozenset[Tail]
    action: RecoveryAction
    is_damage: bool
    """Whether bytes of completed writes are wrong, which no crash explains."""


_ANY = frozenset(StopKind)
_CLEAN, _KILLED, _CRASHED = (frozenset({stop}) for stop in (StopKind.CLEAN, StopKind.KILLED, StopKind.CRASHED))

_NOTHING, _ZEROS, _TORN, _BAD_END, _BAD_IN_BETWEEN = (frozenset({tail}) for tail in Tail)
_ANY_END = _TORN | _BAD_END

CASES = (
    Case("A", _ANY, _NOTHING, RecoveryAction.KEEP, is_damage=False),
    Case("B", _ANY, _ZEROS, RecoveryAction.CUT_ZEROS, is_damage=False),
    # A kill tears at most the batch that was being written, and leaves its first part.
    Case("C", _KILLED, _TORN, RecoveryAction.CUT, is_damage=False),
    # Good batches after bad bytes were written later, so a kill does not explain the bad bytes.
    Case("D", _KILLED, _BAD_IN_BETWEEN, RecoveryAction.MARK, is_damage=True),
    # A power cut can lose a write and keep a later one. A reader must never see the later one without the earlier.
    Case("E", _CRASHED, _ANY_END, RecoveryAction.CUT_ALL_BEHIND, is_damage=False),
    Case("F", _CRASHED, _BAD_IN_BETWEEN, RecoveryAction.CUT_ALL_BEHIND, is_damage=False),
    # After a clean stop, nothing follows the recovery point unless something else wrote it.
    Case("G", _CLEAN, _ANY_END, RecoveryAction.CUT, is_damage=True),
    Case("H", _CLEAN, _BAD_IN_BETWEEN, RecoveryAction.MARK, is_damage=True),
    # All bytes of the batch exist, but some are wrong. The write was completed, and the batch may be confirmed.
    Case("W", _KILLED, _BAD_END, RecoveryAction.CUT, is_damage=True),
)


def case_for(stop: StopKind, tail: Tail) -> Case:
    """The row that applies."""
    return next(case for case in CASES if stop in case.stops and tail in case.tails)


class Oddity(Enum):
    """Cases that concern whole files. They are recognized before any scan."""

    BELOW_START = "J"
    """A power cut restored a segment below the start offset. It is removed again."""
    SEALED_MISSING = "K"
    """A sealed segment is missing. Its offsets are lost; the rest is served."""
    SEALED_SHORT = "L"
    """A sealed segment is shorter than its seal says. The rest of it is lost."""
    SEALED_LONG = "M"
    """A sealed segment is longer than its seal says. The excess is ignored."""
    SHORT_OF_RECOVERY_POINT = "N"
    """An open segment ends before its recovery point: synced bytes are missing."""
    OVERLAP = "O"
    """An unsealed segment starts below the end of the previous one. It is moved to quarantine."""
    NO_LEDGER = "P"
    """The ledger is missing or has bad records. What it lacks is read from the segments."""
    EMPTY = "Q"
    """An unsealed segment without a batch. It is removed; its offsets were never used."""
    STRAY = "R"
    """A file name that is not Courser's. The file is ignored."""
    OPEN_MISSING = "S"
    """The open segment that contains the recovery point is missing."""
    OFFSETS_DAMAGED = "T"
    """Records of stored consumer offsets are bad. These consumers return to an earlier offset."""
    LEFTOVER = "U"
    """A temporary file of an interrupted operation. It is removed."""
    OFFSET_HOLE = "V"
    """Offsets between two segments are missing, and the ledger records no gap there."""
    FOREIGN_SEGMENT = "X"
    """A segment with batches of another partition. It is neither changed nor served."""
    FOREIGN_DIRECTORY = "Y"
    """The ledger, or every segment if there is no ledger, is another partition's. Nothing is changed or served."""
    FUTURE_TIME = "Z"
    """Messages have timestamps in the future, because the clock was ahead. They count as stored now."""


@dataclass(frozen=True, slots=True)
class RecoveryFinding:
    """One thing that a start found or did. It is logged for the operator."""

    letter: str
    path: Path
    text: str
    is_damage: bool
    position: int = 0
    size: int = 0
    first_offset: int | None = None
    end_offset: int | None = None
    is_warning: bool = False
    """Whether an operator should know although nothing is damaged."""
