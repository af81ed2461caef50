"""One read for several readers of a partition: those that follow its end ask for the same messages in turn.

What was read and verified for the first of them is kept for a moment, and the others get the same bytes. Nothing of a
partition is kept until two readers have asked for the same: a single reader would lose the memory that is still in the
caches of the processor, and gain nothing.
"""

import asyncio
from dataclasses import dataclass

from courser.broker.access.sessions import Session
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_reader import Question
from courser.broker.partition.read_buffers import ReadBuffers
from courser.storage.read_result import LeasedBuffer, ReadResult

_MIB = 1024 * 1024
_SHARED_SIZE_MAX = 2 * _MIB
"""Bytes of one result."""
_HELD_SIZE_MAX = 8 * _MIB
"""Bytes of memory of all results: more would not stay in the caches of the processor."""
_HELD_PART = 8
"""At most one eighth of the memory for replies."""
_HOLD_TIME = 0.05
"""Seconds that a result is kept after its last reader. Readers that are further apart do not ask for the same."""
_FOLLOWED_COUNT = 8
"""Results in a row that are kept without anybody asking for them again, before a partition counts as having one
reader."""

_Reading = tuple[Partition, Question]
"""What was read: where, and what was asked for."""


@dataclass(slots=True)
class _Kept:
    """A result, and what has to be true for as long as it counts."""

    result: ReadResult
    client_id: int
    """For whom it was read."""
    buffer: LeasedBuffer
    visible_end: int
    """How far the partition could be read then."""
    is_used: bool = True
    """Whether somebody got it since the last look."""

    def holds_for(self, partition: Partition) -> bool:
        """Whether a read would give the same now."""
        log, result = partition.log, self.result
        return (
            not partition.is_unavailable
            and log.start_offset <= result.first_offset
            # If the end was reached, a reader must see what has arrived since.
            and (result.next_offset < self.visible_end or log.visible_end == self.visible_end)
        )


class RecentReads:
    """Results of reads that others may ask for. Used on one event loop."""

    def __init__(self, buffers: ReadBuffers) -> None:
        self._buffers = buffers
        self._kept: dict[_Reading, _Kept] = {}
        """The oldest first."""
        self._held_size = 0
        self._held_size_max = min(_HELD_SIZE_MAX, buffers.ledger.size_max // _HELD_PART)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_holding(self) -> bool:
        """Whether memory is kept for readers that may come."""
        return bool(self._kept)

    def find(self, session: Session, partition: Partition, question: Question) -> ReadResult | None:
        """What was read for another reader. Its memory is leased to this session, too. None: it has to be read."""
        kept = self._kept.get((partition, question)) if self._kept else None
        if kept is None:
            return None
        if not kept.holds_for(partition):
            self._let_go((partition, question))
            return None
        if kept.client_id == session.client_id:
            return None
        self._buffers.share(session, kept.buffer)
        kept.is_used = True
        partition.reader.followed_count = _FOLLOWED_COUNT
        return kept.result

    def note(
        self, session: Session, partition: Partition, question: Question, result: ReadResult, visible_end: int
    ) -> None:
        """A large read for a session, to whom its memory is leased. It is kept if others are likely to ask for it.

        ``visible_end`` is how far the partition could be read when the read began.
        """
        if result.size > _SHARED_SIZE_MAX or result.skipped:
            return
        asked = question, session.client_id
        if partition.reader.followed_count:
            partition.reader.followed_count -= 1
            self._keep(session, (partition, question), result, visible_end)
        elif partition.reader.last_read[0] == question and partition.reader.last_read != asked:
            partition.reader.followed_count = _FOLLOWED_COUNT
        partition.reader.last_read = asked

    def _keep(self, session: Session, reading: _Reading, result: ReadResult, visible_end: int) -> None:
        if reading in self._kept:
            # Read by two at the same time, each in a thread.
            return
        buffer = self._buffers.hold(session)
        if buffer is None:
            return
        if buffer.capacity > self._held_size_max:
            # A small result in a large buffer that was used before: it would push out all others, and then itself.
            self._buffers.release(buffer)
            return
        self._kept[reading] = _Kept(result, session.client_id, buffer, visible_end)
        self._held_size += buffer.capacity
        while self._held_size > self._held_size_max:
            self._let_go(next(iter(self._kept)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_HOLD_TIME, self._look)

    def _let_go(self, reading: _Reading) -> None:
        buffer = self._kept.pop(reading).buffer
        self._held_size -= buffer.capacity
        self._buffers.release(buffer)

    def _look(self) -> None:
        """Let go of what nobody asked for since the last look."""
        self._timer = None
        for reading, kept in list(self._kept.items()):
            if kept.is_used:
                kept.is_used = False
            else:
                self._let_go(reading)
        if self._kept:
            self._timer = asyncio.get_running_loop().call_later(_HOLD_TIME, self._look)
