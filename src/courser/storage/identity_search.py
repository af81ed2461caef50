"""Find out which partition the files in a directory belong to.

Every ledger record and every batch header names its partition. If it names another one, a directory or file was
swapped, copied or restored to the wrong place. That is not damage: the files contain intact messages of another
partition, so they are not changed.
"""

import errno
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from courser.errors import StartRefused
from courser.records import layout
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity, StoredHeader
from courser.storage.files import File, FileSystem, read_exactly, read_into
from courser.storage.ledger import ledger_owner, read_ledger
from courser.storage.paths import LEDGER, LOG_SUFFIX, base_offset_of, log_path

_HOPELESS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EIO)
"""Errors that a retry would meet again: missing, not a file, or a bad sector."""
_STEP_SIZE = 1024 * 1024
"""Bytes to read at a time in the search for a header."""
_HEADER_COUNT_MAX = 64
"""Consecutive batches of another partition, from the start of a file, after which the file is considered that
partition's. A single one among our own batches is a misdirected write."""


LEDGER_TEXT = "it contains the ledger of partition"
SEGMENTS_TEXT = "it contains the segments of partition"


class ForeignPartition(StartRefused):
    """The directory contains the files of another partition. Nothing in it was changed."""

    def __init__(self, path: Path, expected: PartitionIdentity, found: PartitionIdentity, what: str) -> None:
        super().__init__(
            path,
            f"{what} {found} instead of {expected}",
            "stop the server and restore the right directory; nothing in this one was changed",
        )
        self.expected = expected
        self.found = found
        self.what = what
        """``LEDGER_TEXT`` or ``SEGMENTS_TEXT``."""


@dataclass(frozen=True, slots=True)
class LogOwners:
    """Which partitions the segments in a directory belong to."""

    own: frozenset[int] = frozenset()
    """First offsets of segments with a batch of this partition, or known to be its own."""
    foreign: dict[int, PartitionIdentity] = field(default_factory=dict)
    """By first offset: segments with batches of another partition and none of this one."""

    @property
    def stranger(self) -> tuple[PartitionIdentity, str] | None:
        """The partition that all segments belong to, with ``SEGMENTS_TEXT``; None if one is our own, or unknown."""
        if self.own or not self.foreign:
            return None
        return next(iter(self.foreign.values())), SEGMENTS_TEXT


def find_identity(file_system: FileSystem, directory: Path) -> PartitionIdentity | None:
    """The identity in the ledger or, failing that, in the first batch of a segment; None if neither has one.

    Raises:
        OSError: a file cannot be read now, for example for lack of descriptors or permission.
    """
    try:
        names = sorted(entry.name for entry in file_system.list_directory(directory))
    except OSError as error:
        if not _is_hopeless(error):
            raise
        return None
    if LEDGER in names:
        identity = _first_in_ledger(file_system, directory / LEDGER)
        if identity is not None:
            return identity
    logs = (directory / name for name in names if base_offset_of(name, LOG_SUFFIX) is not None)
    return next((found for path in logs if (found := _first_owner(file_system, path)) is not None), None)


def find_stranger(
    file_system: FileSystem, directory: Path, identity: PartitionIdentity
) -> tuple[PartitionIdentity, str] | None:
    """The other partition that the directory belongs to, with ``LEDGER_TEXT`` or ``SEGMENTS_TEXT``; None if it is ours.

    It belongs to the partition of its ledger or, without a good ledger record, to the partition of all its segments.
    """
    reading = read_ledger(file_system, directory / LEDGER, identity)
    if reading.foreign_owner is not None:
        return reading.foreign_owner, LEDGER_TEXT
    if reading.sequence:
        return None
    names = [entry.name for entry in file_system.list_directory(directory)]
    bases = sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)
    owners = find_log_owners(file_system, {base: log_path(directory, base) for base in bases}, identity)
    return owners.stranger


def find_log_owners(
    file_system: FileSystem, paths: dict[int, Path], identity: PartitionIdentity, *, known: frozenset[int] = frozenset()
) -> LogOwners:
    """Find the owners of segments. Those in ``known`` are not read: the ledger proves that they are our own."""
    own, foreign = set(known), {}
    for base, path in paths.items():
        if base in known:
            continue
        owner = log_owner(file_system, path, identity)
        if owner == identity:
            own.add(base)
        elif owner is not None:
            foreign[base] = owner
    return LogOwners(frozenset(own), foreign)


def log_owner(file_system: FileSystem, path: Path, identity: PartitionIdentity) -> PartitionIdentity | None:
    """``identity`` if a batch in the file belongs to it, else the owner of the first batch; None without a good header.

    Only the first header is read if the file is intact and our own.
    """
    try:
        file = file_system.open(path)
    except OSError as error:
        if not _is_hopeless(error):
            raise
        return None
    first: PartitionIdentity | None = None
    try:
        for number, header in enumerate(_headers(file, file.size())):
            owner = owner_of(header)
            first = first or owner
            if owner == identity or number + 1 >= _HEADER_COUNT_MAX:
                return owner if owner == identity else first
    except OSError as error:
        if not _is_hopeless(error):
            raise
    finally:
        file.close()
    return first


def owner_of(header: StoredHeader) -> PartitionIdentity:
    """The partition that a batch header names."""
    return PartitionIdentity(header.topic_uuid, header.partition_id, header.incarnation)


def _headers(file: File, end: int) -> Iterator[StoredHeader]:
    """Iterate over the headers with correct checksums. Bodies are not read."""
    position: int | None = 0
    while position is not None and position + layout.BATCH_HEADER_SIZE <= end:
        data = read_exactly(file, position, layout.BATCH_HEADER_SIZE)
        header = _header_in(bytes(data)) if data is not None else None
        if header is None:
            found = first_header(file, end, position + 1)
            position = None if found is None else found[0]
            continue
        yield header
        # A correct checksum does not prove that the length makes sense, so advance by at least a header.
        position += max(header.stored_length, layout.BATCH_HEADER_SIZE)


def _header_in(data: bytes) -> StoredHeader | None:
    header = StoredHeader._make(layout.STORED_HEADER.unpack_from(data))
    if header.magic != layout.MAGIC or xxh3(data[: layout.HEADER_CHECKSUM_POSITION]) != header.header_checksum:
        return None
    return header


def first_header(file: File, end: int, position: int = 0) -> tuple[int, StoredHeader] | None:
    """The first header with a correct checksum from ``position`` on, and where it is; None if there is none."""
    buffer = memoryview(bytearray(min(_STEP_SIZE, max(end - position, 1))))
    while position + layout.BATCH_HEADER_SIZE <= end:
        filled = read_into(file, position, buffer[: min(len(buffer), end - position)])
        data = bytes(buffer[:filled])
        magic_position = data.find(layout.MAGIC, layout.MAGIC_POSITION)
        while magic_position >= 0:
            start = magic_position - layout.MAGIC_POSITION
            if start + layout.BATCH_HEADER_SIZE > len(data):
                break
            header = _header_in(data[start : start + layout.BATCH_HEADER_SIZE])
            if header is not None:
                return position + start, header
            magic_position = data.find(layout.MAGIC, magic_position + 1)
        # A header may cross the boundary of two steps, so they overlap.
        step = filled - layout.BATCH_HEADER_SIZE + 1
        if step <= 0:
            return None
        position += step
    return None


def _is_hopeless(error: OSError) -> bool:
    """Whether a retry would fail too."""
    return error.errno in _HOPELESS


def _first_in_ledger(file_system: FileSystem, path: Path) -> PartitionIdentity | None:
    try:
        with closing(file_system.open(path)) as file:
            data = bytes(read_exactly(file, 0, file.size()) or b"")
    except OSError as error:
        if not _is_hopeless(error):
            raise
        return None
    return ledger_owner(data)


def _first_owner(file_system: FileSystem, path: Path) -> PartitionIdentity | None:
    try:
        with closing(file_system.open(path)) as file:
            header = next(_headers(file, min(file.size(), _STEP_SIZE)), None)
    except OSError as error:
        if not _is_hopeless(error):
            raise
        return None
    return owner_of(header) if header is not None else None
