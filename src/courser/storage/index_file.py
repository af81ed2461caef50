"""The index on disk: blocks of 4 KiB, each with its own checksum, looked up without loading them all.

A block holds 169 entries (``docs/formats/index-file.md``). Only full blocks are appended while the segment is open; the
last one, written when the segment is sealed, also says how much of the log the index covers. The checksum is seeded
with the segment's identity, so a block of another segment is as bad as a damaged one. Nothing here is ever needed:
whoever meets a ``BadIndex`` builds the index again from the log.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import xxhash

from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import File, read_exactly
from courser.storage.index_entries import ROW, IndexEntries, IndexEntry

BLOCK_SIZE = 4096
"""Bytes. Tests pass a smaller ``block_size``, to fill many blocks with few messages."""
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
_CHECKSUM_SIZE = 8
_ROW = struct.Struct("<IIIIQ")
assert _ROW.size == ROW.itemsize
_IDENTITY = struct.Struct("<16sQQQ")


class BadIndex(Exception):
    """The index file is absent, short, damaged or another segment's."""


def entries_per_block(block_size: int = BLOCK_SIZE) -> int:
    """How many entries a full block holds."""
    return (block_size - BLOCK_HEADER.size) // ROW.itemsize


ENTRIES_PER_BLOCK = entries_per_block()


def segment_seed(identity: PartitionIdentity, base_offset: int) -> int:
    """What the checksums of this segment's index blocks are seeded with."""
    return xxh3(_IDENTITY.pack(identity.topic_uuid, identity.partition_id, identity.incarnation, base_offset))


@cache
def _block_type(entry_count: int) -> "np.dtype[np.void]":
    """A full block as an array element."""
    return np.dtype(
        [
            ("checksum", "<u8"),
            ("magic", "S4"),
            ("format_version", "<u2"),
            ("entry_count", "<u2"),
            ("block_number", "<u4"),
            ("interval", "<u4"),
            ("base_offset", "<u8"),
            ("covered_size", "<u8"),
            ("entries", ROW, entry_count),
        ]
    )


def encode_blocks(
    entries: IndexEntries,
    *,
    first_block: int,
    seed: int,
    base_offset: int,
    interval: int,
    first_entry: int = 0,
    end_entry: int | None = None,
    covered_size: int | None = None,
    block_size: int = BLOCK_SIZE,
) -> bytearray:
    """The entries from ``first_entry`` on as blocks: only full ones or, with ``covered_size``, all, closing the index.

    Others may be added meanwhile, behind ``end_entry``. All blocks are filled with one array operation per column.
    """
    is_last = covered_size is not None
    per_block = entries_per_block(block_size)
    count = (len(entries) if end_entry is None else end_entry) - first_entry
    full_count = count // per_block
    data = bytearray((full_count + is_last) * block_size)
    blocks = np.frombuffer(data, _block_type(per_block))
    blocks["magic"] = BLOCK_MAGIC
    blocks["format_version"] = BLOCK_VERSION
    blocks["entry_count"] = per_block
    blocks["block_number"] = np.arange(first_block, first_block + len(blocks))
    blocks["interval"] = interval
    blocks["base_offset"] = base_offset
    end = first_entry + full_count * per_block
    entries.copy_rows(blocks["entries"][:full_count], first_entry, end)
    if is_last:
        rest = first_entry + count - end
        blocks["entry_count"][-1] = rest
        blocks["covered_size"][-1] = covered_size
        entries.copy_rows(blocks["entries"][-1, :rest], end, end + rest)
    view = memoryview(data)
    blocks["checksum"] = [
        xxhash.xxh3_64_intdigest(view[position + _CHECKSUM_SIZE : position + block_size], seed)
        for position in range(0, len(data), block_size)
    ]
    return data


def _check_block(data: memoryview, *, number: int, seed: int, base_offset: int) -> tuple[int, int, int]:
    """Entry count, interval and covered size of a block. Raises ``BadIndex``."""
    checksum, magic, version, count, stored_number, interval, stored_base, covered = BLOCK_HEADER.unpack_from(data)
    if magic != BLOCK_MAGIC or version != BLOCK_VERSION:
        raise BadIndex(f"block {number} is not an index block")
    if xxhash.xxh3_64_intdigest(data[_CHECKSUM_SIZE:], seed) != checksum:
        raise BadIndex(f"the checksum of block {number} does not match")
    fits = BLOCK_HEADER.size + count * _ROW.size <= len(data)
    if stored_number != number or stored_base != base_offset or not fits or interval < 1:
        raise BadIndex(f"block {number} is marked as block {stored_number} of segment {stored_base}")
    return count, interval, covered


class Block:
    """One block that passed its checks."""

    __slots__ = ("covered_size", "entries", "entry_count", "interval")

    def __init__(self, data: bytearray, *, number: int, seed: int, base_offset: int) -> None:
        self.entry_count, self.interval, self.covered_size = _check_block(
            memoryview(data), number=number, seed=seed, base_offset=base_offset
        )
        self.entries = IndexEntries(base_offset)
        self.entries.add_rows(np.frombuffer(data, ROW, self.entry_count, BLOCK_HEADER.size))


def scan_blocks(
    data: bytearray, *, seed: int, base_offset: int, block_size: int = BLOCK_SIZE
) -> Iterator[Block | BadIndex]:
    """Each block of a file, or what is wrong with it."""
    for number in range(-(-len(data) // block_size)):
        block = data[number * block_size : (number + 1) * block_size]
        if len(block) < block_size:
            yield BadIndex(f"the file ends inside block {number}")
            return
        try:
            yield Block(block, number=number, seed=seed, base_offset=base_offset)
        except BadIndex as error:
            yield error


class IndexFile:
    """Reads an index file block by block. Remembers how each block begins, and the last few that it decoded."""

    _REMEMBERED_COUNT_MAX = 8
    """Decoded blocks kept: a few readers, each in its own part of the segment."""

    def __init__(
        self, file: File, *, seed: int, base_offset: int, block_count: int, block_size: int = BLOCK_SIZE
    ) -> None:
        self._file = file
        self._block_size = block_size
        self._seed = seed
        self._base_offset = base_offset
        self._block_count = block_count
        self._remembered: dict[int, Block] = {}
        self._beginnings: tuple[array[int], array[int]] | None = None

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def file(self) -> File:
        return self._file

    def close(self) -> None:
        self._file.close()

    def _read(self, position: int, size: int) -> bytearray | None:
        if not self._file.hold():
            raise BadIndex("the index file was closed")
        try:
            return read_exactly(self._file, position, size)
        finally:
            self._file.release()

    @property
    def block_count(self) -> int:
        return self._block_count

    def check_complete(self, covered_size: int) -> None:
        """Raise ``BadIndex`` unless the last block says that the index covers the whole log."""
        if self._block_count < 1 or self.block(self._block_count - 1).covered_size != covered_size:
            raise BadIndex(f"the index does not cover the {covered_size} bytes of its log")

    def block(self, number: int) -> Block:
        """Read and check one block."""
        block = self._remembered.get(number)
        if block is None:
            data = self._read(number * self._block_size, self._block_size)
            if data is None:
                raise BadIndex(f"the file ends before block {number}")
            block = Block(data, number=number, seed=self._seed, base_offset=self._base_offset)
            if len(self._remembered) >= self._REMEMBERED_COUNT_MAX:
                self._remembered = {}
            self._remembered[number] = block
        return block

    def at_offset(self, offset: int) -> IndexEntry | None:
        """The last entry at or before ``offset``."""
        number = bisect_right(self._begin()[0], offset - self._base_offset) - 1
        return self._last_found(number, lambda block: block.entries.at_offset(offset))

    def before_time(self, timestamp: int) -> IndexEntry | None:
        """The last entry that is older than ``timestamp``."""
        number = bisect_left(self._begin()[1], timestamp) - 1
        return self._last_found(number, lambda block: block.entries.before_time(timestamp))

    def _last_found(self, number: int, find: "Callable[[Block], IndexEntry | None]") -> IndexEntry | None:
        """What is found in block ``number`` or, if nothing, in one before it."""
        while number >= 0:
            entry = find(self.block(number))
            if entry is not None:
                return entry
            number -= 1
        return None

    def _begin(self) -> tuple["array[int]", "array[int]"]:
        """Relative offset and time of the first entry of each block. The first look at them checks all blocks."""
        if self._beginnings is None:
            data = self._read(0, self._block_count * self._block_size)
            if data is None:
                raise BadIndex(f"the file ends before block {self._block_count - 1}")
            offsets, times = array("I"), array("Q")
            for number in range(self._block_count):
                block = memoryview(data)[number * self._block_size : (number + 1) * self._block_size]
                count, _, _ = _check_block(block, number=number, seed=self._seed, base_offset=self._base_offset)
                # Only the block that closes an index may be empty.
                if count:
                    offset, _, _, _, timestamp = _ROW.unpack_from(block, BLOCK_HEADER.size)
                    offsets.append(offset)
                    times.append(timestamp)
            self._beginnings = offsets, times
        return self._beginnings

    def load(self) -> IndexEntries:
        """All entries, every block checked."""
        entries = IndexEntries(self._base_offset)
        data = self._read(0, self._block_count * self._block_size)
        if data is None:
            raise BadIndex(f"the file ends before block {self._block_count - 1}")
        for block in scan_blocks(data, seed=self._seed, base_offset=self._base_offset, block_size=self._block_size):
            if isinstance(block, BadIndex):
                raise block
            entries.add_rows(block.entries.rows(0, block.entry_count))
        return entries
