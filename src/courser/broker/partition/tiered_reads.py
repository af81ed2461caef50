"""Reads of messages that only the archive still has, off the event loop.

Partitions come here with offsets below their oldest segment. The store may be slow or down: reads have threads of their
own, so that the disk never waits for it. What is archived is never skipped because of that: the client gets an error
that says so, and may try again.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias, TypeVar

from courser.archive.archived_log import ArchivedLog, ArchivedSegments, pieces_below
from courser.archive.object_cache import CacheCounters, ObjectCache
from courser.archive.objects import Piece
from courser.archive.reader import PartitionArchive
from courser.broker.partition.waiting import Waiting, attempt
from courser.errors import StorageFailure
from courser.storage.partition_log import PartitionLog
from courser.storage.read_result import ReadBuffer, ReadResult, SkipReason

_READER_COUNT = 8
"""Reads at a time."""

Found = TypeVar("Found")
LocalRead: TypeAlias = Callable[[int, int, int, ReadBuffer | None], ReadResult | Waiting[ReadResult]]
"""Reads messages that a partition has itself: offset, count, size, buffer."""


class TieredReads:
    """What the archive adds to the partitions of a server. All methods may raise ``ArchiveFailure``."""

    def __init__(self, archive_of: Callable[[PartitionLog], PartitionArchive | None], cache_size: int) -> None:
        self._archive_of = archive_of
        self._cache = ObjectCache(cache_size)
        self._segments = ArchivedSegments(self._cache)
        self._threads = ThreadPoolExecutor(_READER_COUNT, thread_name_prefix="archive-read")
        self.read_count = 0
        """Reads of messages that only the archive has."""

    @property
    def counters(self) -> CacheCounters:
        """What was fetched since the start."""
        return self._cache.counters

    def close(self) -> None:
        """Stop. Requests that hang in the store are left alone."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._cache.close()
        self._segments.close()

    # --- what there is ---

    def _archive(self, log: PartitionLog) -> PartitionArchive | None:
        """The archive of a partition, if it has messages that the partition has no longer."""
        if not log.start_offset:
            return None
        archive = self._archive_of(log)
        if archive is None or archive.start_offset is None or archive.start_offset >= log.start_offset:
            return None
        return archive

    def start_offset(self, log: PartitionLog) -> int:
        """The oldest offset that can be read, here or in the archive."""
        archive = self._archive(log)
        return log.start_offset if archive is None or archive.start_offset is None else archive.start_offset

    def pieces(self, log: PartitionLog, offset: int = 0) -> tuple[Piece, ...]:
        """The archived objects with messages from ``offset`` on that only the archive has."""
        archive = self._archive(log)
        return () if archive is None else pieces_below(archive, log.start_offset, offset)

    def count_from(self, log: PartitionLog, offset: int) -> int:
        """How many messages from ``offset`` on only the archive has."""
        return sum(
            piece.message_count if offset <= piece.first_offset else min(piece.end_offset - offset, piece.message_count)
            for piece in self.pieces(log, offset)
        )

    async def offset_of_last(self, log: PartitionLog, count: int) -> int:
        """The offset of the first of the newest ``count`` messages that only the archive has."""
        for piece in reversed(self.pieces(log)):
            if count <= piece.message_count:
                archived = self._log(log) if piece.message_count < piece.end_offset - piece.first_offset else None
                if archived is None:
                    return piece.end_offset - count
                return await self._run(partial(archived.offset_of_last, piece, count))
            count -= piece.message_count
        return self.start_offset(log)

    # --- reads ---

    def try_read(
        self, log: PartitionLog, here: LocalRead, offset: int, count: int, size_max: int, buffer: ReadBuffer | None
    ) -> ReadResult | Waiting[ReadResult]:
        """Messages from ``offset`` on, wherever they are; or what has to be waited for. ``here`` reads the disk."""
        if offset < log.start_offset:
            return attempt(self._read(log, here, offset, count, size_max, buffer))
        found = here(offset, count, size_max, buffer)
        if isinstance(found, Waiting):
            return attempt(self._read_unless_trimmed(found, log, here, offset, count, size_max, buffer))
        return found

    async def _read_unless_trimmed(
        self,
        found: Waiting[ReadResult],
        log: PartitionLog,
        here: LocalRead,
        offset: int,
        count: int,
        size_max: int,
        buffer: ReadBuffer | None,
    ) -> ReadResult:
        """Wait for a read of the disk. If the messages were deleted there meanwhile, take them from the archive."""
        try:
            result = await found
        except StorageFailure:
            if offset >= log.start_offset:
                raise
        else:
            if not any(skipped.reason is SkipReason.TRIMMED for skipped in result.skipped):
                return result
        return await self._read(log, here, offset, count, size_max, buffer)

    async def _read(
        self, log: PartitionLog, here: LocalRead, offset: int, count: int, size_max: int, buffer: ReadBuffer | None
    ) -> ReadResult:
        """Read from the archive, and on from the disk if the reply has room."""
        archived, end_offset = self._log(log), log.start_offset
        if archived is None:
            return await _waited(here(offset, count, size_max, buffer))
        self.read_count += 1
        room = buffer if buffer is not None else ReadBuffer(log.settings.limits.read_buffer_size)
        try:
            # What is in memory needs no thread: going to one takes as long as reading a few hundred kilobytes.
            result = archived.read(offset, count, size_max, room, wait=False)
        except BlockingIOError:
            result = await self._run(partial(archived.read, offset, count, size_max, room))
        count_left, size_left = count - result.message_count, size_max - result.size
        if not result.message_count or result.next_offset < end_offset or count_left <= 0 or size_left <= 0:
            return result
        more = await _waited(self.try_read(log, here, result.next_offset, count_left, size_left, room))
        if more.size > size_left or any(skipped.reason is not SkipReason.RESERVED for skipped in more.skipped):
            # The next read starts there.
            return result
        return ReadResult(
            (*result.pieces, *more.pieces),
            result.first_offset,
            more.next_offset,
            result.message_count + more.message_count,
            result.size + more.size,
            (*result.skipped, *more.skipped),
        )

    async def offset_at_time(self, log: PartitionLog, timestamp: int) -> int | None:
        """The first offset that only the archive has whose message is not older; None if there is none."""
        segments = log.segments
        if segments and segments[0].message_count and segments[0].first_stored_at < timestamp:
            # All that is archived alone is older.
            return None
        archived, end_offset = self._log(log), log.start_offset
        if archived is None:
            return None
        offset = await self._run(partial(archived.offset_at_time, timestamp))
        return offset if offset < end_offset else None

    async def time_at(self, log: PartitionLog, offset: int) -> int | None:
        """When the message at ``offset``, or the next one that is archived, was appended; None if there is none."""
        archived = self._log(log)
        return None if archived is None else await self._run(partial(archived.time_at, offset))

    def _log(self, log: PartitionLog) -> ArchivedLog | None:
        archive = self._archive(log)
        return None if archive is None else ArchivedLog(self._segments, archive, log.settings, log.start_offset)

    async def _run(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


async def _waited(found: ReadResult | Waiting[ReadResult]) -> ReadResult:
    return await found if isinstance(found, Waiting) else found
