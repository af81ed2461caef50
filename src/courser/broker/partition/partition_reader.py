"""Reads of one partition: polls, lookups by time, and the verification of segments before their first read.

Small reads from the page cache run on the event loop. Those that are large or wait for the disk go to the pool, and
those of messages that only the archive has to the threads of ``TieredReads``.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from courser.broker.partition.segment_verification import SegmentCheck, SegmentVerification
from courser.broker.partition.waiting import Waiting, attempt
from courser.errors import StorageFailure
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import PartitionLog
from courser.storage.read_result import LargeRead, ReadBuffer, ReadResult

if TYPE_CHECKING:
    # A server without an archive does not import it.
    from courser.broker.partition.tiered_reads import TieredReads

LARGE_READ_COUNT_MAX = 2
"""Large reads of all partitions that run at a time: the other threads of the pool are for syncs, and more threads would
keep the event loop waiting for a processor."""
Question = tuple[int, int, int, int]
"""Offset, number of messages, bytes, and how often the partition was purged: readers that ask for the same get the same
messages, as numbering may begin again after a purge."""
_NOTHING_ASKED: tuple[Question | None, int] = (None, 0)
Found = TypeVar("Found")
Past: TypeAlias = "TieredReads | None"
"""What reads messages that only the archive still has, if there is one."""


class PartitionReader:
    """Reads one partition, here and in the archive. Use it from one event loop, and call ``close`` at the end."""

    def __init__(
        self,
        log: PartitionLog,
        pool: Executor,
        verification: SegmentVerification | None,
        past: Past,
        large_reads: asyncio.Semaphore | None,
    ) -> None:
        self._log = log
        self.disk = LogReader(log)
        """Reads what this machine has, and waits for it: on another thread."""
        self._pool = pool
        self._verification = verification
        self._verifying = asyncio.Lock()
        self.past = past
        """Reads messages that only the archive still has."""
        self._large_reads = large_reads or asyncio.Semaphore(LARGE_READ_COUNT_MAX)
        self.last_read = _NOTHING_ASKED
        """What the last large read asked for, and which client did (``RecentReads``)."""
        self.followed_count = 0
        """How many large reads are still kept for other readers; 0 if there seems to be one reader."""
        self.hole = (0, 0)
        """Offsets where the last read in vain has found nothing, up to the second one. Nothing will ever be there."""
        self._reading_count = 0
        """Reads in the pool, or about to be. The files stay open for them."""
        self._reads_done: asyncio.Future[None] | None = None
        self.polled_count = self.polled_size = 0
        """Messages in replies to polls, and their bytes."""

    def try_read(
        self, offset: int, count: int, size_max: int, buffer: ReadBuffer | None = None
    ) -> ReadResult | Waiting[ReadResult]:
        """Messages from ``offset`` on, as ``LogReader.read`` gives and raises; or what has to be waited for."""
        if self.past is None and self._verification is None:
            with suppress(BlockingIOError):
                # By position: Python 3.11 takes longer to pass arguments by name.
                return self.disk.read(offset, count, size_max, buffer, False)
        if self.past is not None:
            return self.past.try_read(self._log, self._try_verified, offset, count, size_max, buffer)
        return self._try_verified(offset, count, size_max, buffer)

    def _try_verified(
        self, offset: int, count: int, size_max: int, buffer: ReadBuffer | None
    ) -> ReadResult | Waiting[ReadResult]:
        """``try_read`` of the disk, after the segments that it reads are verified."""
        if self._verification is not None:
            return attempt(self._read_verified(self._verification, offset, count, size_max, buffer))
        return self._try_disk(offset, count, size_max, buffer)

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read, here or in the archive. Raises ``ArchiveFailure`` if it is not known."""
        return self._log.start_offset if self.past is None else self.past.start_offset(self._log)

    def after_holes(self, offset: int) -> int:
        """The first offset from ``offset`` on at which there may be a message. Raises ``ArchiveFailure``."""
        offset = max(offset, self.start_offset)
        first_offset, end_offset = self.hole
        return end_offset if first_offset <= offset < end_offset else offset

    async def offset_of_last(self, count: int) -> int:
        """The offset of the first of the newest ``count`` visible messages. Raises ``ArchiveFailure``."""
        log = self._log
        missing = 0 if self.past is None else count - log.count_from(log.start_offset)
        if self.past is not None and missing > 0:
            return await self.past.offset_of_last(log, missing)
        return await self._look_up(partial(self.disk.offset_of_last, count))

    def count_from(self, offset: int) -> int:
        """The number of visible messages from ``offset`` on, here and in the archive. Raises ``ArchiveFailure``."""
        count = self._log.count_from(offset)
        if self.past is not None and offset < self._log.start_offset:
            count += self.past.count_from(self._log, offset)
        return count

    async def read(self, offset: int, *, count: int, size_max: int, buffer: ReadBuffer | None = None) -> ReadResult:
        """``try_read``, for those who can wait."""
        found = self.try_read(offset, count, size_max, buffer)
        return await found if isinstance(found, Waiting) else found

    def _try_disk(
        self, offset: int, count: int, size_max: int, buffer: ReadBuffer | None
    ) -> ReadResult | Waiting[ReadResult]:
        read = partial(self.disk.read, offset, count, size_max, buffer)
        try:
            return read(wait=False)
        except LargeRead:
            return attempt(self.run(read, self._large_reads))
        except BlockingIOError:
            return attempt(self.run(read))

    async def _read_verified(
        self, verification: SegmentVerification, offset: int, count: int, size_max: int, buffer: ReadBuffer | None
    ) -> ReadResult:
        found = self._try_disk(offset, await self._verify(verification, offset, count), size_max, buffer)
        return await found if isinstance(found, Waiting) else found

    async def offset_at_time(self, timestamp: int) -> int:
        """The first offset whose message is not older than ``timestamp``. Raises ``ArchiveFailure``."""
        if self.past is not None and (found := await self.past.offset_at_time(self._log, timestamp)) is not None:
            return found
        return await self._look_up(partial(self.disk.offset_at_time, timestamp))

    async def time_at(self, offset: int) -> int | None:
        """When the message at ``offset``, or else the next one, was appended; None if there is none.

        Raises:
            StorageFailure: the disk cannot be read.
            ArchiveFailure: only the archive has it, and it cannot be read.
        """
        if self.past is not None and offset < self._log.start_offset:
            found = await self.past.time_at(self._log, offset)
            if found is not None:
                return found
        return await self._look_up(partial(self.disk.time_at, offset))

    async def _look_up(self, find: Callable[..., Found]) -> Found:
        with suppress(BlockingIOError):
            return find(wait=False)
        return await self.run(find)

    async def _verify(self, verification: SegmentVerification, offset: int, count: int) -> int:
        """Have the first segments of a read verified; return how many messages may be read before the next one."""
        async with self._verifying:
            while not verification.limit(offset, count):
                segment = verification.due_before(offset, count)
                if segment is None:
                    break
                try:
                    verification.note(segment, await self.run(partial(verification.verify, segment)))
                except StorageFailure as failure:
                    verification.give_up(segment, failure)
        if verification.is_done:
            self._verification = None
        return verification.limit(offset, count)

    async def advance_check(self, check: SegmentCheck, size: int) -> int:
        """``SegmentCheck.advance``, in the pool."""
        return await self.run(partial(check.advance, size))

    async def run(self, read: Callable[[], Found], turns: asyncio.Semaphore | None = None) -> Found:
        """Call ``read`` on a thread of the pool. The files stay open meanwhile."""
        self._reading_count += 1
        try:
            async with turns or nullcontext():
                return await asyncio.get_running_loop().run_in_executor(self._pool, read)
        finally:
            self._reading_count -= 1
            if self._reads_done is not None and not self._reading_count and not self._reads_done.done():
                self._reads_done.set_result(None)

    async def close(self) -> None:
        """Wait until no read needs the files any more."""
        if self._reading_count:
            self._reads_done = asyncio.get_running_loop().create_future()
            await self._reads_done
