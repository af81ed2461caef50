"""Reads inside a segment: from an offset to batches in wire form.

A batch is hashed each time it is read whole, and when the first part of it is read. Of a large batch that was hashed
before, a read takes only the frames that it needs, led there by the index. Only the first and the last batch of a read
may need trimming; a limit of bytes alone does not cut a large batch behind others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from courser.records.checksum import xxh3
from courser.records.frame_walk import cut_frames
from courser.records.layout import (
    BATCH_HEADER_SIZE,
    EXTENSION_POSITION,
    FRAME_HEADER_SIZE,
    FRAME_OFFSET_DELTA_POSITION,
    NO_EXTENSION,
)
from courser.records.stored_header import (
    BadBatch,
    PartitionIdentity,
    StoredHeader,
    blank_extension,
    read_header,
    trimmed_header,
)
from courser.storage.batch_loader import BatchLoader
from courser.storage.files import File, read_into
from courser.storage.index_entries import IndexEntry
from courser.storage.index_file import BadIndex
from courser.storage.ledger import DamagedRange
from courser.storage.read_result import Collector, ReadBuffer, SkipReason
from courser.storage.scan import find_batch
from courser.storage.segment import Segment
from courser.storage.settings import LogSettings

_NO_ENTRY = (-1, -1, None)
_NO_CURSOR = (-1, 0, 0, 0)


@dataclass(slots=True)
class ReadCounters:
    """What the reads of a partition have met."""

    size: int = 0
    """Bytes read from files."""
    index_lookup_count: int = 0
    index_rebuild_count: int = 0
    checksum_failure_count: int = 0


class SegmentReader:
    """Reads the segments of one partition. Calls may come from several threads: they share only hints and counters."""

    def __init__(
        self,
        identity: PartitionIdentity,
        *,
        settings: LogSettings,
        file_of: Callable[[Segment], File],
        prepare_index: Callable[[Segment], None],
        rebuild_index: Callable[[Segment], None],
    ) -> None:
        self._identity = identity
        self._interval = settings.index_interval
        self._limits = settings.limits
        self._file_of = file_of
        self._prepare_index = prepare_index
        self._rebuild_index = rebuild_index
        self._verified: dict[tuple[int, int], StoredHeader] = {}
        self._cursors: dict[int, tuple[int, int, int, int]] = {}
        """By offset: segment and position of the batch, and what its header claims of its size and its messages."""
        self._latest_entry: tuple[int, int, IndexEntry | None] = _NO_ENTRY
        """Segment, offset and what was found: a read inside a batch asks twice."""
        self.counters = ReadCounters()

    def read(
        self, segment: Segment, offset: int, end_offset: int, collector: Collector, buffer: ReadBuffer, wait: bool
    ) -> int:
        """Collect messages from ``offset`` on, below ``end_offset``; return the offset behind the last one.

        Raises:
            BlockingIOError: with ``wait=False``, if the disk has to be waited for.
        """
        limit = segment.size
        loader = BatchLoader(self._file_of(segment), self._identity, limit, buffer, wait)
        base_offset, position, claimed_size, claimed_count = self._cursors.get(offset, _NO_CURSOR)
        anchor = offset
        if base_offset != segment.base_offset:
            position, anchor = self._position_of(segment, offset, wait=wait)
        elif claimed_count == collector.count_left and claimed_size <= collector.size_left:
            # Just what is asked for, and the next header, so that the next read knows as much.
            loader.expected_size = claimed_size + BATCH_HEADER_SIZE
        while position < limit and offset < end_offset and not collector.is_full:
            try:
                if self._verified and self._wants_part(segment.base_offset, position, offset, collector):
                    position, anchor, offset = self._read_inside(
                        loader, segment, position, anchor, offset, end_offset, collector, wait=wait
                    )
                    continue
                run_end, offset = self._read_run(loader, segment, position, offset, end_offset, collector)
                if run_end > position:
                    position, anchor = run_end, offset
                elif not collector.is_full:
                    position, anchor, offset = self._read_whole(
                        loader, segment, position, anchor, offset, end_offset, collector
                    )
            except BadBatch:
                if collector.message_count:
                    # Damage is only ever met at the beginning of a read, where it can be told apart from data.
                    break
                position, anchor, offset = self._pass_damage(
                    segment, position, limit, anchor, offset, collector, wait=wait
                )
        if position >= limit and not collector.message_count:
            # The file is shorter than it was: what should follow is gone.
            end_offset = min(end_offset, segment.end_offset)
            collector.skip(offset, end_offset, SkipReason.LOST)
            offset = max(offset, end_offset)
        self.counters.size += loader.size_read
        if len(self._cursors) >= self._limits.cursor_count_max:
            self._cursors = {}
        self._cursors[offset] = segment.base_offset, position, *loader.claims_at(position)
        return offset

    def _wants_part(self, base_offset: int, position: int, offset: int, collector: Collector) -> bool:
        """Whether only a part is wanted of a large batch that was hashed before. A whole one is hashed every time."""
        batch = self._verified.get((base_offset, position))
        return batch is not None and (
            offset > batch.base_offset
            or collector.count_left < batch.message_count
            or collector.size_left < batch.stored_length
        )

    def position_of(self, segment: Segment, offset: int) -> int:
        """Where a batch begins that holds ``offset`` or lies before it."""
        return self._position_of(segment, offset, wait=True)[0]

    def _position_of(self, segment: Segment, offset: int, *, wait: bool) -> tuple[int, int]:
        """A batch at or before the one that holds ``offset``, and its *anchor*: an offset that it must hold.

        By the index; where the last read ended, the cursor has told already.
        """
        entry = self._entry_at(segment, offset, wait=wait)
        return (entry.batch_position, entry.offset) if entry is not None else (0, segment.base_offset)

    def _read_run(
        self,
        loader: BatchLoader,
        segment: Segment,
        position: int,
        offset: int,
        end_offset: int,
        collector: Collector,
    ) -> tuple[int, int]:
        """Take the batches from ``position`` on that are wanted whole, as far as one block reaches.

        The loop of sequential readers: few steps per batch, and nothing but hashes for each byte. Return the batch to
        go on with and the offset, both unchanged if the first batch is anything but what is expected. A large batch
        for which too little is left is not cut if the next read can have it whole: the collector is full then.
        """
        count_left, size_left, identity = collector.count_left, collector.size_left, self._identity
        average_size = segment.size // segment.message_count + 1 if segment.message_count else 0
        block, start = loader.block_at(position, loader.expected_size or min(size_left, count_left * average_size))
        first_offset, at, header_limit = offset, start, len(block) - BATCH_HEADER_SIZE
        is_enough = False
        try:
            while at <= header_limit and count_left > 0:
                header = read_header(block, at, identity)
                count, end = header.message_count, at + header.stored_length
                if end - start > size_left and (at > start or collector.message_count):
                    is_enough = self._limits.large_batch_size <= end - at <= collector.size + size_left
                    break
                if (
                    header.base_offset != offset
                    or end > len(block)
                    or end - start > size_left
                    or count > count_left
                    or offset + count > end_offset
                    or xxh3(block[at + BATCH_HEADER_SIZE : end]) != header.body_hash
                ):
                    break
                block[at + EXTENSION_POSITION : at + BATCH_HEADER_SIZE] = NO_EXTENSION
                at = end
                offset += count
                count_left -= count
        except BadBatch:
            # Whoever comes here next finds it at the beginning of a read, and passes over it.
            if at == start:
                raise
        if at > start:
            collector.add(block, start, at, first_offset, offset - first_offset)
        collector.is_full = collector.is_full or is_enough
        return position + at - start, offset

    def _read_whole(
        self,
        loader: BatchLoader,
        segment: Segment,
        position: int,
        anchor: int,
        offset: int,
        end_offset: int,
        collector: Collector,
    ) -> tuple[int, int, int]:
        """Take from the batch at ``position``. Return the batch to go on with, its anchor, and the offset."""
        header, block, at = loader.load(position, BATCH_HEADER_SIZE)
        size, batch_end_offset = header.stored_length, header.end_offset
        if not header.base_offset <= anchor < batch_end_offset:
            raise BadBatch(f"the batch begins at offset {header.base_offset} where {anchor} is expected")
        if batch_end_offset <= offset:
            # Led here by the index: the message lies further on.
            return position + size, batch_end_offset, offset
        if (
            header.base_offset == offset
            and batch_end_offset <= end_offset
            and header.message_count <= collector.count_left
            and size <= collector.size_left
        ):
            blank_extension(block, at)
            collector.add(block, at, at + size, offset, header.message_count)
            return position + size, batch_end_offset, batch_end_offset
        if size >= self._limits.large_batch_size:
            # The rest of it will be asked for next, perhaps many times.
            self._remember_verified(segment.base_offset, position, header)
        offset = _add_frames(header, block, at + BATCH_HEADER_SIZE, at + size, 0, offset, end_offset, collector)
        return (position + size if offset == batch_end_offset else position), offset, offset

    def _read_inside(
        self,
        loader: BatchLoader,
        segment: Segment,
        position: int,
        anchor: int,
        offset: int,
        end_offset: int,
        collector: Collector,
        *,
        wait: bool,
    ) -> tuple[int, int, int]:
        """Take from a large batch that was checked before: its header, and only the frames that are wanted."""
        entry = self._entry_at(segment, offset, wait=wait)
        batch_body = position + BATCH_HEADER_SIZE
        start, start_offset = batch_body, -1
        if entry is not None and entry.batch_position == position:
            start, start_offset = entry.frame_position, entry.offset
        wanted = min(collector.size_left, collector.count_left * segment.average_message_size)
        size = max(wanted, 0) + self._interval + FRAME_HEADER_SIZE
        while True:
            end = min(start + size, segment.size)
            header, block = loader.load_part(position, start, end)
            batch_end = position + header.stored_length
            body_end = BATCH_HEADER_SIZE + min(end, batch_end) - start
            number = start_offset - header.base_offset if start_offset >= 0 else 0
            if not header.base_offset <= anchor < header.end_offset:
                raise BadBatch(f"the batch begins at offset {header.base_offset} where {anchor} is expected")
            if header.end_offset <= offset:
                return batch_end, header.end_offset, offset
            if not self._is_frame(block, number):
                # The log is right and the index is not: never the other way round.
                self._forget_verified(segment.base_offset, position)
                self._replace_index(segment, wait=wait)
                return position, anchor, offset
            new_offset = _add_frames(header, block, BATCH_HEADER_SIZE, body_end, number, offset, end_offset, collector)
            if new_offset == offset and end < batch_end and end - start < collector.size_left + self._interval:
                # Not the limit is too small for the next message, only the piece that was read: it begins up to
                # one interval before the message.
                collector.is_full = False
            if new_offset > offset or collector.is_full:
                return (batch_end if new_offset == header.end_offset else position), new_offset, new_offset
            if end >= batch_end:
                raise BadBatch("the frames do not fill their batch")
            # One message larger than what was read: it is always given, so read more.
            size *= 4

    @staticmethod
    def _is_frame(block: memoryview, number: int) -> bool:
        delta = block[BATCH_HEADER_SIZE + FRAME_OFFSET_DELTA_POSITION :][:4]
        return number >= 0 and int.from_bytes(delta, "little") == number

    def _pass_damage(
        self, segment: Segment, position: int, limit: int, anchor: int, offset: int, collector: Collector, *, wait: bool
    ) -> tuple[int, int, int]:
        """Go to the next good batch behind a bad one, and remember the way."""
        known = next((damage for damage in segment.damages if damage.position == position), None)
        if known is None:
            if not wait:
                raise BlockingIOError
            self.counters.checksum_failure_count += 1
            file = self._file_of(segment)
            # Not from the wanted offset on: the bad batch may lie before the one that holds it.
            window_size = self._limits.scan_window_size
            found = find_batch(file, self._identity, start=position, end=limit, offset=anchor, window_size=window_size)
            next_position, next_offset = (
                (limit, segment.end_offset) if found is None else (found[0], found[1].base_offset)
            )
            known = DamagedRange(segment.base_offset, position, next_position, anchor, next_offset)
            segment.damages = (*segment.damages, known)
        collector.skip(offset, max(known.end_offset, offset), SkipReason.DAMAGED)
        return known.end_position, known.end_offset, max(known.end_offset, offset)

    # --- the index ---

    def offset_at_time(self, segment: Segment, timestamp: int, *, wait: bool) -> int:
        """The first offset in the segment whose batch is not older, or the segment's end."""
        self.counters.index_lookup_count += 1
        entry = self._look_up(segment, lambda: segment.index.before_time(timestamp), wait=wait)
        file, end = self._file_of(segment), segment.size
        position = entry.batch_position if entry is not None else 0
        head = memoryview(bytearray(BATCH_HEADER_SIZE))
        while position < end:
            try:
                if read_into(file, position, head, wait=wait) < BATCH_HEADER_SIZE:
                    break
                header = read_header(head, 0, self._identity)
            except BadBatch:
                found = find_batch(
                    file,
                    self._identity,
                    start=position,
                    end=end,
                    offset=segment.base_offset,
                    window_size=self._limits.scan_window_size,
                )
                if found is None:
                    break
                position, header = found
            if header.base_timestamp >= timestamp:
                return header.base_offset
            position += header.stored_length
        return segment.end_offset

    def _entry_at(self, segment: Segment, offset: int, *, wait: bool) -> IndexEntry | None:
        base_offset, latest_offset, entry = self._latest_entry
        if (base_offset, latest_offset) == (segment.base_offset, offset):
            return entry
        self.counters.index_lookup_count += 1
        entry = self._look_up(segment, lambda: segment.index.at_offset(offset), wait=wait)
        self._latest_entry = segment.base_offset, offset, entry
        return entry

    def _look_up(self, segment: Segment, find: "Callable[[], _Found]", *, wait: bool) -> "_Found":
        if not segment.is_index_ready:
            if not wait:
                raise BlockingIOError
            self._prepare_index(segment)
        try:
            return find()
        except (BadIndex, OSError):
            self._replace_index(segment, wait=wait)
            return find()

    def _replace_index(self, segment: Segment, *, wait: bool) -> None:
        """The index is wrong: do without it at once, and have it built anew."""
        if not wait:
            raise BlockingIOError
        self.counters.index_rebuild_count += 1
        self._latest_entry = _NO_ENTRY
        self._rebuild_index(segment)

    # --- hints ---

    def _remember_verified(self, base_offset: int, position: int, header: StoredHeader) -> None:
        if len(self._verified) >= self._limits.verified_count_max:
            self._verified = {}
        self._verified[base_offset, position] = header

    def _forget_verified(self, base_offset: int, position: int) -> None:
        self._verified.pop((base_offset, position), None)


_Found = TypeVar("_Found")


def _add_frames(
    header: StoredHeader,
    block: memoryview,
    body_start: int,
    body_end: int,
    number: int,
    offset: int,
    end_offset: int,
    collector: Collector,
) -> int:
    """Add the frames from ``offset`` on that are wanted and wholly in ``block[body_start:body_end]``.

    The body begins with frame ``number``. The record's header is written in front of the first frame kept, over what
    is left out. Return the offset behind the last frame added.
    """
    body = block[body_start:body_end]
    first = offset - header.base_offset
    wanted_count = min(header.end_offset, end_offset, offset + collector.count_left) - offset
    size_max = collector.size_left - BATCH_HEADER_SIZE
    choose = _choose_uniform if header.frame_size else _choose_mixed
    start, end, count = choose(header.frame_size, body, first - number, wanted_count, size_max)
    if count == 0 and collector.message_count == 0:
        start, end, count = choose(header.frame_size, body, first - number, 1, len(body))
    if count == 0:
        # What is left of the limit is too small for the next message; the first one is given whatever its size.
        collector.is_full = collector.message_count > 0
        return offset
    record_start = body_start + start - BATCH_HEADER_SIZE
    block[record_start : body_start + start] = trimmed_header(header, body[start:end], count)
    collector.add(block, record_start, body_start + end, offset, count)
    return offset + count


def _choose_uniform(frame_size: int, body: memoryview, skip: int, count: int, size_max: int) -> tuple[int, int, int]:
    """Where ``count`` frames behind the first ``skip`` lie, as many as are there and fit into ``size_max``."""
    count = max(min(count, len(body) // frame_size - skip, size_max // frame_size), 0)
    start = skip * frame_size
    return start, start + count * frame_size, count


def _choose_mixed(_frame_size: int, body: memoryview, skip: int, count: int, size_max: int) -> tuple[int, int, int]:
    """The same for frames of different sizes: follow their lengths."""
    return cut_frames(body, skip, count, size_max)
