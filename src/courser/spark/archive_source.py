"""Reads messages straight from the objects of the archive, ahead of the reader, and checks the hashes on the way.

No server takes part. If an object is gone, somebody may have pruned the archive since the read was planned, because a
newer object has the same messages: the newest root tells.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from courser.archive.archived_log import pieces_below
from courser.archive.errors import ArchiveFailure, ObjectMissing
from courser.archive.keys import ArchiveKeys
from courser.archive.object_cache import CachedObject, ObjectCache, ObjectFile
from courser.archive.objects import Piece
from courser.errors import ErrorCode, OffsetsUnavailable
from courser.records.compression import CodecMissing
from courser.records.encryption import KeyMissing
from courser.records.stored_header import PartitionIdentity
from courser.spark.background_clients import archive_at, is_temporary, pause_before
from courser.spark.open_archive import INDEX_CACHE_SIZE, ArchiveAccess, OpenArchive
from courser.spark.segment_scan import FoundSegment, Scan, ScanOptions
from courser.spark.sources import FetchedBatches, SourceUnavailable
from courser.storage.files import File

_CACHE_SIZE = 32 * 1024 * 1024
"""Bytes of objects that a task has in memory: what it reads, what comes next, and the beginning of the next object."""

_end_offset = attrgetter("end_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSource:
    """Consecutive objects of one partition."""

    access: ArchiveAccess
    cluster: bytes
    identity: PartitionIdentity
    pieces: tuple[Piece, ...]
    options: ScanOptions
    retries: int
    """How often to try again if the store does not answer."""
    has_fallback: bool
    """Whether another source may have what is missing here."""

    def fetch(self, partition: int, start: int, end: int) -> Iterator[FetchedBatches]:
        """Raises ``ReadFailed`` if an object is damaged, unless damage is to be skipped."""
        assert partition == self.identity.partition_id, "an object belongs to one partition"
        cache, indexes = ObjectCache(_CACHE_SIZE), ObjectCache(INDEX_CACHE_SIZE)
        try:
            yield from _Reading(self, archive_at(self.access), cache, indexes).fetch(start, end)
        except ArchiveFailure as error:
            raise SourceUnavailable(str(error)) from error
        except (KeyMissing, CodecMissing) as error:
            raise SourceUnavailable(f"the archive: {error}") from error
        finally:
            cache.close()
            indexes.close()


class _Reading:
    """One pass over the objects."""

    def __init__(self, source: ArchiveSource, archive: OpenArchive, cache: ObjectCache, indexes: ObjectCache) -> None:
        self._source = source
        self._archive = archive
        self._cache = cache
        self._indexes = indexes
        self._base = ArchiveKeys(source.cluster).base

    def fetch(self, start: int, end: int) -> Iterator[FetchedBatches]:
        """The messages of a range. Tries again while the store does not answer."""
        offset, pieces, attempt = start, self._source.pieces, 0
        while offset < end:
            number = bisect_right(pieces, offset, key=_end_offset)
            piece = pieces[number] if number < len(pieces) else None
            if piece is None or piece.first_offset > offset:
                raise self._gone(
                    offset, end if piece is None else min(piece.first_offset, end), "gone from the archive"
                )
            piece_end = min(end, piece.end_offset)
            try:
                for fetched in self._read(piece, pieces[number + 1 : number + 2], offset, piece_end):
                    offset, attempt = fetched.next_offset, 0
                    yield fetched
            except ObjectMissing as missing:
                pieces = self._look_again(offset, end)
                if any(other.key == piece.key for other in pieces):
                    reason = f"missing from the archive, which has no object {missing.key}"
                    raise self._gone(offset, piece_end, reason) from None
            except ArchiveFailure as failure:
                if attempt >= self._source.retries or not is_temporary(failure):
                    raise
                attempt += 1
                time.sleep(pause_before(attempt, self._source.retries, failure))
            else:
                if offset < piece_end:
                    # The caller tells that messages are missing.
                    return

    def _read(self, piece: Piece, following: tuple[Piece, ...], start: int, end: int) -> Iterator[FetchedBatches]:
        file = self._file(piece)
        scan = Scan(self._scanned(piece), file, lambda: self._open_index(piece), start, end)
        is_ahead = not following
        for fetched in scan.fetch():
            if not is_ahead and scan.size_left <= self._cache.ahead_size:
                # If that fails, so does the read of it.
                with suppress(ArchiveFailure):
                    self._file(following[0]).read_ahead()
                is_ahead = True
            yield fetched

    def _file(self, piece: Piece) -> ObjectFile:
        found = CachedObject(self._base + piece.key, piece.size, piece.digest)
        return ObjectFile(self._cache, self._archive.store, found)

    def _open_index(self, piece: Piece) -> File | None:
        """The index, if there is one: it only saves time."""
        if not piece.index_key or self._archive.store.find(self._base + piece.index_key) is None:
            return None
        found = CachedObject(self._base + piece.index_key, piece.index_size, piece.index_digest)
        return ObjectFile(self._indexes, self._archive.store, found)

    def _scanned(self, piece: Piece) -> FoundSegment:
        source = self._source
        return FoundSegment(
            name=f"the object {self._base}{piece.key} (offsets {piece.first_offset} to {piece.end_offset - 1}) in the "
            f"archive {self._archive.store.name}",
            remedy="run `courser archive verify` to find all damage",
            identity=source.identity,
            base_offset=piece.base_offset,
            first_offset=piece.first_offset,
            position=piece.position,
            size=piece.size,
            options=source.options,
        )

    def _look_again(self, offset: int, end: int) -> tuple[Piece, ...]:
        """The objects that have these offsets by now."""
        self._archive.refresh()
        found = self._archive.partition(self._source.identity)
        return () if found is None else pieces_below(found, end, offset)

    def _gone(self, first: int, end: int, reason: str) -> Exception:
        if self._source.has_fallback:
            return SourceUnavailable(f"offsets {first} to {end - 1} are {reason}")
        return OffsetsUnavailable(ErrorCode.OFFSET_GONE, first_offset=first, end_offset=end, reason=reason)
