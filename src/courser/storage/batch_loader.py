"""Batches of a log file, each loaded whole and checked, several per call to the file where they are small."""

import struct
from collections.abc import Callable

from courser.records.checksum import xxh3
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_header import BadBatch, PartitionIdentity, StoredHeader, read_header
from courser.storage.files import File, read_into
from courser.storage.read_result import ReadBuffer

_unpack_claims: Callable[[memoryview, int], tuple[int, int]] = struct.Struct("<32xQ8xI").unpack_from
"""batch_length and message_count of the header at a position."""
_NO_CLAIMS = (0, 0)


class BatchLoader:
    """Serves one read of one segment. Its blocks live in the reader's buffer."""

    # As they are in the beginning; one of these is made per read.
    _block = memoryview(b"")
    _position = 0
    size_read = 0
    expected_size = 0
    """Bytes that the reader knows it will need, if it does."""

    def __init__(self, file: File, identity: PartitionIdentity, limit: int, buffer: ReadBuffer, wait: bool) -> None:
        self._file = file
        self._identity = identity
        self._limit = limit
        self._buffer = buffer
        self._wait = wait

    def load(self, position: int, guess: int) -> tuple[StoredHeader, memoryview, int]:
        """The batch at ``position``: its header, the block that holds it, and where in the block it begins.

        ``guess`` is how many bytes the reader expects to need from here on.

        Raises:
            BadBatch: what lies there fails a check.
        """
        block, at = self.block_at(position, guess)
        header = read_header(block, at, self._identity)
        end = at + header.stored_length
        if end > len(block):
            at, block = 0, self._fetch_rest(position, at, header.stored_length)
            end = header.stored_length
        if xxh3(block[at + BATCH_HEADER_SIZE : end]) != header.body_hash:
            raise BadBatch("the body hash does not match")
        return header, block, at

    def block_at(self, position: int, guess: int) -> tuple[memoryview, int]:
        """A block that holds at least the header of the batch at ``position``, and where in the block it begins.

        Raises:
            BadBatch: the file ends there.
        """
        at = position - self._position
        if 0 <= at <= len(self._block) - BATCH_HEADER_SIZE:
            return self._block, at
        return self._fetch(position, guess), 0

    def claims_at(self, position: int) -> tuple[int, int]:
        """The size and the number of messages that a header at ``position`` claims, unchecked; 0 if it is not there."""
        at = position - self._position
        if 0 <= at <= len(self._block) - BATCH_HEADER_SIZE:
            return _unpack_claims(self._block, at)
        return _NO_CLAIMS

    def load_part(self, header_position: int, start: int, end: int) -> tuple[StoredHeader, memoryview]:
        """The header of a batch that was checked before, with the bytes ``start`` to ``end`` of the log behind it."""
        block = self._buffer.take(BATCH_HEADER_SIZE + end - start)
        self._read(header_position, block[:BATCH_HEADER_SIZE])
        header = read_header(block, 0, self._identity)
        self._read(start, block[BATCH_HEADER_SIZE:])
        return header, block

    def _fetch(self, position: int, guess: int) -> memoryview:
        left = self._limit - position
        if left < BATCH_HEADER_SIZE:
            raise BadBatch(f"{left} bytes are less than a batch header")
        size = guess if BATCH_HEADER_SIZE <= guess <= left else min(max(guess, BATCH_HEADER_SIZE), left)
        block = self._buffer.take(size)
        filled = self._file.read_at(position, block, wait=self._wait)
        if filled < size:
            filled += read_into(self._file, position + filled, block[filled:], wait=self._wait) if filled else 0
            if filled < BATCH_HEADER_SIZE:
                raise BadBatch("the file ends before the log should")
            # The batches that are there are good all the same.
            block = block[:filled]
        self.size_read += filled
        self._block, self._position = block, position
        return block

    def _fetch_rest(self, position: int, at: int, size: int) -> memoryview:
        """Have the whole batch at ``position``, of which the block holds only the beginning, at ``at``."""
        if position + size > self._limit:
            raise BadBatch(f"the batch of {size} bytes reaches beyond the end of the log")
        if at:
            block = self._fetch(position, size)
        else:
            have = len(self._block)
            block = self._block = self._buffer.extend(self._block, size)
            self._read(position + have, block[have:])
        if len(block) < size:
            raise BadBatch("the file ends inside the batch")
        return block

    def _read(self, position: int, buffer: memoryview) -> None:
        if read_into(self._file, position, buffer, wait=self._wait) < len(buffer):
            raise BadBatch("the file ends before the log should")
        self.size_read += len(buffer)
