"""The entries of the metadata journal: their bytes, and the faults of a file of them.

This module knows only bytes; the catalog interprets the bodies. A start and the offline tools walk over a file in the
same way: a start refuses the first fault, the tools show all.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import xxhash

from courser.model.buffers import Buffer

ENTRY_HEADER_SIZE = 256
_HEADER = struct.Struct(
    "<"
    "16s"  # checksum: XXH3-128 of the rest of the header
    "16s"  # body_checksum: XXH3-128 of the body
    "16s"  # parent: checksum of the entry before this one
    "I"  # size: 256 + body
    "4s"  # magic
    "H"  # format_version
    "H"  # kind of the change, for tools
    "4x"
    "Q"  # op
    "Q"  # timestamp
    "176x"  # reserved, zero
)
assert _HEADER.size == ENTRY_HEADER_SIZE
_MAGIC = b"CRSJ"
_MAGIC_POSITION = 52
_VERSION = 1
_CHECKSUM_SIZE = 16

ENTRY_SIZE_MAX = 64 * 1024 * 1024
"""Maximum size of an entry in bytes. A larger size field is damage; it must not cause a large allocation."""
NO_PARENT = bytes(_CHECKSUM_SIZE)
"""The parent of op 0."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the file, or one to be written."""

    op: int
    timestamp: int
    kind: int
    parent: bytes
    body: bytes
    checksum: bytes

    @property
    def size(self) -> int:
        """Its size in the file, in bytes."""
        return ENTRY_HEADER_SIZE + len(self.body)


class BadEntry(Exception):
    """Bytes that are not a valid entry."""


class UnknownEntry(BadEntry):
    """An entry with a correct checksum that this version cannot read. No crash leaves such an entry."""


def make_entry(*, op: int, timestamp: int, kind: int, parent: bytes, body: bytes) -> tuple[Entry, bytes]:
    """An entry and its bytes."""
    size = ENTRY_HEADER_SIZE + len(body)
    if size > ENTRY_SIZE_MAX:
        raise ValueError(f"an entry of {size} bytes is larger than the maximum of {ENTRY_SIZE_MAX}")
    rest = _HEADER.pack(NO_PARENT, xxhash.xxh3_128_digest(body), parent, size, _MAGIC, _VERSION, kind, op, timestamp)[
        _CHECKSUM_SIZE:
    ]
    checksum = xxhash.xxh3_128_digest(rest)
    return Entry(op, timestamp, kind, parent, body, checksum), b"".join((checksum, rest, body))


def decode_entry(data: Buffer, position: int, end: int) -> Entry:
    """Decode the entry at ``position``. ``data`` is valid up to ``end``. Raises ``BadEntry``."""
    if position + ENTRY_HEADER_SIZE > end:
        raise BadEntry(f"{end - position} bytes are too few for an entry header")
    checksum, body_checksum, parent, size, magic, version, kind, op, timestamp = _HEADER.unpack_from(data, position)
    if magic != _MAGIC:
        raise BadEntry("there is no entry header")
    rest = memoryview(data)[position + _CHECKSUM_SIZE : position + ENTRY_HEADER_SIZE]
    if xxhash.xxh3_128_digest(rest) != checksum:
        raise BadEntry("the header checksum does not match")
    if version != _VERSION:
        raise UnknownEntry(f"entry format {version} is not supported; this version supports only {_VERSION}")
    if not ENTRY_HEADER_SIZE <= size <= ENTRY_SIZE_MAX:
        raise UnknownEntry(f"invalid entry size of {size} bytes")
    if position + size > end:
        raise BadEntry(f"the file ends inside an entry of {size} bytes")
    body = bytes(memoryview(data)[position + ENTRY_HEADER_SIZE : position + size])
    if xxhash.xxh3_128_digest(body) != body_checksum:
        raise BadEntry("the body checksum does not match")
    return Entry(op, timestamp, kind, parent, body, checksum)


def _find_entry(data: Buffer, start: int) -> int | None:
    """The position of the first good entry from ``start`` on; None if there is none."""
    raw, end = bytes(data), len(data)
    found = raw.find(_MAGIC, start + _MAGIC_POSITION)
    while found >= 0:
        try:
            decode_entry(raw, found - _MAGIC_POSITION, end)
        except BadEntry:
            found = raw.find(_MAGIC, found + 1)
            continue
        return found - _MAGIC_POSITION
    return None


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """The last entry that a snapshot covers."""

    op: int
    checksum: bytes
    """The checksum of that entry, which is the parent of the next one."""


class FaultKind(Enum):
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
class Fault:
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
    """A complete entry, and how it follows the one before."""

    position: int
    entry: Entry
    chain: str
    """``ok``, ``start`` (of op 0), ``broken``, ``duplicate``, or ``unchecked`` if the previous entry is missing."""


class JournalScan:
    """Walks through the bytes of a journal. Call ``walk`` once, then ``last``.

    ``is_start_known`` means that no snapshot was ever taken if it is missing: then the first op is 0.
    """

    def __init__(self, data: Buffer, snapshot: SnapshotMark | None = None, *, is_start_known: bool = False) -> None:
        self._data = data
        self._snapshot = snapshot
        self._is_start_known = is_start_known
        self._seen: dict[int, bytes] = {}
        """Checksums of the entries by op."""
        self._is_behind_damage = False
        self.last: SnapshotMark | None = None
        """The newest entry."""

    def walk(self) -> Iterator[Fault | ScannedEntry]:
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

    def _bad_bytes(self, position: int, error: BadEntry) -> Fault:
        expected = self._expected()
        first_op = expected[0] if expected is not None else None
        following = _find_entry(self._data, position + 1)
        if following is None:
            # Well-formed bytes like these are not left by a crash.
            fault = FaultKind.DAMAGE if isinstance(error, UnknownEntry) else FaultKind.TORN_TAIL
            return Fault(fault.value, position, len(self._data), first_op, None, str(error))
        end_op = decode_entry(self._data, following, len(self._data)).op
        reason = f"{error}; good entries follow"
        return Fault(FaultKind.DAMAGE.value, position, following, first_op, end_op, reason)

    def _expected(self) -> tuple[int, bytes | None] | None:
        """The expected op and parent of the next entry, if known."""
        if self.last is not None:
            return self.last.op + 1, self.last.checksum
        if self._snapshot is not None:
            return self._snapshot.op + 1, self._snapshot.checksum
        return (0, NO_PARENT) if self._is_start_known else None

    def _follow(self, position: int, entry: Entry) -> tuple[Fault | None, str]:
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
            return Fault(FaultKind.BROKEN_CHAIN.value, position, end, op, op + 1, reason), "broken"
        if expected is None:
            parent = NO_PARENT if op == 0 else None
        elif op != expected[0]:
            reason = f"op {expected[0]} is missing: found op {op} instead"
            gap = Fault(FaultKind.GAP.value, position, position, expected[0], op, reason)
            return None if self._is_behind_damage else gap, "unchecked"
        else:
            parent = expected[1]
        if parent is None:
            return None, "unchecked"
        if entry.parent != parent:
            reason = f"op {op} does not follow the entry before it"
            return Fault(FaultKind.BROKEN_CHAIN.value, position, end, op, op + 1, reason), "broken"
        return None, "start" if op == 0 else "ok"

    def _compare(self, position: int, entry: Entry) -> tuple[Fault, str]:
        """Compare an op that is not higher than the last one."""
        op, end = entry.op, position + entry.size
        if self._seen.get(op) == entry.checksum:
            reason = f"op {op} is repeated unchanged"
            return Fault(FaultKind.REPETITION.value, position, end, op, op + 1, reason), "duplicate"
        reason = f"op {op} occurs twice with different contents" if op in self._seen else f"op {op} is out of order"
        return Fault(FaultKind.CONFLICT.value, position, end, op, op + 1, reason), "duplicate"
