"""The result of a read: buffers with batches, and the offsets that were skipped."""

import sys
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from courser.storage.settings import DEFAULT_LIMITS


class SkipReason(Enum):
    """Why requested offsets are not in the result."""

    TRIMMED = "trimmed"
    """Deleted by retention or by a purge."""
    RESERVED = "reserved"
    """Never used: after a power cut, numbering continued above them."""
    LOST = "lost"
    """Their file is missing or was truncated."""
    DAMAGED = "damaged"
    """The bytes on disk fail their checksum."""


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Offsets that a read skipped, up to but not including ``end_offset``."""

    first_offset: int
    end_offset: int
    reason: SkipReason


class ReadResult(NamedTuple):
    """Batches in wire form, ready to be sent."""

    pieces: tuple[memoryview, ...]
    """Whole batch records, in order."""
    first_offset: int
    """The offset of the first message; equal to ``next_offset`` if there is none."""
    next_offset: int
    """Where the next read should start."""
    message_count: int
    size: int
    skipped: tuple[SkippedRange, ...]
    """Ranges before the first message, and reserved offsets anywhere."""


_new_tuple = tuple.__new__
"""Creates a ``ReadResult`` faster than its constructor."""


class LargeRead(BlockingIOError):
    """A read that takes too long for the owner's thread, even if it does not wait for the disk."""


class MemoryNeeded(Exception):
    """A read needs more memory than its buffer may have: a message, or the batch that it is in, is large."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a read needs {size} bytes at once")
        self.size = size


class ReadBuffer:
    """Memory for reads, which can be reused once the last result was sent. For one reader at a time."""

    __slots__ = ("_block", "capacity", "piece_size_max", "used")

    def __init__(self, size: int = DEFAULT_LIMITS.read_buffer_size) -> None:
        self._block = np.empty(size, np.uint8).data
        self.used = 0
        """Bytes with results. Whoever sets it to 0 forgets them: their pieces will be overwritten."""
        self.capacity = size
        """Bytes of memory."""
        self.piece_size_max = sys.maxsize
        """Bytes that may be taken at once. Whoever counts memory sets it before each read."""

    def check(self, size: int) -> None:
        """Raise ``MemoryNeeded`` if so many bytes may not be taken at once."""
        if size > self.piece_size_max:
            raise MemoryNeeded(size)

    def take(self, size: int) -> memoryview:
        """``size`` bytes with arbitrary contents. Raises ``MemoryNeeded`` if they are more than the limit."""
        if size > self.piece_size_max:
            raise MemoryNeeded(size)
        if self.used + size > self.capacity:
            self._grow(size)
        piece = self._block[self.used : self.used + size]
        self.used += size
        return piece

    def _grow(self, size: int) -> None:
        # Not a bytearray, which would be zeroed first. Earlier pieces keep their own block alive.
        self._block = np.empty(max(size, 2 * self.capacity), np.uint8).data
        self.capacity = len(self._block)
        self.used = 0

    def extend(self, piece: memoryview, size: int) -> memoryview:
        """Extend the last piece taken to ``size`` bytes. Raises ``MemoryNeeded`` if they are more than the limit."""
        self.check(size)
        start = self.used - len(piece)
        if start + size <= self.capacity:
            self.used = start + size
            return self._block[start : start + size]
        larger = self.take(size)
        # numpy lets other threads run meanwhile; an assignment of memory views does not.
        np.copyto(np.frombuffer(larger, np.uint8, len(piece)), np.frombuffer(piece, np.uint8))
        return larger


class LeasedBuffer(ReadBuffer):
    """A buffer that knows how large it is, and who needs it. A reply that was copied has one of no bytes."""

    __slots__ = ("is_dropped", "leased_size", "user_count")

    def __init__(self, size: int = DEFAULT_LIMITS.read_buffer_size) -> None:
        super().__init__(size)
        self.leased_size = 0
        """Bytes in the ledger."""
        self.user_count = 1
        """Connections whose reply is in it, and those who hold it."""
        self.is_dropped = False
        """Whether somebody who is not counted any more may still use it: then nobody else ever does."""


class Collector:
    """Collects the batches of one read, up to its limits."""

    __slots__ = (
        "_block",
        "_end",
        "_pieces",
        "_start",
        "count_left",
        "first_offset",
        "is_full",
        "message_count",
        "size",
        "size_left",
        "skipped",
    )

    def __init__(self, count: int, size_max: int) -> None:
        self.count_left = count
        self.size_left = size_max
        """Bytes that may still be added."""
        self.is_full = count <= 0
        """Whether a limit is reached. The first message is always added, however large."""
        self.size = 0
        self.message_count = 0
        self.first_offset: int | None = None
        self.skipped: list[SkippedRange] = []
        self._pieces: list[memoryview] = []
        self._block: memoryview | None = None
        self._start = self._end = 0

    def add(self, block: memoryview, start: int, end: int, first_offset: int, message_count: int) -> None:
        """Add the batch record at ``block[start:end]``. Adjacent records become one piece."""
        if self.first_offset is None:
            self.first_offset = first_offset
        self.message_count += message_count
        self.count_left -= message_count
        self.size += end - start
        self.size_left -= end - start
        self.is_full = self.count_left <= 0 or self.size_left <= 0
        if block is self._block and start == self._end:
            self._end = end
            return
        if self._block is not None:
            self._pieces.append(self._block[self._start : self._end])
        self._block, self._start, self._end = block, start, end

    def skip(self, first_offset: int, end_offset: int, reason: SkipReason) -> None:
        """Note offsets that are not available."""
        if end_offset > first_offset:
            self.skipped.append(SkippedRange(first_offset, end_offset, reason))

    def result(self, next_offset: int) -> ReadResult:
        """Everything that was collected."""
        pieces = self._pieces
        if self._block is not None:
            pieces.append(self._block[self._start : self._end])
            self._block = None
        first_offset = next_offset if self.first_offset is None else self.first_offset
        fields = (tuple(pieces), first_offset, next_offset, self.message_count, self.size, tuple(self.skipped))
        return _new_tuple(ReadResult, fields)
