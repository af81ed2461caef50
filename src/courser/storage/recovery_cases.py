"""The decision table of recovery: what a segment file may look like at start, and what is done about it.

``docs/recovery.md`` tells the same in prose. A case is chosen by two facts: how the last session ended, and what the
scan of the part behind the recovery point found. Nothing is ever cut before it was copied to ``quarantine``, except
zeros.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class StopKind(Enum):
    """How the last session on this data directory ended."""

    CLEAN = "clean"
    """It said good-bye: everything was synced."""
    KILLED = "killed"
    """The process died, the kernel did not: every finished write is there."""
    CRASHED = "crashed"
    """The kernel died, the mount or the directory is another one, or nobody knows: unsynced writes may be gone."""


class Tail(Enum):
    """What the scan found behind the last batch of the good beginning."""

    NOTHING = "nothing"
    ZEROS = "zeros"
    TORN_AT_THE_END = "the beginning of a batch, and nothing behind it"
    BAD_AT_THE_END = "bad bytes, and no good batch behind them"
    BAD_IN_BETWEEN = "bad bytes, and good batches behind them"


class RecoveryAction(Enum):
    """What is done with a segment file."""

    KEEP = "keep"
    CUT_ZEROS = "cut the zeros"
    CUT = "copy aside, then cut"
    CUT_ALL_BEHIND = "copy aside and cut, later segments included"
    MARK = "keep everything, mark the range as damaged"


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    letter: str
    stops: frozenset[StopKind]
    tails: frozenset[Tail]
    action: RecoveryAction
    is_damage: bool
    """Whether bytes that were written whole are wrong: no crash explains that."""


_ANY = frozenset(StopKind)
_CLEAN, _KILLED, _CRASHED = (frozenset({stop}) for stop in (StopKind.CLEAN, StopKind.KILLED, StopKind.CRASHED))

_NOTHING, _ZEROS, _TORN, _BAD_END, _BAD_IN_BETWEEN = (frozenset({tail}) for tail in Tail)
_ANY_END = _TORN | _BAD_END

CASES = (
    Case("A", _ANY, _NOTHING, RecoveryAction.KEEP, is_damage=False),
    Case("B", _ANY, _ZEROS, RecoveryAction.CUT_ZEROS, is_damage=False),
    # A kill tears at most the batch that was being written, and leaves a beginning of it.
    Case("C", _KILLED, _TORN, RecoveryAction.CUT, is_damage=False),
    # Good batches behind bad bytes were written later: a kill does not explain the bad ones.
    Case("D", _KILLED, _BAD_IN_BETWEEN, RecoveryAction.MARK, is_damage=True),
    # A power cut may keep a later write and lose an earlier one: what lies behind the hole was never a prefix.
    Case("E", _CRASHED, _ANY_END, RecoveryAction.CUT_ALL_BEHIND, is_damage=False),
    Case("F", _CRASHED, _BAD_IN_BETWEEN, RecoveryAction.CUT_ALL_BEHIND, is_damage=False),
    # After a clean stop there is nothing behind the recovery point, unless somebody put it there.
    Case("G", _CLEAN, _ANY_END, RecoveryAction.CUT, is_damage=True),
    Case("H", _CLEAN, _BAD_IN_BETWEEN, RecoveryAction.MARK, is_damage=True),
    # All bytes of the batch are there and some are wrong: it was written to its end, and perhaps confirmed.
    Case("W", _KILLED, _BAD_END, RecoveryAction.CUT, is_damage=True),
)


def case_for(stop: StopKind, tail: Tail) -> Case:
    """The row that applies."""
    return next(case for case in CASES if stop in case.stops and tail in case.tails)


class Oddity(Enum):
    """Cases of whole files, told apart before any scan."""

    BELOW_START = "J"
    """A segment below the start offset came back after a power cut: removed again."""
    SEALED_MISSING = "K"
    """A sealed segment is gone: its offsets are lost, the rest is served."""
    SEALED_SHORT = "L"
    """A sealed segment is shorter than its seal: what is behind its end is lost."""
    SEALED_LONG = "M"
    """A sealed segment is longer than its seal: the rest is ignored."""
    SHORT_OF_RECOVERY_POINT = "N"
    """An open segment ends before its recovery point: synced bytes are gone."""
    OVERLAP = "O"
    """An unsealed file begins below the end of the one before it: set aside."""
    NO_LEDGER = "P"
    """The ledger is absent or has bad records: what it does not say is read from the segments."""
    EMPTY = "Q"
    """An unsealed segment without a single batch: removed, its offsets were never used."""
    STRAY = "R"
    """A name that is none of ours: left alone."""
    OPEN_MISSING = "S"
    """The open segment that the recovery point lies in is gone."""
    OFFSETS_DAMAGED = "T"
    """Records of stored consumer offsets are bad: those consumers go back to an earlier one."""
    LEFTOVER = "U"
    """A temporary file of an interrupted step: removed."""
    OFFSET_HOLE = "V"
    """Offsets are missing between two segments, and the ledger knows of no gap there."""
    FOREIGN_SEGMENT = "X"
    """A segment file with the batches of another partition: left alone, not served."""
    FOREIGN_DIRECTORY = "Y"
    """The ledger, or every segment if there is no ledger, is another partition's: nothing is touched or served."""
    FUTURE_TIME = "Z"
    """Messages carry times in the future: the clock was ahead when they were stored. They count as stored now."""


@dataclass(frozen=True, slots=True)
class RecoveryFinding:
    """One thing that a start did or found, for the log and for the operator."""

    letter: str
    path: Path
    text: str
    is_damage: bool
    position: int = 0
    size: int = 0
    first_offset: int | None = None
    end_offset: int | None = None
    is_warning: bool = False
    """No damage, but an operator should know."""
