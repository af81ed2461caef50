"""Statistics of one segment from its batch headers, reading as few payloads as possible.

If all messages of a batch have the same size, its header says so. Otherwise the sizes are in the frames. If messages
are large, only the frame headers are read; if they are small, the whole batch, because all its pages would be touched
anyway.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from courser.errors import InvalidBatch
from courser.records import layout
from courser.records.frames import survey_frames
from courser.records.stored_header import BadBatch, PartitionIdentity, StoredHeader, read_header
from courser.storage.files import File, read_exactly

HOUR = 3_600_000_000
"""Microseconds of the intervals for which volume is counted."""
_LARGE_MESSAGE_SIZE = 16 * 1024
"""Average message size from which frame headers are read one by one: they are then four pages apart."""


@dataclass(slots=True)
class SegmentFigures:
    """The statistics. Those of several segments can be added."""

    message_count: int = 0
    batch_count: int = 0
    size: int = 0
    """Bytes of the log, headers included."""
    message_size: int = 0
    """Bytes of payloads and user headers."""
    read_size: int = 0
    """Bytes that were read to collect them."""
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    size_counts: Counter[int] = field(default_factory=Counter)
    """Number of messages by the bits of their size: 11 bits are 1024 to 2047 bytes."""
    hours: Counter[int] = field(default_factory=Counter)
    """Bytes of the log by hour of arrival, counted since 1970."""
    hour_counts: Counter[int] = field(default_factory=Counter)
    """The same for messages."""
    damaged_count: int = 0
    """Segments that could not be read to their end."""

    def add(self, other: "SegmentFigures") -> None:
        """Add other statistics to these."""
        self.message_count += other.message_count
        self.batch_count += other.batch_count
        self.size += other.size
        self.message_size += other.message_size
        self.read_size += other.read_size
        self.damaged_count += other.damaged_count
        self.size_counts.update(other.size_counts)
        self.hours.update(other.hours)
        self.hour_counts.update(other.hour_counts)
        firsts = [time for time in (self.first_timestamp, other.first_timestamp) if time is not None]
        lasts = [time for time in (self.last_timestamp, other.last_timestamp) if time is not None]
        self.first_timestamp = min(firsts, default=None)
        self.last_timestamp = max(lasts, default=None)

    def rate_since(self, now: int, hour_count: int) -> tuple[float, float]:
        """Bytes and messages per second in the ``hour_count`` hours before ``now`` (microseconds)."""
        first = (now - hour_count * HOUR) // HOUR
        # Hours are counted as a whole, so the first and last are partial. Time before the log began does not count.
        begin = max(first * HOUR, self.first_timestamp if self.first_timestamp is not None else now)
        seconds = max((now - begin) / 1e6, 1.0)
        size = sum(size for hour, size in self.hours.items() if hour >= first)
        count = sum(count for hour, count in self.hour_counts.items() if hour >= first)
        return size / seconds, count / seconds


def figures_of(file: File, identity: PartitionIdentity) -> SegmentFigures:
    """Scan the headers of a segment up to the first invalid batch."""
    figures = SegmentFigures()
    position, end = 0, file.size()
    while position + layout.BATCH_HEADER_SIZE <= end:
        data = read_exactly(file, position, layout.BATCH_HEADER_SIZE)
        if data is None:
            # The server truncated the file meanwhile; only preallocated space is gone.
            break
        figures.read_size += len(data)
        try:
            header = read_header(memoryview(data), 0, identity)
            sizes = _message_sizes(file, position, header, figures)
        except (BadBatch, InvalidBatch):
            # Zeros are preallocated space. For anything else, an audit tells what is wrong.
            figures.damaged_count = 1 if any(data) else 0
            break
        _count(figures, header, sizes)
        position += header.stored_length
    return figures


def _count(figures: SegmentFigures, header: StoredHeader, sizes: NDArray[np.int64]) -> None:
    hour = header.base_timestamp // HOUR
    figures.message_count += header.message_count
    figures.batch_count += 1
    figures.size += header.stored_length
    figures.message_size += int(sizes.sum()) * (header.message_count if len(sizes) == 1 else 1)
    figures.hours[hour] += header.stored_length
    figures.hour_counts[hour] += header.message_count
    if figures.first_timestamp is None:
        figures.first_timestamp = header.base_timestamp
    figures.last_timestamp = header.base_timestamp
    # frexp returns the number of bits of an integer, exactly below 2**53.
    bits, counts = np.unique(np.frexp(sizes.astype(np.float64))[1], return_counts=True)
    if len(sizes) == 1:
        counts = counts * header.message_count
    figures.size_counts.update(dict(zip(bits.tolist(), counts.tolist(), strict=True)))


def _message_sizes(file: File, position: int, header: StoredHeader, figures: SegmentFigures) -> NDArray[np.int64]:
    """Bytes of payload and user headers of each message; a single number if all are equal, or cannot be told apart."""
    if header.flags:
        # Not decoded for this: the average is good enough.
        size = header.frame_size or (header.batch_length - layout.BATCH_HEADER_SIZE) // header.message_count
        return np.array([size - layout.FRAME_HEADER_SIZE], np.int64)
    if header.frame_size or header.message_count == 1:
        size = header.frame_size or header.stored_length - layout.BATCH_HEADER_SIZE
        return np.array([size - layout.FRAME_HEADER_SIZE], np.int64)
    body_size = header.stored_length - layout.BATCH_HEADER_SIZE
    if body_size // header.message_count >= _LARGE_MESSAGE_SIZE:
        sizes = _sizes_by_header(file, position + layout.BATCH_HEADER_SIZE, header.message_count)
        figures.read_size += layout.FRAME_HEADER_SIZE * header.message_count
        return sizes
    body = read_exactly(file, position + layout.BATCH_HEADER_SIZE, body_size)
    if body is None:
        raise BadBatch("the file ends inside the batch")
    figures.read_size += body_size
    starts = survey_frames(memoryview(body), header.message_count)[0].starts
    return np.diff(starts, append=body_size) - layout.FRAME_HEADER_SIZE


def _sizes_by_header(file: File, position: int, count: int) -> NDArray[np.int64]:
    sizes = []
    for _ in range(count):
        data = read_exactly(file, position, layout.FRAME_HEADER_SIZE)
        if data is None:
            raise BadBatch("the file ends inside the batch")
        size = sum(layout.FRAME_LENGTHS.unpack_from(data, layout.FRAME_LENGTHS_POSITION))
        sizes.append(size)
        position += layout.FRAME_HEADER_SIZE + size
    return np.array(sizes, np.int64)
