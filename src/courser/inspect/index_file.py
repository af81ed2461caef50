"""The blocks and entries of one index file."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from courser.records.stored_header import PartitionIdentity
from courser.storage.files import File, FileSystem, read_into
from courser.storage.identity_search import first_header, owner_of
from courser.storage.index_entries import ROW
from courser.storage.index_file import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    BLOCK_SIZE,
    ENTRIES_PER_BLOCK,
    BadIndex,
    Block,
    segment_seed,
)
from courser.storage.paths import INDEX_SUFFIX, LOG_SUFFIX, base_offset_of


@dataclass(frozen=True, slots=True)
class IndexHead:
    """Facts about the whole file."""

    path: Path
    size: int
    block_count: int
    base_offset: int
    base_offset_source: str
    """``file name``, ``first block`` or ``unknown``."""
    identity: PartitionIdentity | None
    """The partition of the segment; None if checksums cannot be verified."""
    identity_source: str
    """``given``, ``log`` or ``unknown``."""


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block of the index."""

    number: int
    position: int
    entry_count: int
    interval: int
    base_offset: int
    covered_size: int
    """Bytes of log that the whole index covers; 0 in all but the last block."""
    checksum: str
    """``ok``, ``unchecked``, or the problem."""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry of a block."""

    block: int
    offset: int
    frame_position: int
    batch_position: int
    timestamp: int


@dataclass(slots=True)
class IndexSummary:
    """Counts of the rows."""

    block_count: int = 0
    entry_count: int = 0
    bad_block_count: int = 0
    unchecked_block_count: int = 0


IndexRow = BlockRow | EntryRow
_IDENTITY_TEXT = re.compile(r"([0-9a-fA-F]{32}):(\d{1,19})-(\d{1,19})")


def parse_identity(text: str) -> PartitionIdentity | None:
    """Parse ``<topic uuid>:<partition>-<incarnation>``, with or without dashes in the uuid; None if invalid."""
    topic, colon, partition = text.partition(":")
    found = _IDENTITY_TEXT.fullmatch(topic.replace("-", "") + colon + partition)
    if found is None:
        return None
    return PartitionIdentity(bytes.fromhex(found[1]), int(found[2]), int(found[3]))


class IndexInspection:
    """Reads one index file. Call ``rows`` once, then ``summary``.

    The checksum of a block is seeded with the segment's identity, which only the log contains. Without it, checksums
    are not verified.
    """

    def __init__(self, file_system: FileSystem, path: Path, identity: PartitionIdentity | None = None) -> None:
        self._file = file_system.open(path)
        size = self._file.size()
        source = "given" if identity is not None else "unknown"
        if identity is None:
            identity = _identity_of_log(file_system, path.with_suffix(LOG_SUFFIX))
            source = "log" if identity is not None else "unknown"
        base_offset, base_source = base_offset_of(path.name, INDEX_SUFFIX), "file name"
        if base_offset is None:
            base_offset, base_source = _base_offset_of_block(self._file)
        block_count = (size + BLOCK_SIZE - 1) // BLOCK_SIZE
        self.head = IndexHead(path, size, block_count, base_offset, base_source, identity, source)
        self.summary = IndexSummary()

    def rows(self, *, entries: bool = True, from_offset: int = 0, limit: int | None = None) -> Iterator[IndexRow]:
        """Each block, followed by its entries from ``from_offset`` on. ``limit`` counts entries, or blocks."""
        left = limit
        for number in range(self.head.block_count):
            if left is not None and left <= 0:
                return
            block, rows = self._block(number)
            if entries and rows and rows[-1].offset < from_offset:
                continue
            yield block
            shown = [row for row in rows if row.offset >= from_offset][:left] if entries else []
            yield from shown
            if left is not None:
                left -= len(shown) if entries else 1

    def _block(self, number: int) -> tuple[BlockRow, list[EntryRow]]:
        """One block, with its entries if its counts are plausible."""
        summary = self.summary
        summary.block_count += 1
        position = number * BLOCK_SIZE
        data = bytearray(BLOCK_SIZE)
        filled = read_into(self._file, position, memoryview(data))
        _, magic, _, count, _, interval, base_offset, covered_size = BLOCK_HEADER.unpack_from(data)
        checksum = "ok"
        if filled < BLOCK_SIZE:
            checksum = f"the file ends inside the block, after {filled} bytes"
        elif self.head.identity is not None:
            seed = segment_seed(self.head.identity, self.head.base_offset)
            try:
                Block(data, number=number, seed=seed, base_offset=self.head.base_offset)
            except BadIndex as error:
                checksum = str(error)
        elif magic != BLOCK_MAGIC:
            checksum = f"block {number} is not an index block"
        else:
            checksum = "unchecked"
            summary.unchecked_block_count += 1
        summary.bad_block_count += checksum not in ("ok", "unchecked")
        is_readable = magic == BLOCK_MAGIC and filled == BLOCK_SIZE and count <= ENTRIES_PER_BLOCK
        rows = np.frombuffer(data, ROW, count, BLOCK_HEADER.size).tolist() if is_readable else []
        summary.entry_count += len(rows)
        block = BlockRow(number, position, count, interval, base_offset, covered_size, checksum)
        return block, [
            EntryRow(number, self.head.base_offset + offset, frame_position, batch_position, timestamp)
            for offset, frame_position, batch_position, _, timestamp in rows
        ]


def _identity_of_log(file_system: FileSystem, path: Path) -> PartitionIdentity | None:
    try:
        with closing(file_system.open(path)) as log:
            found = first_header(log, log.size())
    except OSError:
        # The log is missing or cannot be read: checksums are not verified.
        return None
    return owner_of(found[1]) if found is not None else None


def _base_offset_of_block(file: File) -> tuple[int, str]:
    data = bytearray(BLOCK_HEADER.size)
    if read_into(file, 0, memoryview(data)) < len(data):
        return 0, "unknown"
    _, magic, _, _, _, _, base_offset, _ = BLOCK_HEADER.unpack_from(data)
    return (base_offset, "first block") if magic == BLOCK_MAGIC else (0, "unknown")
