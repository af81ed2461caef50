"""Reads messages of a partition from its archive, as ``LogReader`` reads them from the disk.

An archived object is a segment that lies elsewhere: the same reader finds offsets and times in it, and checks the same
checksums. All methods block and may raise ``ArchiveFailure``.
"""

import logging
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from operator import attrgetter
from threading import Lock

from courser.archive.errors import ArchiveFailure
from courser.archive.object_cache import CachedObject, ObjectCache, ObjectFile
from courser.archive.objects import Piece
from courser.archive.reader import PartitionArchive
from courser.storage.files import File, held
from courser.storage.index_file import BadIndex
from courser.storage.ledger import DamagedRange, SegmentFacts
from courser.storage.read_result import Collector, ReadBuffer, ReadResult, SkipReason
from courser.storage.scan import GoodBatch, scan
from courser.storage.segment import Segment
from courser.storage.segment_index import SegmentIndex
from courser.storage.segment_reader import SegmentReader
from courser.storage.settings import LogSettings

_log = logging.getLogger(__name__)

_SEGMENT_COUNT_MAX = 128
"""Archived segments that are kept ready to be read: each may have two files open."""
_AHEAD_COUNT = 4
"""Objects that are looked at to read ahead: they may be small."""

_end_offset = attrgetter("end_offset")


class ArchivedSegment:
    """An object with batches, ready to be read."""

    def __init__(self, cache: ObjectCache, archive: PartitionArchive, piece: Piece, settings: LogSettings) -> None:
        manifest, store = archive.manifest, archive.store
        self.piece = piece
        self._identity = manifest.identity
        self._settings = settings
        self._file = ObjectFile(cache, store, CachedObject(archive.key_of(piece), piece.size, piece.digest))
        self._index = ObjectFile(
            cache, store, CachedObject(archive.index_key_of(piece), piece.index_size, piece.index_digest)
        )
        facts = SegmentFacts(
            piece.first_offset,
            piece.end_offset,
            piece.size,
            piece.first_timestamp,
            piece.last_timestamp,
            piece.message_count,
            piece.batch_count,
        )
        self.segment = Segment.from_facts(facts, self._identity, settings)
        self.segment.correction = dict(manifest.corrections).get(piece.base_offset, 0)
        self.segment.damages = self._known_damages = tuple(
            DamagedRange(
                base_offset, position - piece.position, end_position - piece.position, first_offset, end_offset
            )
            for base_offset, position, end_position, first_offset, end_offset in manifest.damages
            if base_offset == piece.base_offset and piece.position <= position < piece.position + piece.size
        )
        self.reader = SegmentReader(self._identity, self, settings)

    def take(self, _: Segment) -> File:
        """Give the object as a file, held."""
        self._file.hold()
        return self._file

    def close(self) -> None:
        self._file.close()
        self._index.close()

    @property
    def has_new_damage(self) -> bool:
        """Whether a read met damage that the segment did not have when it was archived."""
        return self.segment.damages != self._known_damages

    def discard(self) -> None:
        """Forget its bytes, which are wrong."""
        self._file.discard_cache()
        self._index.discard_cache()

    def read_ahead(self, *, wait: bool) -> None:
        """Have its first bytes fetched. Without ``wait``, raises ``BlockingIOError`` if that is not possible yet."""
        self._file.read_ahead(wait=wait)

    def prepare_index(self, segment: Segment) -> None:
        """Use the archived index, or make it from the batches."""
        if self.piece.index_key:
            index = self._empty_index()
            try:
                index.use_file(self._index, segment.size, into_memory=False)
            except (OSError, BadIndex) as error:
                _log.warning("an archived index is damaged; reading the segment reason=%s", error)
            else:
                segment.index, segment.is_index_ready = index, True
                return
        self.rebuild_index(segment)

    def rebuild_index(self, segment: Segment) -> None:
        """Make the index from the batches."""
        index = self._empty_index()
        window_size = self._settings.limits.scan_window_size
        with held(self._file) as file:
            for found in scan(
                file,
                self._identity,
                start=0,
                end=segment.size,
                offset=segment.base_offset,
                window_size=window_size,
            ):
                if isinstance(found, GoodBatch):
                    header = found.header
                    index.add_batch(header.base_offset, found.position, header.base_timestamp, found.frames)
        segment.index, segment.is_index_ready = index, True

    def _empty_index(self) -> SegmentIndex:
        settings, base_offset = self._settings, self.segment.base_offset
        return SegmentIndex(self._identity, base_offset, settings.index_interval, settings.limits.index_block_size)


class ArchivedSegments:
    """Archived segments that were read lately. Calls may come from several threads."""

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache
        self._lock = Lock()
        self._segments: OrderedDict[str, ArchivedSegment] = OrderedDict()

    def get(self, archive: PartitionArchive, piece: Piece, settings: LogSettings) -> ArchivedSegment:
        """An archived segment, ready to be read."""
        key = archive.key_of(piece)
        with self._lock:
            found = self._segments.get(key)
            if found is None:
                found = self._segments[key] = ArchivedSegment(self._cache, archive, piece, settings)
                while len(self._segments) > _SEGMENT_COUNT_MAX:
                    self._segments.popitem(last=False)[1].close()
            self._segments.move_to_end(key)
            return found

    @property
    def ahead_size(self) -> int:
        """Bytes that are fetched before a reader asks for them."""
        return self._cache.ahead_size

    def discard(self, archive: PartitionArchive, piece: Piece) -> None:
        """Forget all about a segment: it is fetched again."""
        with self._lock:
            found = self._segments.pop(archive.key_of(piece), None)
        if found is not None:
            found.discard()
            found.close()

    def close(self) -> None:
        with self._lock:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()


class ArchivedLog:
    """The archived messages of one partition below an offset, for one request."""

    def __init__(
        self, segments: ArchivedSegments, archive: PartitionArchive, settings: LogSettings, end_offset: int
    ) -> None:
        """From ``end_offset`` on, the server has the messages itself."""
        self._segments = segments
        self._archive = archive
        self._settings = settings
        self._end_offset = end_offset

    def read(self, offset: int, count: int, size_max: int, buffer: ReadBuffer, *, wait: bool = True) -> ReadResult:
        """Messages from ``offset`` on, as ``PartitionLog.read`` gives them.

        Raises:
            BlockingIOError: without ``wait``, if they are not in memory, or decoding them takes long.
        """
        collector, end_offset = Collector(count, size_max), self._end_offset
        while offset < end_offset and not collector.is_full:
            found = self._archive.find(offset)
            start = end_offset if found is None else min(found.first_offset, end_offset)
            if offset < start:
                if not self._pass_gap(offset, start, collector):
                    break
                offset = start
                continue
            assert found is not None
            piece_end = min(found.end_offset, end_offset)
            try:
                offset = self._read_piece(found, offset, piece_end, collector, buffer, wait=wait)
            except ArchiveFailure:
                if collector.message_count:
                    # What can be read is returned first. The next read fails, and says why.
                    break
                raise
            with suppress(ArchiveFailure):
                # Who comes that far is told.
                self._read_ahead(found, offset, wait=wait)
            if offset < piece_end:
                break
        return collector.result(offset)

    def _read_piece(
        self, piece: Piece, offset: int, end_offset: int, collector: Collector, buffer: ReadBuffer, *, wait: bool
    ) -> int:
        opened = self._segments.get(self._archive, piece, self._settings)
        skipped_count = len(collector.skipped)
        next_offset = opened.reader.read(opened.segment, offset, end_offset, collector, buffer, wait)
        if opened.has_new_damage and not collector.message_count:
            if not wait:
                raise BlockingIOError
            # It was right when it was archived: perhaps only this copy is wrong.
            self._segments.discard(self._archive, piece)
            del collector.skipped[skipped_count:]
            opened = self._segments.get(self._archive, piece, self._settings)
            next_offset = opened.reader.read(opened.segment, offset, end_offset, collector, buffer, wait=True)
        return next_offset

    def _read_ahead(self, piece: Piece, offset: int, *, wait: bool) -> None:
        """Have the next objects fetched if a reader that goes on from ``offset`` comes to the end of this one soon."""
        share_left = (piece.end_offset - offset) / (piece.end_offset - piece.first_offset)
        size = self._segments.ahead_size - int(share_left * piece.size)
        for _ in range(_AHEAD_COUNT):
            found = self._archive.find(piece.end_offset) if size > 0 else None
            if found is None or found.first_offset >= self._end_offset:
                break
            piece = found
            self._segments.get(self._archive, piece, self._settings).read_ahead(wait=wait)
            size -= piece.size

    def _pass_gap(self, offset: int, end_offset: int, collector: Collector) -> bool:
        """Skip offsets that are not archived. Returns False if that must wait for the start of the next read."""
        for first, end, reason in self._archive.missing_between(offset, end_offset):
            if reason is not SkipReason.RESERVED and collector.message_count:
                return False
            collector.skip(first, end, reason)
        return True

    def offset_at_time(self, timestamp: int) -> int:
        """The first archived offset whose message is not older; the end if there is none."""
        corrections = dict(self._archive.manifest.corrections)
        for piece in self._archive.manifest.pieces:
            if piece.first_offset >= self._end_offset:
                break
            if piece.last_timestamp + corrections.get(piece.base_offset, 0) >= timestamp:
                opened = self._segments.get(self._archive, piece, self._settings)
                wanted = max(timestamp - opened.segment.correction, 0)
                return min(opened.reader.offset_at_time(opened.segment, wanted, wait=True), self._end_offset)
        return self._end_offset

    def offset_of_last(self, piece: Piece, count: int) -> int:
        """The offset of the first of the newest ``count`` messages of an object from which messages were removed."""
        opened = self._segments.get(self._archive, piece, self._settings)
        return opened.reader.offset_of_last(opened.segment, count)

    def time_at(self, offset: int) -> int | None:
        """When the message at ``offset``, or the next one that is archived, was appended; None if there is none."""
        found = self._archive.find(offset)
        if found is None or found.first_offset >= self._end_offset:
            return None
        opened = self._segments.get(self._archive, found, self._settings)
        time = opened.reader.time_at(opened.segment, max(offset, found.first_offset), wait=True)
        return time + opened.segment.correction


def pieces_below(archive: PartitionArchive, end_offset: int, offset: int = 0) -> tuple[Piece, ...]:
    """The objects that have messages from ``offset`` on and below ``end_offset``."""
    pieces = archive.manifest.pieces
    first = bisect_right(pieces, offset, key=_end_offset)
    return tuple(piece for piece in pieces[first:] if piece.first_offset < end_offset)
