"""Load and check stored batches, and take the requested messages from them. No other module does this for reads.

``segment_reader`` only decides where to read. Batches that are compressed or encrypted are decoded one at a time; all
others stay in the block that they were read into.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from courser.records.checksum import xxh3
from courser.records.encryption import KeyRing
from courser.records.frame_walk import cut_frames
from courser.records.layout import (
    BATCH_HEADER_SIZE,
    EXTENSION_POSITION,
    FRAME_HEADER_SIZE,
    FRAME_OFFSET_DELTA_POSITION,
    NO_EXTENSION,
)
from courser.records.stored_body import decode, decoded_header
from courser.records.stored_header import (
    BadBatch,
    PartitionIdentity,
    StoredHeader,
    blank_extension,
    read_header,
    trimmed_header,
)
from courser.storage.files import File, read_into
from courser.storage.read_result import Collector, LargeRead, ReadBuffer
from courser.storage.scan import find_batch
from courser.storage.segment import Segment
from courser.storage.settings import EngineLimits

_unpack_claims: Callable[[memoryview, int], tuple[int, int]] = struct.Struct("<32xQ8xI").unpack_from
"""Unpacks batch_length and message_count of the header at a position."""
_unpack_lengths: Callable[[memoryview, int], tuple[int, int]] = struct.Struct("<32xII").unpack_from
"""Unpacks the lengths of user headers and payload of the frame at a position."""


@dataclass(slots=True, eq=False)
class Cursor:
    """The progress of one read of one segment. A step that raises ``BadBatch`` does not move it."""

    segment: Segment
    position: int
    """The position of the next batch in the file."""
    anchor: int
    """An offset that this batch must contain. If it does not, it is not the expected batch."""
    offset: int
    """The next requested message. It may be in a later batch."""
    end_offset: int
    """Messages from here on are not requested, or not visible yet."""
    collector: Collector

    def check(self, header: StoredHeader) -> None:
        """Raise ``BadBatch`` unless this is the expected batch."""
        if not header.previous_end_offset <= self.anchor < header.end_offset:
            raise BadBatch(f"the batch at offset {header.base_offset} does not contain offset {self.anchor}")

    def pass_removed(self, header: StoredHeader) -> None:
        """Go on to the first message of the expected batch, if those before it were removed."""
        if header.base_offset > self.offset:
            self.anchor = self.offset = header.base_offset


class BatchDecoder:
    """Decodes batches for the reads of one partition, and keeps the one that was last read in part.

    A read of a few messages decodes their whole batch, and the next read most often asks for its next messages. Any
    thread may call it: threads share only the batch that is kept.
    """

    __slots__ = ("_kept", "_keys", "_limits")

    def __init__(self, keys: KeyRing, limits: EngineLimits) -> None:
        self._keys = keys
        self._limits = limits
        self._kept: tuple[StoredHeader, memoryview] | None = None

    def frames(self, header: StoredHeader, stored: memoryview, *, wait: bool) -> memoryview:
        """The frames of a stored batch that passed its checks; see ``stored_body.decode``.

        Raises:
            BlockingIOError: without ``wait``, if that takes too long for the thread of the event loop.
        """
        kept = self._kept
        # The header has the hash of the body: an equal one belongs to an equal batch.
        if kept is not None and kept[0] == header:
            return kept[1]
        if not wait and header.batch_length > self._limits.inline_coding_size:
            raise BlockingIOError
        return decode(header, stored, self._keys)

    def keep(self, header: StoredHeader, frames: memoryview) -> None:
        """Keep a batch whose rest will be requested next."""
        if len(frames) <= self._limits.decoded_size_max:
            self._kept = header, frames

    def release(self, header: StoredHeader) -> None:
        """Forget a batch that was read to its end."""
        kept = self._kept
        if kept is not None and kept[0] == header:
            self._kept = None


@dataclass(slots=True, eq=False)
class BatchLoader:
    """Serves one read of one segment. Its blocks are in the reader's buffer."""

    _file: File
    _identity: PartitionIdentity
    _limit: int
    """The end of the log in the file."""
    _buffer: ReadBuffer
    _decoder: BatchDecoder
    _wait: bool
    _inline_size: int
    """Without ``_wait``, reading more bytes is refused as well."""
    expected_size: int = 0
    """Bytes that the read will need, if known."""
    next_claims: tuple[int, int] = (0, 0)
    """Size and message count in the header behind the last run, unchecked; 0 if the header is not loaded."""
    size_read: int = 0
    _block: memoryview = memoryview(b"")  # noqa: RUF009 - it cannot be changed
    _position: int = 0

    # --- taking messages ---

    def take_run(self, cursor: Cursor, large_size: int) -> bool:
        """Take consecutive whole batches at the cursor, as many as are in one block. Returns whether one was taken.

        This is the loop of sequential reads: few steps per batch, and only a hash per byte. If the first batch needs
        special treatment, none is taken. One of ``large_size`` bytes or more that no longer fits is not cut if the next
        read can return it whole: the collector is then full. Raises ``BadBatch`` if the first one fails a check.
        """
        offset, end_offset, collector, identity = cursor.offset, cursor.end_offset, cursor.collector, self._identity
        count_left, size_left = collector.count_left, collector.size_left
        block, start = self._block, cursor.position - self._position
        if not 0 <= start <= len(block) - BATCH_HEADER_SIZE:
            segment = cursor.segment
            average_size = segment.size // max(segment.message_count, 1) + 1
            guess = self.expected_size or min(size_left, count_left * average_size)
            block, start = self._fetch(cursor.position, guess), 0
        at, header_limit, first_offset = start, len(block) - BATCH_HEADER_SIZE, offset
        is_enough = False
        try:
            while at <= header_limit and count_left > 0:
                header = read_header(block, at, identity)
                count, end = header.message_count, at + header.stored_length
                if header.removed_count and header.previous_end_offset <= offset < header.base_offset:
                    offset = header.base_offset
                    if at == start:
                        first_offset = offset
                if end - start > size_left and (at > start or collector.message_count):
                    is_enough = large_size <= end - at <= collector.size + size_left
                    break
                if (
                    header.base_offset != offset
                    or header.flags
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
            # The next read starts with the bad batch, and skips it.
            if at == start:
                raise
        if at > start:
            collector.add(block, start, at, first_offset, collector.count_left - count_left)
            cursor.position += at - start
            cursor.anchor = cursor.offset = offset
            if at <= header_limit:
                self.next_claims = _unpack_claims(block, at)
        if is_enough:
            collector.is_full = True
        return at > start

    def take_batch(self, cursor: Cursor) -> StoredHeader | None:
        """Take messages from the batch at the cursor, or skip it.

        Returns its header if only a part was requested, and the next read can do without loading the rest.

        Raises:
            BadBatch: it fails a check.
            BlockingIOError: decoding it would take too long here.
            KeyMissing, CodecMissing: it cannot be decoded.
        """
        header, block, at = self._load(cursor.position)
        self.next_claims = (0, 0)
        cursor.check(header)
        collector, size, batch_end_offset = cursor.collector, header.stored_length, header.end_offset
        if batch_end_offset <= cursor.offset:
            # The index led here, but the message is in a later batch.
            cursor.position += size
            cursor.anchor = batch_end_offset
            return None
        cursor.pass_removed(header)
        if header.flags:
            self._take_encoded(cursor, header, block[at : at + size])
            return None
        if (
            header.base_offset == cursor.offset
            and batch_end_offset <= cursor.end_offset
            and header.message_count <= collector.count_left
            and size <= collector.size_left
        ):
            blank_extension(block, at)
            collector.add(block, at, at + size, cursor.offset, header.message_count)
            cursor.position += size
            cursor.anchor = cursor.offset = batch_end_offset
            return None
        _add_frames(cursor, header, block, at + BATCH_HEADER_SIZE, at + size, 0)
        if cursor.offset == batch_end_offset:
            cursor.position += size
        return header

    def _take_encoded(self, cursor: Cursor, header: StoredHeader, stored: memoryview) -> None:
        """Take messages from an encoded batch: they are copied to the reader's buffer, behind a header for clients."""
        frames = self._decoder.frames(header, stored, wait=self._wait)
        start, end, count = _choose(cursor, header, frames, 0)
        if count:
            wanted = frames[start:end]
            block = self._buffer.take(BATCH_HEADER_SIZE + len(wanted))
            block[:BATCH_HEADER_SIZE] = decoded_header(header, wanted, count)
            block[BATCH_HEADER_SIZE:] = wanted
            cursor.collector.add(block, 0, len(block), cursor.offset, count)
            cursor.anchor = cursor.offset = cursor.offset + count
        if cursor.offset == header.end_offset:
            self._decoder.release(header)
            cursor.position += header.stored_length
        else:
            self._decoder.keep(header, frames)

    def take_frames(self, cursor: Cursor, start: int, first_offset: int | None, size: int, slack: int) -> bool:
        """Take messages from a large batch that was verified before. Reads only its header and the requested frames.

        Reads from ``start`` on, which is the position of the frame of ``first_offset`` according to the index, or the
        start of the body if that is None. ``size`` is how much to read first. The requested frame starts at most
        ``slack`` bytes after ``start``. Returns False if there is no such frame.

        Raises:
            BadBatch: it fails a check.
        """
        collector, self.next_claims = cursor.collector, (0, 0)
        while True:
            end = min(start + size, self._limit)
            header, block = self._load_part(cursor.position, start, end)
            cursor.check(header)
            cursor.pass_removed(header)
            offset = cursor.offset
            batch_end = cursor.position + header.stored_length
            if header.end_offset <= offset:
                cursor.position, cursor.anchor = batch_end, header.end_offset
                return True
            number = 0 if first_offset is None else first_offset - header.base_offset
            if not _is_frame(block, number):
                return False
            body_end = BATCH_HEADER_SIZE + min(end, batch_end) - start
            _add_frames(cursor, header, block, BATCH_HEADER_SIZE, body_end, number)
            needed_size = 0
            if cursor.offset == offset and end < batch_end:
                needed_size = _size_up_to(block, offset - header.base_offset - number)
                if end - start < collector.size_left + slack and not 0 < needed_size <= end - start:
                    # The next message may be within the limit; only the part that was read is too small.
                    collector.is_full = False
            if cursor.offset > offset or collector.is_full:
                if cursor.offset == header.end_offset:
                    cursor.position = batch_end
                return True
            if end >= batch_end:
                raise BadBatch("the frames do not fill their batch")
            # The message is larger than what was read. The first message is returned whatever its size, so read more.
            size = needed_size if needed_size > size else 4 * size

    # --- loading ---

    def _load(self, position: int) -> tuple[StoredHeader, memoryview, int]:
        """Load the batch at ``position``: its header, the block that contains it, and its position in the block."""
        block, at = self._block, position - self._position
        if not 0 <= at <= len(block) - BATCH_HEADER_SIZE:
            block, at = self._fetch(position, BATCH_HEADER_SIZE), 0
        header = read_header(block, at, self._identity)
        end = at + header.stored_length
        if end > len(block):
            at, block = 0, self._fetch_rest(position, at, header.stored_length)
            end = header.stored_length
        if xxh3(block[at + BATCH_HEADER_SIZE : end]) != header.body_hash:
            raise BadBatch("the body hash does not match")
        return header, block, at

    def _load_part(self, header_position: int, start: int, end: int) -> tuple[StoredHeader, memoryview]:
        """Load the header of a batch that was verified before, followed by bytes ``start`` to ``end`` of the log."""
        size = BATCH_HEADER_SIZE + end - start
        self._check_inline(size, size)
        block = self._buffer.take(size)
        self._read(header_position, block[:BATCH_HEADER_SIZE])
        header = read_header(block, 0, self._identity)
        self._read(start, block[BATCH_HEADER_SIZE:])
        return header, block

    def _fetch(self, position: int, guess: int) -> memoryview:
        """Read a block that begins with the batch at ``position``: its header at least, ``guess`` bytes if possible."""
        left = self._limit - position
        if left < BATCH_HEADER_SIZE:
            raise BadBatch(f"{left} bytes are too few for a batch header")
        size = guess if BATCH_HEADER_SIZE <= guess <= left else min(max(guess, BATCH_HEADER_SIZE), left)
        if not self._wait and self.size_read + size > self._inline_size:
            self._refuse_large(position)
        block = self._buffer.take(size)
        filled = self._file.read_at(position, block, wait=self._wait)
        if filled < size:
            block = self._fetch_on(position, block, filled)
        self.size_read += len(block)
        self._block, self._position = block, position
        return block

    def _fetch_on(self, position: int, block: memoryview, filled: int) -> memoryview:
        """Go on reading a block of which ``filled`` bytes came. Gives what there is: those batches are good."""
        filled += read_into(self._file, position + filled, block[filled:], wait=self._wait) if filled else 0
        if filled < BATCH_HEADER_SIZE:
            raise BadBatch("the file is shorter than the log")
        return block[:filled]

    def _fetch_rest(self, position: int, at: int, size: int) -> memoryview:
        """Have the whole batch at ``position``, of which the block holds only the beginning, at ``at``."""
        if position + size > self._limit:
            raise BadBatch(f"the batch of {size} bytes extends beyond the end of the log")
        if at:
            block = self._fetch(position, size)
        else:
            have = len(self._block)
            self._check_inline(size - have, size)
            block = self._block = self._buffer.extend(self._block, size)
            self._read(position + have, block[have:])
        if len(block) < size:
            raise BadBatch("the file ends inside the batch")
        return block

    def _refuse_large(self, position: int) -> NoReturn:
        """Leave a read to another thread; but if the batch needs more memory, say so here, in the order of requests."""
        head = memoryview(bytearray(BATCH_HEADER_SIZE))
        if read_into(self._file, position, head, wait=False) == BATCH_HEADER_SIZE:
            with suppress(BadBatch):
                self._buffer.check(read_header(head, 0, self._identity).stored_length)
        raise LargeRead

    def _check_inline(self, size: int, piece_size: int) -> None:
        """Refuse to read ``size`` bytes more if that is a lot. If their piece needs memory, say so first, as above."""
        self._buffer.check(piece_size)
        if not self._wait and self.size_read + size > self._inline_size:
            raise LargeRead

    def _read(self, position: int, buffer: memoryview) -> None:
        if read_into(self._file, position, buffer, wait=self._wait) < len(buffer):
            raise BadBatch("the file is shorter than the log")
        self.size_read += len(buffer)


def iterate_headers(
    file: File, identity: PartitionIdentity, segment: Segment, position: int, *, window_size: int, wait: bool
) -> Iterator[StoredHeader]:
    """The headers of a segment's batches from ``position`` on. Reads no bodies, and skips damage.

    Raises:
        BlockingIOError: with ``wait=False``, if the disk has to be waited for.
    """
    block, end = memoryview(bytearray(BATCH_HEADER_SIZE)), segment.size
    while position + BATCH_HEADER_SIZE <= end and read_into(file, position, block, wait=wait) == BATCH_HEADER_SIZE:
        try:
            header = read_header(block, 0, identity)
        except BadBatch:
            if not wait:
                raise BlockingIOError from None
            start, offset = position, segment.base_offset
            found = find_batch(file, identity, start=start, end=end, offset=offset, window_size=window_size)
            if found is None:
                return
            position, header = found
        yield header
        position += header.stored_length


def _size_up_to(block: memoryview, skip: int) -> int:
    """The size of the frames behind a header up to the one after ``skip`` others; 0 if its lengths are not loaded."""
    position = BATCH_HEADER_SIZE
    for _ in range(skip + 1):
        if position + FRAME_HEADER_SIZE > len(block):
            return 0
        position += FRAME_HEADER_SIZE + sum(_unpack_lengths(block, position))
    return position - BATCH_HEADER_SIZE


def _is_frame(block: memoryview, number: int) -> bool:
    delta = block[BATCH_HEADER_SIZE + FRAME_OFFSET_DELTA_POSITION :][:4]
    return number >= 0 and int.from_bytes(delta, "little") == number


def _add_frames(
    cursor: Cursor, header: StoredHeader, block: memoryview, body_start: int, body_end: int, number: int
) -> None:
    """Add the requested frames from the cursor's offset on that are complete in ``block[body_start:body_end]``.

    The body starts with frame ``number``. The record's header is written before the first frame that is kept,
    overwriting what is left out. The cursor's offset moves past the last frame added.
    """
    body = block[body_start:body_end]
    start, end, count = _choose(cursor, header, body, number)
    if count:
        record_start = body_start + start - BATCH_HEADER_SIZE
        block[record_start : body_start + start] = trimmed_header(header, body[start:end], count)
        cursor.collector.add(block, record_start, body_start + end, cursor.offset, count)
        cursor.anchor = cursor.offset = cursor.offset + count


def _choose(cursor: Cursor, header: StoredHeader, body: memoryview, number: int) -> tuple[int, int, int]:
    """The range and the count of the requested frames in ``body``, which starts with frame ``number``.

    If the next message exceeds the limit, none are chosen, and the collector is full.
    """
    collector, offset = cursor.collector, cursor.offset
    skip = offset - header.base_offset - number
    wanted_count = min(header.end_offset, cursor.end_offset, offset + collector.count_left) - offset
    size_max = collector.size_left - BATCH_HEADER_SIZE
    choose = _choose_uniform if header.frame_size else _choose_mixed
    start, end, count = choose(header.frame_size, body, skip, wanted_count, size_max)
    if count == 0 and collector.message_count == 0:
        # The first message is returned whatever its size.
        start, end, count = choose(header.frame_size, body, skip, 1, len(body))
    if count == 0:
        collector.is_full = collector.message_count > 0
    return start, end, count


def _choose_uniform(frame_size: int, body: memoryview, skip: int, count: int, size_max: int) -> tuple[int, int, int]:
    """The range of ``count`` frames after the first ``skip``, or of as many as exist and fit into ``size_max``."""
    count = max(min(count, len(body) // frame_size - skip, size_max // frame_size), 0)
    start = skip * frame_size
    return start, start + count * frame_size, count


def _choose_mixed(_frame_size: int, body: memoryview, skip: int, count: int, size_max: int) -> tuple[int, int, int]:
    """Choose among frames of different sizes, which are found by their lengths."""
    return cut_frames(body, skip, count, size_max)
