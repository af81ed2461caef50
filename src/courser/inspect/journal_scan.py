"""Read a journal as a start does, but continue after every fault instead of stopping at the first one."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from courser.storage.journal import NO_PARENT, BadEntry, Entry, SnapshotMark, UnknownEntry, decode_entry, find_entry


class Fault(Enum):
    """Faults of entries and between entries."""

    DAMAGE = "damage"
    """Bytes that are not an entry."""
    TORN_TAIL = "torn tail"
    """Bytes that are not an entry, at the end: a crash leaves this of the last append."""
    GAP = "gap"
    BROKEN_CHAIN = "broken chain"
    CONFLICT = "conflicting duplicate"
    REPETITION = "identical duplicate"
    """Harmless: a start skips it."""
    BAD_CHANGE = "bad change"
    """A complete entry whose change this version does not know."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A fault: unexpected or missing bytes."""

    fault: str
    position: int
    end_position: int
    """Equal to ``position`` if something is missing between two entries."""
    first_op: int | None
    end_op: int | None
    """The op after the last affected one; None if unknown."""
    reason: str


@dataclass(frozen=True, slots=True)
class ScannedEntry:
    """A complete entry."""

    position: int
    entry: Entry
    chain: str
    """``ok``, ``start`` (of op 0), ``broken``, ``duplicate``, or ``unchecked`` if the previous entry is missing."""


class JournalScan:
    """Walks through the bytes of a journal. Call ``walk`` once, then ``last``.

    ``is_start_known`` means that no snapshot was ever taken if it is missing: then the first op is 0.
    """

    def __init__(self, data: bytes, snapshot: SnapshotMark | None, *, is_start_known: bool) -> None:
        self._data = data
        self._snapshot = snapshot
        self._is_start_known = is_start_known
        self._seen: dict[int, bytes] = {}
        """Checksums of the entries by op."""
        self._is_behind_damage = False
        self.last: SnapshotMark | None = None
        """The newest entry."""

    def walk(self) -> Iterator[FaultRow | ScannedEntry]:
        """Every entry in the order of the file, each after the faults before it."""
        position = 0
        while position < len(self._data):
            try:
                entry = decode_entry(self._data, position, len(self._data))
            except BadEntry as error:
                bad = self._bad_bytes(position, error)
                yield bad
                position = bad.end_position
                self._is_behind_damage = True
                continue
            fault, chain = self._follow(position, entry)
            if fault is not None:
                yield fault
            yield ScannedEntry(position, entry, chain)
            self._is_behind_damage = False
            position += entry.size

    def _bad_bytes(self, position: int, error: BadEntry) -> FaultRow:
        expected = self._expected()
        first_op = expected[0] if expected is not None else None
        following = find_entry(self._data, position + 1)
        if following is None:
            # Well-formed bytes like these are not left by a crash.
            fault = Fault.DAMAGE if isinstance(error, UnknownEntry) else Fault.TORN_TAIL
            return FaultRow(fault.value, position, len(self._data), first_op, None, str(error))
        end_op = decode_entry(self._data, following, len(self._data)).op
        reason = f"{error}; good entries follow"
        return FaultRow(Fault.DAMAGE.value, position, following, first_op, end_op, reason)

    def _expected(self) -> tuple[int, bytes | None] | None:
        """The expected op and parent of the next entry, if known."""
        if self.last is not None:
            return self.last.op + 1, self.last.checksum
        if self._snapshot is not None:
            return self._snapshot.op + 1, self._snapshot.checksum
        return (0, NO_PARENT) if self._is_start_known else None

    def _follow(self, position: int, entry: Entry) -> tuple[FaultRow | None, str]:
        """Compare an entry with the previous entries and with the snapshot."""
        op = entry.op
        if self.last is not None and op <= self.last.op:
            return self._compare(position, entry)
        expected = self._expected()
        if self.last is None and self._snapshot is not None and op <= self._snapshot.op:
            # Left by an interrupted drain: the snapshot contains it.
            expected = None
        self._seen[op] = entry.checksum
        self.last = SnapshotMark(op, entry.checksum)
        end = position + entry.size
        snapshot = self._snapshot
        if snapshot is not None and op == snapshot.op and entry.checksum != snapshot.checksum:
            reason = f"op {op} differs from the entry at which the snapshot was taken"
            return FaultRow(Fault.BROKEN_CHAIN.value, position, end, op, op + 1, reason), "broken"
        if expected is None:
            parent = NO_PARENT if op == 0 else None
        elif op != expected[0]:
            reason = f"op {expected[0]} is missing: found op {op} instead"
            gap = FaultRow(Fault.GAP.value, position, position, expected[0], op, reason)
            return None if self._is_behind_damage else gap, "unchecked"
        else:
            parent = expected[1]
        if parent is None:
            return None, "unchecked"
        if entry.parent != parent:
            reason = f"op {op} does not follow the entry before it"
            return FaultRow(Fault.BROKEN_CHAIN.value, position, end, op, op + 1, reason), "broken"
        return None, "start" if op == 0 else "ok"

    def _compare(self, position: int, entry: Entry) -> tuple[FaultRow, str]:
        """Compare an op that is not higher than the last one."""
        op, end = entry.op, position + entry.size
        if self._seen.get(op) == entry.checksum:
            reason = f"op {op} is repeated unchanged"
            return FaultRow(Fault.REPETITION.value, position, end, op, op + 1, reason), "duplicate"
        reason = f"op {op} appears twice with different contents" if op in self._seen else f"op {op} is out of order"
        return FaultRow(Fault.CONFLICT.value, position, end, op, op + 1, reason), "duplicate"
