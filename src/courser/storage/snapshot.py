"""The metadata snapshot: the whole state at one entry of the journal, replaced in one step.

Pure bytes, like the journal. Header and body have a checksum each; the state's own hash is kept beside them, and the
catalog compares it with the state that it read (``docs/formats/snapshot.md``).
"""

import struct
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import xxhash

from courser.errors import MetadataDamaged, StorageFailure
from courser.storage.durable_files import unlink_if_there
from courser.storage.files import FileSystem, read_exactly, write_all
from courser.storage.journal_entries import SnapshotMark
from courser.storage.paths import TEMPORARY_SUFFIX

HEADER_SIZE = 128
_HEADER = struct.Struct(
    "<"
    "16s"  # checksum: XXH3-128 of the rest of the header
    "16s"  # body_checksum: XXH3-128 of the body
    "4s"  # magic
    "H"  # format_version
    "2x"
    "Q"  # body_size
    "Q"  # op that the state includes
    "16s"  # entry_checksum of that op: the parent of the next one
    "16s"  # state_hash
    "Q"  # timestamp
    "32x"  # reserved, zero
)
assert _HEADER.size == HEADER_SIZE
_MAGIC = b"CRSN"
_VERSION = 1
_CHECKSUM_SIZE = 16

SNAPSHOT_SIZE_MAX = 4 * 1024**3
"""Bytes: a larger body size is damage."""
_RENAME_TRY_COUNT = 3
"""Tries of the rename alone; the file it renames is synced already."""


class SnapshotStage(Enum):
    """Where writing a snapshot failed."""

    WRITE = "write"
    SYNC = "sync"
    RENAME = "rename"
    DIRECTORY_SYNC = "directory sync"


class SnapshotFailure(StorageFailure):
    """A snapshot could not be made. The one before it is still there, unless the stage is the directory sync."""

    def __init__(self, stage: SnapshotStage, path: Path, cause: OSError) -> None:
        super().__init__(stage.value, path, cause)
        self.stage = stage


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after one entry of the journal."""

    mark: SnapshotMark
    state_hash: bytes
    timestamp: int
    body: bytes


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of the file that holds this snapshot."""
    rest = _HEADER.pack(
        bytes(_CHECKSUM_SIZE),
        xxhash.xxh3_128_digest(snapshot.body),
        _MAGIC,
        _VERSION,
        len(snapshot.body),
        snapshot.mark.op,
        snapshot.mark.checksum,
        snapshot.state_hash,
        snapshot.timestamp,
    )[_CHECKSUM_SIZE:]
    return b"".join((xxhash.xxh3_128_digest(rest), rest, snapshot.body))


class SnapshotHeader(NamedTuple):
    """The fields of the header, in order."""

    checksum: bytes
    body_checksum: bytes
    magic: bytes
    format_version: int
    body_size: int
    op: int
    entry_checksum: bytes
    state_hash: bytes
    timestamp: int


def unpack_header(data: bytes | bytearray) -> SnapshotHeader | None:
    """What the header says, right or wrong; None if these bytes are no snapshot at all."""
    if len(data) < HEADER_SIZE:
        return None
    header = SnapshotHeader._make(_HEADER.unpack_from(data))
    return header if header.magic == _MAGIC else None


def decode_snapshot(data: bytes | bytearray, path: Path) -> Snapshot:
    """Take a file apart. Raises ``MetadataDamaged``."""
    if len(data) < HEADER_SIZE:
        raise MetadataDamaged(path, 0, f"{len(data)} bytes are too few for a header")
    header = unpack_header(data)
    if header is None:
        raise MetadataDamaged(path, 0, "it is not a snapshot")
    if xxhash.xxh3_128_digest(memoryview(data)[_CHECKSUM_SIZE:HEADER_SIZE]) != header.checksum:
        raise MetadataDamaged(path, 0, "the header checksum does not match")
    if header.format_version != _VERSION:
        raise MetadataDamaged(
            path, 0, f"snapshot format {header.format_version} is not supported; this version supports only {_VERSION}"
        )
    body = bytes(memoryview(data)[HEADER_SIZE:])
    if len(body) != header.body_size:
        raise MetadataDamaged(path, HEADER_SIZE, f"{len(body)} bytes follow the header instead of {header.body_size}")
    if xxhash.xxh3_128_digest(body) != header.body_checksum:
        raise MetadataDamaged(path, HEADER_SIZE, "the body checksum does not match")
    return Snapshot(SnapshotMark(header.op, header.entry_checksum), header.state_hash, header.timestamp, body)


def read_snapshot(file_system: FileSystem, path: Path) -> Snapshot | None:
    """The snapshot, or None if there never was one. Raises ``MetadataDamaged``."""
    try:
        file = file_system.open(path)
    except FileNotFoundError:
        return None
    with closing(file):
        size = file.size()
        if size > SNAPSHOT_SIZE_MAX:
            raise MetadataDamaged(path, 0, f"{size} bytes exceed the maximum size of a snapshot")
        data = read_exactly(file, 0, size)
    if data is None:
        raise MetadataDamaged(path, 0, f"could not read all of its {size} bytes")
    return decode_snapshot(data, path)


def write_snapshot(file_system: FileSystem, path: Path, snapshot: Snapshot) -> None:
    """Replace the snapshot, durably. A power cut leaves the old one or the new one, whole.

    Only the rename is tried again by itself. After a failed sync the data is given up: the caller starts over, with a
    new file.

    Raises:
        SnapshotFailure: with the stage.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        unlink_if_there(file_system, temporary)
        file = file_system.open(temporary, writable=True, create=True)
    except OSError as error:
        raise SnapshotFailure(SnapshotStage.WRITE, temporary, error) from error
    with closing(file):
        try:
            write_all(file, 0, [encode_snapshot(snapshot)])
        except OSError as error:
            raise SnapshotFailure(SnapshotStage.WRITE, temporary, error) from error
        try:
            file.sync()
        except OSError as error:
            raise SnapshotFailure(SnapshotStage.SYNC, temporary, error) from error
    _rename(file_system, temporary, path)
    try:
        file_system.sync_directory(path.parent)
    except OSError as error:
        raise SnapshotFailure(SnapshotStage.DIRECTORY_SYNC, path.parent, error) from error


def _rename(file_system: FileSystem, source: Path, target: Path) -> None:
    for attempt in range(_RENAME_TRY_COUNT):
        try:
            file_system.rename(source, target)
        except OSError as error:
            if attempt + 1 == _RENAME_TRY_COUNT:
                raise SnapshotFailure(SnapshotStage.RENAME, target, error) from error
        else:
            return
