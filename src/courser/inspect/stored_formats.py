"""Single records of the ledger, the offsets file and the metadata, without knowing whose they are beforehand.

The one place here that leans on private names of storage: the engine only ever reads those files whole, and knows whose
they are. It is kept small so that a change of a format is met once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from courser.model.buffers import Buffer
from courser.records.stored_header import PartitionIdentity
from courser.storage import journal, ledger, offset_table, snapshot
from courser.storage.ledger import Event, LedgerNumbers
from courser.storage.offset_table import GRANULE, ConsumerKey

_TOPIC_UUID, _PARTITION_ID, _INCARNATION = 5, 6, 7
"""Places of the identity among the fields of a ledger record."""


def ledger_record_identity(record: bytes) -> PartitionIdentity | None:
    """Whose record this is; None if it is damaged or of an unknown format."""
    fields = ledger._RECORD.unpack(record)
    identity = PartitionIdentity(fields[_TOPIC_UUID], fields[_PARTITION_ID], fields[_INCARNATION])
    return None if isinstance(ledger._decode_record(record, identity), str) else identity


def decode_ledger_record(record: bytes, identity: PartitionIdentity) -> tuple[int, LedgerNumbers, Event | None] | str:
    """Sequence, numbers and event of a record, or what is wrong with it."""
    return ledger._decode_record(record, identity)


def offsets_epoch(data: Buffer) -> int | None:
    """The epoch in the header of an offsets file; None if it is too short. The header may still be damaged."""
    if len(data) < GRANULE:
        return None
    epoch: int = offset_table._HEADER.unpack_from(data)[3]
    return epoch


def offsets_records(data: memoryview) -> Iterator[tuple[int, tuple[ConsumerKey, int, bool, int] | None]]:
    """Position and contents (consumer, offset, deleted, end position) of each record; None for a damaged stretch."""
    return offset_table._records(data)


def find_journal_entry(data: bytes, start: int) -> int | None:
    """Where the first good entry of a journal begins, at ``start`` or behind it."""
    found = data.find(journal._MAGIC, start + journal._MAGIC_POSITION)
    while found >= 0:
        position = found - journal._MAGIC_POSITION
        try:
            journal.decode_entry(data, position, len(data))
        except journal.BadEntry:
            found = data.find(journal._MAGIC, found + 1)
            continue
        return position
    return None


@dataclass(frozen=True, slots=True)
class SnapshotFields:
    """The header of a snapshot as it is, right or wrong."""

    checksum: str
    body_checksum: str
    format_version: int
    body_size: int
    op: int
    entry_checksum: str
    state_hash: str
    timestamp: int


def snapshot_fields(data: bytes) -> SnapshotFields | None:
    """What the header says; None if these bytes are no snapshot at all."""
    if len(data) < snapshot.HEADER_SIZE:
        return None
    checksum, body_checksum, magic, version, body_size, op, entry_checksum, state_hash, timestamp = (
        snapshot._HEADER.unpack_from(data)
    )
    if magic != snapshot._MAGIC:
        return None
    return SnapshotFields(
        checksum.hex(), body_checksum.hex(), version, body_size, op, entry_checksum.hex(), state_hash.hex(), timestamp
    )
