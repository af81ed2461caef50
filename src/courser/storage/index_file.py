"""The index on disk: blocks of 4 KiB, each with its own checksum, looked up without loading them all.

A block holds 169 entries (``docs/formats/index.md``). Only full blocks are appended while the segment is open; the
last one, written when the segment is sealed, also says how much of the log the index covers. The checksum is seeded
with the segment's identity, so a block of another segment is as bad as a damaged one. Nothing here is ever needed:
whoever meets a ``BadIndex`` builds the index again from the log.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import File, read_exactly
from courser.storage.index_entries import ROW, IndexEntries, IndexEntry

BLOCK_SIZE = 4096
BLOCK_HEADER = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the rest of the block, seeded with the segment's identity
    "4s"  # magic
    "H"  # format_version
    "H"  # entry_count
    "I"  # block_number
    "I"  # interval
    "Q"  # base_offset of the segment
    "Q"  # covered_size: bytes of log that the whole index covers; 0 in all but the last block
)
BLOCK_MAGIC = b"CRSI"
BLOCK_VERSION = 1
ENTRIES_PER_BLOCK = (BLOCK_SIZE - BLOCK_HEADER.size) // ROW.itemsize
_CHECKSUM_SIZE = 8
_IDENTITY = struct.Struct("<16sQQQ")


class BadIndex(Exception):
    """The index file is absent, short, damaged or another segment's."""


def segment_seed(identity: PartitionIdentity, base_offset: int) -> int:
    """What the checksums of this segment's index blocks are seeded with."""
    return xxh3(_IDENTITY.pack(identity.topic_uuid, identity.partition_id, identity.incarnation, base_offset))


def encode_blocks(
    entries: IndexEntries,
    *,
    first_block: int,
    seed: int,
    base_offset: int,
    interval: int,
    covered_size: int | None = None,
) -> bytes:
    """The entries as blocks: only the full ones or, with ``covered_size``, all of them, closing the index."""
    is_last = covered_size is not None
    block_count = len(entries) // ENTRIES_PER_BLOCK + is_last
    blocks = bytearray(block_count * BLOCK_SIZE)
    for number in range(block_count):
        start = number * ENTRIES_PER_BLOCK
        rows = entries.rows(start, min(start + ENTRIES_PER_BLOCK, len(entries)))
        covered = covered_size or 0 if number == block_count - 1 else 0
        position = number * BLOCK_SIZE
        fields = (BLOCK_MAGIC, BLOCK_VERSION, len(rows), first_block + number, interval, base_offset, covered)
        BLOCK_HEADER.pack_into(blocks, position, 0, *fields)
        body = position + BLOCK_HEADER.size
        blocks[body : body + rows.nbytes] = rows.tobytes()
        covered_part = memoryview(blocks)[position + _CHECKSUM_SIZE : position + BLOCK_SIZE]
        checksum = xxhash.xxh3_64_intdigest(covered_part, seed)
        BLOCK_HEADER.pack_into(blocks, position, checksum, *fields)
    return bytes(blocks)


class Block:
    """One block that passed its checks."""

    __slots__ = ("covered_size", "entries", "entry_count", "interval")

    def __init__(self, data: bytearray, *, number: int, seed: int, base_offset: int) -> None:
        checksum, magic, version, count, stored_number, interval, stored_base, covered = BLOCK_HEADER.unpack_from(data)
        if magic != BLOCK_MAGIC or version != BLOCK_VERSION:
            raise BadIndex(f"block {number} is no index block")
        if xxhash.xxh3_64_intdigest(memoryview(data)[_CHECKSUM_SIZE:], seed) != checksum:
            raise BadIndex(f"the checksum of block {number} does not match")
        if stored_number != number or stored_base != base_offset or count > ENTRIES_PER_BLOCK or interval < 1:
            raise BadIndex(f"block {number} says that it is block {stored_number} of segment {stored_base}")
        self.entry_count = count
        self.interval = interval
        self.covered_size = covered
        self.entries = IndexEntries(base_offset)
        self.entries.add_rows(np.frombuffer(data, ROW, count, BLOCK_HEADER.size))


class IndexFile:
    """Reads an index file block by block. Remembers the last few blocks it decoded."""

    _REMEMBERED_COUNT_MAX = 8
    """Blocks kept: a binary search over a 1 GiB segment's index touches eleven, the same first ones each time."""

    def __init__(self, file: File, *, seed: int, base_offset: int, block_count: int) -> None:
        self._file = file
        self._seed = seed
        self._base_offset = base_offset
        self._block_count = block_count
        self._remembered: dict[int, Block] = {}

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._file.path

    @property
    def block_count(self) -> int:
        """How many blocks there are."""
        return self._block_count

    def check_complete(self, covered_size: int) -> None:
        """Raise ``BadIndex`` unless the last block says that the index covers the whole log."""
        if self._block_count < 1 or self.block(self._block_count - 1).covered_size != covered_size:
            raise BadIndex(f"the index does not cover the {covered_size} bytes of its log")

    def block(self, number: int) -> Block:
        """Read and check one block."""
        block = self._remembered.get(number)
        if block is None:
            data = read_exactly(self._file, number * BLOCK_SIZE, BLOCK_SIZE)
            if data is None:
                raise BadIndex(f"the file ends before block {number}")
            block = Block(data, number=number, seed=self._seed, base_offset=self._base_offset)
            if len(self._remembered) >= self._REMEMBERED_COUNT_MAX:
                self._remembered = {}
            self._remembered[number] = block
        return block

    def at_offset(self, offset: int) -> IndexEntry | None:
        """The last entry at or before ``offset``."""
        return self._last_block_with(lambda block: block.entries.at_offset(offset))

    def before_time(self, timestamp: int) -> IndexEntry | None:
        """The last entry that is older than ``timestamp``."""
        return self._last_block_with(lambda block: block.entries.before_time(timestamp))

    def _last_block_with(self, find: "Callable[[Block], IndexEntry | None]") -> IndexEntry | None:
        """Binary search for the last block in which ``find`` finds something, and what it finds there."""
        found: IndexEntry | None = None
        low, high = 0, self._block_count
        while low < high:
            middle = (low + high) // 2
            entry = find(self.block(middle))
            if entry is None:
                high = middle
            else:
                found = entry
                low = middle + 1
        return found

    def load(self) -> IndexEntries:
        """All entries, every block checked."""
        entries = IndexEntries(self._base_offset)
        for number in range(self._block_count):
            data = read_exactly(self._file, number * BLOCK_SIZE, BLOCK_SIZE)
            if data is None:
                raise BadIndex(f"the file ends before block {number}")
            block = Block(data, number=number, seed=self._seed, base_offset=self._base_offset)
            entries.add_rows(block.entries.rows(0, block.entry_count))
        return entries
