"""The partition to which a file belongs: read from the file, or given by the user."""

import errno
import os
import re
from contextlib import closing
from pathlib import Path

from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem, read_exactly

NOBODY = PartitionIdentity(bytes(16), 0, 0)
"""Used if no header names an owner: no batch belongs to it."""

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
