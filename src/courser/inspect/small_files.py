"""Files that are read as a whole: the records of a ledger, of an offsets file and of a session file."""

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from courser.errors import StorageFailure
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem, read_exactly
from courser.storage.ledger import RECORD_SIZE, Event, ledger_owner, scan_ledger
from courser.storage.offset_table import HEADER_SIZE, ConsumerKey, decode_header, iterate_records
from courser.storage.session_file import SessionRecord, decode_session, read_session

NOBODY = PartitionIdentity(bytes(16), 0, 0)
"""Used if no header names an owner: no batch belongs to it."""

_WHOLE_SIZE_MAX = 1024 * 1024 * 1024
"""The largest file that is read as a whole: every index is smaller. A wrong file must not use up the memory."""


def read_whole(file_system: FileSystem, path: Path) -> bytes:
    """Read a small file as a whole. A file that shrinks during the read is read again; a large one is rejected."""
    with closing(file_system.open(path)) as file:
        while True:
            size = file.size()
            if size > _WHOLE_SIZE_MAX:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            data = read_exactly(file, 0, size)
            if data is not None:
                return bytes(data)


@dataclass(frozen=True, slots=True)
class BadRecordRow:
    """Bytes that are not a good record."""

    position: int
    end_position: int
    reason: str


# --- ledger ---


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """Facts about the whole ledger."""

    path: Path
    size: int
    identity: PartitionIdentity | None
    """From the first good record."""


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A good record of a ledger: the partition's numbers at that time, and possibly an event."""

    position: int
    sequence: int
    event: str
    """The event of the record; ``numbers`` if it has none."""
    start_offset: int
    reserved_end: int
    last_timestamp: int
    epoch: int
    details: Event | None


_EVENTS = {
    "Sealed": "sealed",
    "Progress": "recovery point",
    "OffsetGap": "gap",
    "DamagedRange": "damage",
    "SyncFailure": "sync failure",
    "TimeCorrection": "time correction",
    "OffsetsMark": "stored offsets",
    "NoneType": "numbers",
}


class LedgerInspection:
    """Reads the records of a partition's ledger."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self.data = read_whole(file_system, path)
        self.head = LedgerHead(path, len(self.data), ledger_owner(self.data))

    def rows(self) -> Iterator[RecordRow | BadRecordRow]:
        """All records in order."""
        identity = self.head.identity or NOBODY
        for position, decoded in scan_ledger(self.data, identity):
            if isinstance(decoded, str):
                yield BadRecordRow(position, min(position + RECORD_SIZE, len(self.data)), decoded)
                continue
            sequence, numbers, event = decoded
            yield RecordRow(
                position,
                sequence,
                _EVENTS[type(event).__name__],
                numbers.start_offset,
                numbers.reserved_end,
                numbers.last_timestamp,
                numbers.epoch,
                event,
            )


# --- stored offsets ---


@dataclass(frozen=True, slots=True)
class OffsetsHead:
    """Facts about the whole offsets file."""

    path: Path
    size: int
    epoch: int | None
    """Number of purges when the file was created; None if the header is damaged."""
    identity: PartitionIdentity | None
    """The partition of the offsets; None if the header is damaged, or of version 1."""
    generation: int
    """How often the file was rewritten; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class StoredOffsetRow:
    """A good record: one store, or one delete."""

    position: int
    consumer: str
    """``consumer`` or ``group``."""
    identifier: str
    """As text if it is readable, else as hex with the prefix ``0x``."""
    offset: int | None
    """None if the record deletes the consumer."""
    is_current: bool
    """Whether this is the last record of the consumer."""


class OffsetsInspection:
    """Reads one offsets file."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self.data = read_whole(file_system, path)
        header = decode_header(self.data)
        self._header_problem = header if isinstance(header, str) else None
        self._header_size = HEADER_SIZE if isinstance(header, str) else header.size
        if isinstance(header, str):
            self.head = OffsetsHead(path, len(self.data), None, None, 0)
        else:
            self.head = OffsetsHead(path, len(self.data), header.epoch, header.identity, header.generation)

    def rows(self) -> Iterator[StoredOffsetRow | BadRecordRow]:
        """All records in order, including history. After a damaged header they are shown, but have no effect."""
        if self._header_problem:
            yield BadRecordRow(0, min(HEADER_SIZE, len(self.data)), self._header_problem)
        records = list(iterate_records(memoryview(self.data), self._header_size))
        last = {record[0]: position for position, record in records if record is not None}
        starts = [*(position for position, _ in records), len(self.data)]
        for number, (position, record) in enumerate(records):
            if record is None:
                yield BadRecordRow(position, starts[number + 1], "the record is damaged")
                continue
            key, offset, is_deleted, _ = record
            yield StoredOffsetRow(
                position,
                key.kind.name.lower(),
                _identifier_text(key),
                None if is_deleted else offset,
                not self._header_problem and last[key] == position,
            )


def _identifier_text(key: ConsumerKey) -> str:
    """A readable identifier of a consumer."""
    try:
        text = key.identifier.decode()
    except UnicodeDecodeError:
        return f"0x{key.identifier.hex()}"
    return text if text.isprintable() else f"0x{key.identifier.hex()}"


# --- session ---


@dataclass(frozen=True, slots=True)
class SessionHead:
    """Facts about the whole session file."""

    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The state that the last server left."""

    directory_format: int
    boot_id: str
    mount_id: int
    inode: int
    is_clean: bool
    """Whether it stopped cleanly; false also while it runs."""
    time: int
    """Wall clock time of writing; 0 if an older version wrote it."""


class SessionInspection:
    """Reads the session file of a data directory."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self.data = read_whole(file_system, path)
        self.head = SessionHead(path, len(self.data))

    def rows(self) -> Iterator[SessionRow | BadRecordRow]:
        """The record of the last session, or the damage."""
        session: SessionRecord | None = decode_session(self.data)
        if session is None:
            yield BadRecordRow(0, len(self.data), "the file is damaged: the next start assumes a power cut")
            return
        identity = session.identity
        place = identity.boot_id.hex(), identity.mount_id, identity.inode
        yield SessionRow(session.directory_format, *place, session.is_clean, session.time)


def stopped_cleanly(file_system: FileSystem, data_directory: Path | None) -> bool:
    """Whether the server of a data directory stopped cleanly and has not started again; False if it is unknown."""
    try:
        session = read_session(file_system, data_directory) if data_directory is not None else None
    except StorageFailure:
        return False
    return session is not None and session.is_clean
