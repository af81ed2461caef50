"""The partition to which a file belongs: read from the file, or given by the user."""

import errno
import os
import re

from courser.records import layout
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity, StoredHeader
from courser.storage.files import File, read_exactly, read_into

NOBODY = PartitionIdentity(bytes(16), 0, 0)
"""Used if no header names an owner: no batch belongs to it."""

_STEP_SIZE = 1024 * 1024
"""Bytes read at a time."""
_WHOLE_SIZE_MAX = 1024 * 1024 * 1024
"""The largest file that is read as a whole: every index is smaller. A wrong file must not use up the memory."""
_IDENTITY_TEXT = re.compile(r"([0-9a-fA-F]{32}):(\d{1,19})-(\d{1,19})")


def parse_identity(text: str) -> PartitionIdentity | None:
    """Parse ``<topic uuid>:<partition>-<incarnation>``, with or without dashes in the uuid; None if invalid."""
    topic, colon, partition = text.partition(":")
    found = _IDENTITY_TEXT.fullmatch(topic.replace("-", "") + colon + partition)
    if found is None:
        return None
    return PartitionIdentity(bytes.fromhex(found[1]), int(found[2]), int(found[3]))


def identity_of(header: StoredHeader) -> PartitionIdentity:
    """The partition named in a batch header."""
    return PartitionIdentity(header.topic_uuid, header.partition_id, header.incarnation)


def find_first_header(file: File, end: int) -> tuple[int, StoredHeader] | None:
    """The first header below ``end`` with a correct checksum, and its position. The body is not checked."""
    buffer = memoryview(bytearray(min(_STEP_SIZE, max(end, 1))))
    position = 0
    while position + layout.BATCH_HEADER_SIZE <= end:
        filled = read_into(file, position, buffer[: min(len(buffer), end - position)])
        found = _first_header_in(bytes(buffer[:filled]))
        if found is not None:
            return position + found[0], found[1]
        # A header may span two steps, so steps overlap.
        step = filled - layout.BATCH_HEADER_SIZE + 1
        if step <= 0:
            return None
        position += step
    return None


def _first_header_in(data: bytes) -> tuple[int, StoredHeader] | None:
    magic_position = data.find(layout.MAGIC, layout.MAGIC_POSITION)
    while magic_position >= 0:
        start = magic_position - layout.MAGIC_POSITION
        if start + layout.BATCH_HEADER_SIZE > len(data):
            return None
        header = StoredHeader._make(layout.STORED_HEADER.unpack_from(data, start))
        is_whole = xxh3(data[start : start + layout.HEADER_CHECKSUM_POSITION]) == header.header_checksum
        if is_whole and header.format_version == layout.FORMAT_VERSION:
            return start, header
        magic_position = data.find(layout.MAGIC, magic_position + 1)
    return None


def read_whole(file: File) -> bytes:
    """Read a small file as a whole. A file that shrinks during the read is read again; a large one is rejected."""
    while True:
        size = file.size()
        if size > _WHOLE_SIZE_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(file.path))
        data = read_exactly(file, 0, size)
        if data is not None:
            return bytes(data)
