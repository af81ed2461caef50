"""The objects of the replicated log, as bytes (docs/formats/replicated-log.md).

An object is the header of ``archive/objects``, a directory with an entry of 64 bytes for each thing that happened, and
their bytes one after another. The header proves the directory, the directory proves the bytes. So two objects are equal
if their headers are: that settles who created one, whatever the store said. A nonce alone does not, for a machine that
was cloned has it twice.

An epoch is: slot 0 with a ``Begin``, slots with entries, and a ``Seal`` in the last one. If its leader died before it
began, the seal is in slot 0. Both say in slot 0 where the seal of the epoch before is.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import xxhash

from courser import __version__
from courser.archive.errors import ArchiveDamaged, ArchiveTooNew
from courser.archive.keys import ArchiveKeys
from courser.archive.objects import (
    HEADER_SIZE,
    NO_PARENT,
    Begin,
    ObjectKind,
    Origin,
    Seal,
    checksum_of,
    decode_body,
    decode_header,
    encode_body,
    encode_header,
)
from courser.model.buffers import Buffer
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity

_ENTRY = struct.Struct(
    "<"
    "I"  # kind
    "I"  # partition
    "16s"  # topic_uuid
    "Q"  # incarnation
    "Q"  # number
    "Q"  # base_offset
    "Q"  # size
    "Q"  # checksum: XXH3-64 of the bytes
)
ENTRY_SIZE = 64
assert _ENTRY.size == ENTRY_SIZE

SLOTS_AHEAD = 4
"""How many slots a leader writes at once: none is written before the fourth one below it is stored. A reader concludes
from it what cannot be missing, so it belongs to the format."""


class EntryKind(IntEnum):
    """What happened. A reader that does not know a kind stops there: it can neither skip it nor lead."""

    BATCHES = 1
    """Batches of a partition, as they are stored."""
    JOURNAL = 2
    """A change of the metadata: an entry of the journal."""
    OFFSET = 3
    """A stored offset of a consumer: a record of the offset table."""
    LEDGER = 4
    """A fact of a partition: an event of its ledger."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened, with its bytes."""

    kind: EntryKind
    identity: PartitionIdentity
    """Of the partition; zeros in an entry of the journal."""
    number: int
    """The first offset of batches, or the op of a change."""
    data: Buffer
    base_offset: int = 0
    """The first offset of the segment that batches are in: a follower begins a file when it changes."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A slot that is not read or written yet, and what is known about the log before it."""

    epoch: int = 0
    slot: int = 0
    parent: bytes = NO_PARENT
    """The checksum of the object before it, without those that are void."""
    sealed_slot: int = 0
    """The slot of the seal of the epoch before; 0 in the first epoch."""
    first: bytes = NO_PARENT
    """The checksum of slot 0 of this epoch, behind it."""
    leader: bytes = bytes(16)
    """The nonce of who wrote slot 0 of this epoch, behind it."""

    def key(self, keys: ArchiveKeys) -> str:
        return keys.slot(self.epoch, self.slot)

    def is_behind(self, other: "LogPosition") -> bool:
        """Whether the object at the other position is before this one."""
        return (self.epoch, self.slot) > (other.epoch, other.slot)

    def behind(self, data: bytes, writer: bytes, *, is_seal: bool) -> "LogPosition":
        """The position after an object, which the process with this nonce wrote."""
        checksum = checksum_of(data)
        if is_seal:
            return LogPosition(self.epoch + 1, 0, checksum, self.slot)
        if not self.slot:
            return replace(self, slot=1, parent=checksum, first=checksum, leader=writer)
        return replace(self, slot=self.slot + 1, parent=checksum)


@dataclass(frozen=True, slots=True)
class LogObject:
    """An object of the log that was checked."""

    origin: Origin
    content: Seal | Begin | tuple[Entry, ...]
    """Nothing if it is void."""
    after: LogPosition


@dataclass(frozen=True, slots=True)
class LogWriting:
    """Whose log a process writes, and who it is."""

    keys: ArchiveKeys
    nonce: bytes

    def seal(self, position: LogPosition, reason: str, time: int) -> bytes:
        """The object that ends an epoch at a position."""
        body = Seal(reason, __version__, 0 if position.slot else position.sealed_slot)
        return self._encode(body, position, time)

    def begin(self, position: LogPosition, fingerprint: bytes, time: int) -> bytes:
        """The object that begins an epoch. The position is behind a seal."""
        return self._encode(Begin(position.sealed_slot, __version__, fingerprint), position, time)

    def entries(self, position: LogPosition, entries: Sequence[Entry], time: int, op: int = 0) -> bytes:
        """An object with entries; without any, it says that the leader lives. ``op`` is the last one they need."""
        directory = b"".join(
            _ENTRY.pack(
                entry.kind,
                entry.identity.partition_id,
                entry.identity.topic_uuid,
                entry.identity.incarnation,
                entry.number,
                entry.base_offset,
                len(entry.data),
                xxh3(entry.data),
            )
            for entry in entries
        )
        size = len(directory) + sum(len(entry.data) for entry in entries)
        header = encode_header(
            ObjectKind.LOG,
            position.key(self.keys),
            replace(self._origin(position, time), op=op),
            directory,
            body_size=size,
            entry_count=len(entries),
            parent=position.parent,
        )
        return b"".join((header, directory, *(entry.data for entry in entries)))

    def _encode(self, body: Seal | Begin, position: LogPosition, time: int) -> bytes:
        return encode_body(body, position.key(self.keys), self._origin(position, time), position.parent)

    def _origin(self, position: LogPosition, time: int) -> Origin:
        return Origin(
            cluster=self.keys.cluster, epoch=position.epoch, nonce=self.nonce, number=position.slot, time=time
        )


def is_copy(found: bytes, data: bytes) -> bool:
    """Whether the header of an object, or all of it, is that of ``data``: then all their bytes are equal."""
    return found[:HEADER_SIZE] == data[:HEADER_SIZE]


def decode_log_object(data: bytes, keys: ArchiveKeys, position: LogPosition) -> LogObject:
    """Check the object at a position: its bytes, and that it follows the one before.

    Raises:
        ArchiveDamaged: it is not what was stored there, or another object was before it.
        ArchiveTooNew: a later version wrote it.
    """
    key = position.key(keys)
    header = decode_header(data, key, ObjectKind.LOG, ObjectKind.SEAL, ObjectKind.BEGIN)
    is_seal = header.kind is ObjectKind.SEAL
    # The seals of archives without a log have no parents.
    is_alone = is_seal and not position.slot and header.parent == NO_PARENT
    if header.parent != position.parent and not is_alone:
        if position.slot and header.origin.nonce == position.leader:
            # Its writer and a clone of it wrote at the same time. Before it is a slot of the other one: so its writer
            # was deposed there, and has not acknowledged this.
            return LogObject(header.origin, (), replace(position, slot=position.slot + 1))
        raise ArchiveDamaged(key, "it does not follow the object before it")
    if (header.kind is ObjectKind.BEGIN and position.slot) or (header.kind is ObjectKind.LOG and not position.slot):
        raise ArchiveDamaged(key, "it is in the wrong slot")
    content: Seal | Begin | tuple[Entry, ...]
    match header.kind:
        case ObjectKind.SEAL:
            content = decode_body(data, key, Seal)[1]
        case ObjectKind.BEGIN:
            content = decode_body(data, key, Begin)[1]
        case _:
            content = _decode_entries(data, key, header.entry_count, header.body_size, header.body_checksum)
    return LogObject(header.origin, content, position.behind(data, header.origin.nonce, is_seal=is_seal))


def _decode_entries(data: bytes, key: str, count: int, size: int, checksum: bytes) -> tuple[Entry, ...]:
    start = HEADER_SIZE + count * ENTRY_SIZE
    view = memoryview(data)
    if len(data) != HEADER_SIZE + size or xxhash.xxh3_128_digest(view[HEADER_SIZE:start]) != checksum:
        raise ArchiveDamaged(key, "the checksum of the directory does not match")
    return tuple(_entries_of(view, key, start))


def _entries_of(view: memoryview, key: str, position: int) -> Iterator[Entry]:
    for fields in _ENTRY.iter_unpack(view[HEADER_SIZE:position]):
        kind, partition_id, topic_uuid, incarnation, number, base_offset, size, checksum = fields
        entry_data = view[position : position + size]
        position += size
        if kind not in list(EntryKind):
            raise ArchiveTooNew(key, f"an entry of kind {kind}", f"kinds {min(EntryKind)} to {max(EntryKind)}")
        if xxh3(entry_data) != checksum:
            raise ArchiveDamaged(key, "the checksum of an entry does not match")
        identity = PartitionIdentity(topic_uuid, partition_id, incarnation)
        yield Entry(EntryKind(kind), identity, number, entry_data, base_offset)
    if position != len(view):
        raise ArchiveDamaged(key, "it has more bytes than its entries")


def named_seal(data: bytes, keys: ArchiveKeys, epoch: int) -> int:
    """Which slot the seal of the epoch before has, according to slot 0 of an epoch."""
    key = keys.slot(epoch, 0)
    header = decode_header(data, key, ObjectKind.SEAL, ObjectKind.BEGIN)
    if header.kind is ObjectKind.SEAL:
        return decode_body(data, key, Seal)[1].sealed_slot
    return decode_body(data, key, Begin)[1].sealed_slot
