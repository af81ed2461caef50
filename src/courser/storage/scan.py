"""Scan a log file, and classify every byte: good batches, damage, or zeros at the end.

Recovery, index rebuilds and the offline tools use it. Polls use it only to find the next good batch after damage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from courser.records import layout
from courser.records.frames import FrameLayout
from courser.records.stored_header import (
    BadBatch,
    PartitionIdentity,
    StoredHeader,
    check_body,
    read_header,
    stored_frames,
)
from courser.storage.files import File, read_into
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.settings import DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class GoodBatch:
    """A batch with correct header and body hashes and the expected offset."""

    position: int
    header: StoredHeader
    stored: memoryview
    """Header and body, as stored. Valid until the next step of the scan."""
    frames: FrameLayout
    """As the index sees them: an encoded body is one block."""

    @property
    def body(self) -> memoryview:
        return self.stored[layout.BATCH_HEADER_SIZE :]

    @property
    def end_position(self) -> int:
        """The position of the next batch."""
        return self.position + self.header.stored_length


@dataclass(frozen=True, slots=True)
class BadRange:
    """Bytes that are not a good batch."""

    position: int
    end_position: int
    """The position of the next good batch, or the end of the file."""
    reason: str
    first_offset: int
    """The offset that was expected here."""
    end_offset: int | None
    """The offset of the next good batch; None if no good batch follows."""

    def damage(self, base_offset: int, end_offset: int) -> DamagedRange:
        """As damage of a segment. ``end_offset``: where the segment ends, which counts if no good batch follows."""
        end = end_offset if self.end_offset is None else self.end_offset
        return DamagedRange(base_offset, self.position, self.end_position, self.first_offset, end)


@dataclass(frozen=True, slots=True)
class ZeroTail:
    """Zeros up to the end of the file: preallocated space, or a write that never reached the disk."""

    position: int
    end_position: int
    first_offset: int
    """The offset that was expected here."""

    def damage(self, base_offset: int, end_offset: int) -> DamagedRange:
        """As damage of a segment that ends with ``end_offset``."""
        return DamagedRange(base_offset, self.position, self.end_position, self.first_offset, end_offset)


class _Window:
    """A part of the file in memory."""

    def __init__(self, file: File, end: int, size: int) -> None:
        self._file = file
        self._end = end
        self._buffer = memoryview(bytearray(min(size, max(end, 1))))
        self._position = 0
        self._filled = 0

    def view(self, position: int, size: int) -> memoryview:
        """The bytes at ``position``: fewer than ``size`` only at the end of the file."""
        size = min(size, self._end - position)
        start = position - self._position
        if start < 0 or start + size > self._filled:
            if size > len(self._buffer):
                self._buffer = memoryview(bytearray(size))
            wanted = min(len(self._buffer), self._end - position)
            self._filled = read_into(self._file, position, self._buffer[:wanted])
            self._position = position
            start = 0
        return self._buffer[start : min(start + size, self._filled)]

    def ahead(self, position: int) -> memoryview:
        """What is in memory from ``position`` on: at least the size of a header, unless the file ends before."""
        self.view(position, layout.BATCH_HEADER_SIZE)
        return self._buffer[position - self._position : self._filled]


def scan(
    file: File,
    identity: PartitionIdentity,
    *,
    start: int,
    end: int,
    offset: int,
    window_size: int = DEFAULT_LIMITS.scan_window_size,
) -> Iterator[GoodBatch | BadRange | ZeroTail]:
    """Scan from ``start``, where the batch with base ``offset`` is expected, to ``end``.

    Offsets are consecutive, except after a bad range and where a batch says that messages before it were removed. The
    last item may be a ``BadRange`` without an ``end_offset``, or a ``ZeroTail``. Reads ``window_size`` bytes at a time.
    """
    window = _Window(file, end, window_size)
    position = start
    while position < end:
        try:
            batch = _batch_at(window, identity, position, end)
            if batch.header.previous_end_offset != offset:
                found = batch.header.previous_end_offset
                raise BadBatch(f"the batch starts at offset {found} instead of {offset}")
        except BadBatch as error:
            if _is_zero_to_the_end(window, position, end):
                yield ZeroTail(position, end, offset)
                return
            next_good = _find_batch(window, identity, position, end, offset)
            if next_good is None:
                yield BadRange(position, end, str(error), offset, None)
                return
            yield BadRange(position, next_good.position, str(error), offset, next_good.header.base_offset)
            position, offset = next_good.position, next_good.header.previous_end_offset
            continue
        yield batch
        position, offset = batch.end_position, batch.header.end_offset


def facts_of_file(
    file: File,
    identity: PartitionIdentity,
    base_offset: int,
    window_size: int = DEFAULT_LIMITS.scan_window_size,
) -> SegmentFacts | None:
    """The facts about a segment, from its file alone; None unless all of it is good batches, and there is one."""
    end_offset, end = base_offset, file.size()
    first_timestamp = last_timestamp = message_count = batch_count = 0
    for found in scan(file, identity, start=0, end=end, offset=base_offset, window_size=window_size):
        if not isinstance(found, GoodBatch):
            return None
        header = found.header
        end_offset, last_timestamp = header.end_offset, header.base_timestamp
        first_timestamp = first_timestamp if batch_count else header.base_timestamp
        message_count += header.message_count
        batch_count += 1
    if not batch_count:
        return None
    return SegmentFacts(base_offset, end_offset, end, first_timestamp, last_timestamp, message_count, batch_count)


def find_batch(
    file: File,
    identity: PartitionIdentity,
    *,
    start: int,
    end: int,
    offset: int,
    window_size: int = DEFAULT_LIMITS.scan_window_size,
) -> tuple[int, StoredHeader] | None:
    """The first good batch after a bad one at ``start`` whose offsets are not below ``offset``."""
    found = _find_batch(_Window(file, end, window_size), identity, start, end, offset)
    return None if found is None else (found.position, found.header)


def _batch_at(window: _Window, identity: PartitionIdentity, position: int, end: int) -> GoodBatch:
    view = window.view(position, layout.BATCH_HEADER_SIZE)
    if len(view) < layout.BATCH_HEADER_SIZE:
        raise BadBatch(f"{len(view)} bytes are too few for a batch header")
    header = read_header(view, 0, identity)
    if position + header.stored_length > end:
        raise BadBatch(f"the batch of {header.stored_length} bytes extends beyond the end of the file")
    whole = window.view(position, header.stored_length)
    if len(whole) < header.stored_length:
        raise BadBatch("the file ends inside the batch")
    body = whole[layout.BATCH_HEADER_SIZE :]
    check_body(header, body)
    return GoodBatch(position, header, whole, stored_frames(header, body))


def _find_batch(window: _Window, identity: PartitionIdentity, position: int, end: int, offset: int) -> GoodBatch | None:
    """Search after ``position`` for the magic of a header of a good batch.

    A payload may contain a copy of a stored batch, so the offset must not be lower than expected.
    """
    search = position + 1
    while search + layout.BATCH_HEADER_SIZE <= end:
        ahead = window.ahead(search)
        found = bytes(ahead).find(layout.MAGIC, layout.MAGIC_POSITION)
        if found < 0:
            # The magic may cross the end of the window, so the windows overlap by less than a header.
            step = len(ahead) - layout.BATCH_HEADER_SIZE + 1
            if step <= 0:
                return None
            search += step
            continue
        candidate = search + found - layout.MAGIC_POSITION
        try:
            batch = _batch_at(window, identity, candidate, end)
            if batch.header.base_offset >= offset:
                return batch
        except BadBatch:
            pass
        search = candidate + 1
    return None


def _is_zero_to_the_end(window: _Window, position: int, end: int) -> bool:
    while position < end:
        ahead = window.ahead(position)
        if not len(ahead):
            return True
        if np.frombuffer(ahead, np.uint8).any():
            return False
        position += len(ahead)
    return True
