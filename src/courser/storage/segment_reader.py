"""Reads within a segment: find the position of an offset, and continue after damage.

``batch_loader`` takes the messages from there. A batch is hashed each time it is read whole, and when a part of it is
read for the first time. After that, reads of a part of a large batch use the index and load only the frames they need.
Only the first and last batch of a read may need trimming. A size limit alone does not cut a large batch after others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from courser.records.compression import CodecMissing
from courser.records.encryption import KeyMissing
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE
from courser.records.stored_header import BadBatch, PartitionIdentity, StoredHeader
from courser.storage.batch_loader import BatchDecoder, BatchLoader, Cursor, iterate_headers
from courser.storage.files import File
from courser.storage.index_entries import IndexEntry
from courser.storage.index_file import BadIndex
from courser.storage.ledger import DamagedRange
from courser.storage.read_result import Collector, MemoryNeeded, ReadBuffer, SkipReason
from courser.storage.scan import find_batch
from courser.storage.segment import Segment, SegmentKey
from courser.storage.segment_index import SegmentIndex
from courser.storage.settings import LogSettings

_NO_KEY = (-1, -1)
_NO_ENTRY = (_NO_KEY, -1, None)
_NO_END = (_NO_KEY, 0, (0, 0))


@dataclass(slots=True)
class ReadCounters:
    """Counters of a partition's reads."""

    size: int = 0
    """Bytes read from files."""
    index_lookup_count: int = 0
    index_rebuild_count: int = 0
    checksum_failure_count: int = 0


class SegmentFiles(Protocol):
    """The files of segments, on this disk or in an archive."""

    def take(self, segment: Segment) -> File:
        """Give the log of a segment, held. The reader releases it after each read."""

    def prepare_index(self, segment: Segment) -> None:
        """Make the index of a segment usable, before the first lookup in it."""

    def rebuild_index(self, segment: Segment) -> None:
        """Make a wrong index again, from the log."""


class SegmentReader:
    """Reads the segments of one partition. Can be called from several threads, which share only hints and counters."""

    def __init__(self, identity: PartitionIdentity, files: SegmentFiles, settings: LogSettings) -> None:
        self._identity = identity
        self._files = files
        self._interval = settings.index_interval
        self._limits = settings.limits
        self._decoder = BatchDecoder(settings.keys, settings.limits)
        self._verified: dict[tuple[SegmentKey, int], StoredHeader] = {}
        self._ends: dict[int, tuple[SegmentKey, int, tuple[int, int]]] = {}
        """Where recent reads ended, by offset: segment and position of the next batch, and its unchecked size and
        message count."""
        self._latest_entry: tuple[SegmentKey, int, IndexEntry | None] = _NO_ENTRY
        """Segment, offset and result of the last lookup: a read inside a batch needs it twice."""
        self.counters = ReadCounters()

    def read(
        self, segment: Segment, offset: int, end_offset: int, collector: Collector, buffer: ReadBuffer, wait: bool
    ) -> int:
        """Collect messages from ``offset`` up to ``end_offset``. Returns the offset after the last one.

        With ``wait=False``, raises ``BlockingIOError`` if it must wait for the disk or decodes for long, and
        ``LargeRead`` if it reads a lot. Raises ``MemoryNeeded`` if the buffer may not have enough for the first message
        or its batch, and ``KeyMissing`` or ``CodecMissing`` if that cannot be decoded.
        """
        file = segment.file
        if file is None or not file.hold():
            file = self._files.take(segment)
        try:
            limit, inline_size = segment.size, self._limits.inline_size
            loader = BatchLoader(file, self._identity, limit, buffer, self._decoder, wait, inline_size)
            key, position, (claimed_size, claimed_count) = self._ends.get(offset, _NO_END)
            anchor = offset
            if offset == segment.base_offset:
                position = 0
            elif key != segment.key:
                position, anchor = self._position_of(segment, offset, wait=wait)
            elif claimed_count == collector.count_left and claimed_size <= collector.size_left:
                # Exactly the requested batch, and the next header, so that the next read can do the same.
                loader.expected_size = claimed_size + BATCH_HEADER_SIZE
            cursor = Cursor(segment, position, anchor, offset, end_offset, collector)
            while cursor.position < limit and cursor.offset < end_offset and not collector.is_full:
                try:
                    if self._verified and self._wants_part(cursor):
                        self._read_inside(loader, cursor, wait=wait)
                    elif not loader.take_run(cursor, self._limits.large_batch_size) and not collector.is_full:
                        self._read_one(loader, cursor)
                except (BadBatch, KeyMissing, CodecMissing, MemoryNeeded) as error:
                    if collector.message_count:
                        break  # What can be read is returned first. The next read begins here, and reports it.
                    self._pass_damage(error, file, cursor, limit, wait=wait)
            offset, position = cursor.offset, cursor.position
            if position >= limit and not collector.message_count:
                offset = _skip_lost(collector, offset, min(end_offset, segment.end_offset))
            self.counters.size += loader.size_read
            if len(self._ends) >= self._limits.cursor_count_max:
                self._ends = {}
            self._ends[offset] = segment.key, position, loader.next_claims
            return offset
        finally:
            file.release()

    def _wants_part(self, cursor: Cursor) -> bool:
        """Whether only a part of a verified large batch is requested. Whole batches are hashed every time."""
        batch = self._verified.get((cursor.segment.key, cursor.position))
        return batch is not None and (
            cursor.offset > batch.base_offset
            or cursor.collector.count_left < batch.message_count
            or cursor.collector.size_left < batch.stored_length
        )

    def headers_from(self, segment: Segment, offset: int) -> Iterator[StoredHeader]:
        """The headers of the batches from the one that holds ``offset`` on, or from one before it."""
        return self._headers(segment, self._position_of(segment, offset, wait=True)[0], wait=True)

    def _headers(self, segment: Segment, position: int, *, wait: bool) -> Iterator[StoredHeader]:
        file, window_size = self._files.take(segment), self._limits.scan_window_size
        try:
            yield from iterate_headers(file, self._identity, segment, position, window_size=window_size, wait=wait)
        finally:
            file.release()

    def _position_of(self, segment: Segment, offset: int, *, wait: bool) -> tuple[int, int]:
        """The position of the batch with ``offset`` or of an earlier one, and its *anchor*: an offset that it contains.

        This uses the index, except for the first batch. The ends of recent reads are in ``_ends``.
        """
        if offset == segment.base_offset:
            return 0, offset
        entry = self._entry_at(segment, offset, wait=wait)
        return (entry.batch_position, entry.offset) if entry is not None else (0, segment.base_offset)

    def _read_one(self, loader: BatchLoader, cursor: Cursor) -> None:
        """Take what ``take_run`` cannot take from the batch at the cursor: a part of it, or more than was loaded."""
        position = cursor.position
        header = loader.take_batch(cursor)
        if header is not None and header.stored_length >= self._limits.large_batch_size:
            # The rest of it will be requested next, perhaps many times.
            self._remember_verified(cursor.segment.key, position, header)

    def _read_inside(self, loader: BatchLoader, cursor: Cursor, *, wait: bool) -> None:
        """Take the requested frames from a verified large batch, with the help of the index."""
        segment = cursor.segment
        entry = self._entry_at(segment, cursor.offset, wait=wait)
        start, first_offset = cursor.position + BATCH_HEADER_SIZE, None
        if entry is not None and entry.batch_position == cursor.position:
            start, first_offset = entry.frame_position, entry.offset
        collector = cursor.collector
        wanted = min(collector.size_left, collector.count_left * segment.average_message_size)
        size = max(wanted, 0) + self._interval + FRAME_HEADER_SIZE
        if not loader.take_frames(cursor, start, first_offset, size, self._interval):
            # If log and index disagree, the index is wrong.
            self._forget_verified(segment.key, cursor.position)
            self._replace_index(segment, wait=wait)

    def _pass_damage(self, error: Exception, file: File, cursor: Cursor, limit: int, *, wait: bool) -> None:
        """Skip to the next good batch after a bad one, and remember the damaged range. Raises any other error."""
        if not isinstance(error, BadBatch):
            raise error
        segment, position, anchor = cursor.segment, cursor.position, cursor.anchor
        known = next((damage for damage in segment.damages if damage.position == position), None)
        if known is None:
            if not wait:
                raise BlockingIOError
            self.counters.checksum_failure_count += 1
            # Not from the requested offset on: the bad batch may be an earlier one.
            window_size = self._limits.scan_window_size
            found = find_batch(file, self._identity, start=position, end=limit, offset=anchor, window_size=window_size)
            next_position, next_offset = (
                (limit, segment.end_offset) if found is None else (found[0], found[1].base_offset)
            )
            known = DamagedRange(segment.base_offset, position, next_position, anchor, next_offset)
            segment.note_damage(known)
        end_offset = max(known.end_offset, cursor.offset)
        cursor.collector.skip(cursor.offset, end_offset, SkipReason.DAMAGED)
        cursor.position, cursor.anchor, cursor.offset = known.end_position, known.end_offset, end_offset

    # --- the index ---

    def offset_at_time(self, segment: Segment, timestamp: int, *, wait: bool) -> int:
        """The first offset in the segment whose batch is not older, or the segment's end."""
        self.counters.index_lookup_count += 1
        entry = self._look_up(segment, lambda index: index.before_time(timestamp), wait=wait)
        position = entry.batch_position if entry is not None else 0
        for header in self._headers(segment, position, wait=wait):
            if header.base_timestamp >= timestamp:
                return header.base_offset
        return segment.end_offset

    def offset_of_last(self, segment: Segment, count: int) -> int:
        """The offset of the first of the newest ``count`` messages of a segment from which messages were removed."""
        before = segment.message_count - count
        for header in self._headers(segment, 0, wait=True):
            if before < header.message_count:
                return header.base_offset + before
            before -= header.message_count
        return segment.end_offset

    def time_at(self, segment: Segment, offset: int, *, wait: bool) -> int:
        """The time of the batch with ``offset``, or of the next one in the segment, as it is stored."""
        position = self._position_of(segment, offset, wait=wait)[0]
        for header in self._headers(segment, position, wait=wait):
            if header.base_offset + header.message_count > offset:
                return header.base_timestamp
        return segment.last_timestamp

    def _entry_at(self, segment: Segment, offset: int, *, wait: bool) -> IndexEntry | None:
        key, latest_offset, entry = self._latest_entry
        if (key, latest_offset) == (segment.key, offset):
            return entry
        self.counters.index_lookup_count += 1
        entry = self._look_up(segment, lambda index: index.at_offset(offset), wait=wait)
        self._latest_entry = segment.key, offset, entry
        return entry

    def _look_up(self, segment: Segment, find: "Callable[[SegmentIndex], _Found]", *, wait: bool) -> "_Found":
        if not segment.is_index_ready:
            if not wait:
                raise BlockingIOError
            self._files.prepare_index(segment)
        index = segment.index
        try:
            return find(index)
        except (BadIndex, OSError):
            # Not if another reader was faster.
            if segment.index is index:
                self._replace_index(segment, wait=wait)
            return find(segment.index)

    def _replace_index(self, segment: Segment, *, wait: bool) -> None:
        """Stop using a wrong index at once, and rebuild it."""
        if not wait:
            raise BlockingIOError
        self.counters.index_rebuild_count += 1
        self._latest_entry = _NO_ENTRY
        self._files.rebuild_index(segment)

    # --- hints ---

    def _remember_verified(self, key: SegmentKey, position: int, header: StoredHeader) -> None:
        if len(self._verified) >= self._limits.verified_count_max:
            self._verified = {}
        self._verified[key, position] = header

    def _forget_verified(self, key: SegmentKey, position: int) -> None:
        self._verified.pop((key, position), None)


_Found = TypeVar("_Found")


def _skip_lost(collector: Collector, offset: int, end_offset: int) -> int:
    """Skip the rest of a segment whose file is shorter than it was. Returns where to go on."""
    collector.skip(offset, end_offset, SkipReason.LOST)
    return max(offset, end_offset)
