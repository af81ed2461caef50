"""Whose partition a directory holds, asked of its own files: for tools and for the rebuilding of metadata."""

import errno
from pathlib import Path

from courser.records import layout
from courser.records.stored_header import BadBatch, PartitionIdentity, read_header
from courser.storage.files import FileSystem, read_exactly
from courser.storage.ledger import identity_of_record
from courser.storage.paths import LEDGER, LOG_SUFFIX, base_offset_of

_HOPELESS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EIO)
"""Gone, something else than a file, or a bad sector."""


def find_identity(file_system: FileSystem, directory: Path) -> PartitionIdentity | None:
    """The identity that the ledger or, without it, the first batch of a segment names; None if neither has one.

    Raises:
        OSError: it may be there, and cannot be read now: too few descriptors, no permission.
    """
    try:
        names = sorted(entry.name for entry in file_system.list_directory(directory))
    except OSError as error:
        if not _is_hopeless(error):
            raise
        return None
    if LEDGER in names:
        identity = _from_ledger(file_system, directory / LEDGER)
        if identity is not None:
            return identity
    logs = (directory / name for name in names if base_offset_of(name, LOG_SUFFIX) is not None)
    return next((found for path in logs if (found := _from_log(file_system, path)) is not None), None)


def _is_hopeless(error: OSError) -> bool:
    """Whether the next try would meet it as well."""
    return error.errno in _HOPELESS


def _from_ledger(file_system: FileSystem, path: Path) -> PartitionIdentity | None:
    try:
        file = file_system.open(path)
        data = read_exactly(file, 0, file.size())
    except OSError as error:
        if not _is_hopeless(error):
            raise
        return None
    return identity_of_record(bytes(data or b""))


def _from_log(file_system: FileSystem, path: Path) -> PartitionIdentity | None:
    try:
        data = read_exactly(file_system.open(path), 0, layout.BATCH_HEADER_SIZE)
    except OSError as error:
        if not _is_hopeless(error):
            raise
        return None
    if data is None:
        return None
    fields = layout.STORED_HEADER.unpack(data)
    identity = PartitionIdentity(fields[15], fields[0], fields[16])
    try:
        read_header(memoryview(data), 0, identity)
    except BadBatch:
        return None
    return identity
