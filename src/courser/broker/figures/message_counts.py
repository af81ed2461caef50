"""How many messages follow an offset: asked for each consumer group of a topic, over segments that may be many.

A topic with a thousand groups asks a partition a thousand times. Its segments are added up once, and looked up then.
"""

import contextlib
from bisect import bisect_right

from courser.broker.partition.partition import Partition
from courser.broker.partition.waiting import Steps
from courser.errors import CourserError


class MessageCounts:
    """What one walk over the groups of a topic asks for. It describes the moment when it was first asked."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._tables: dict[Partition, _Table] = {}

    async def count_from(self, partition: Partition, offset: int) -> int:
        """The number of visible messages from ``offset`` on, as ``PartitionReader.count_from`` has it."""
        segments = partition.log.segments
        if segments and offset >= segments[-1].base_offset:
            # Most groups are here.
            return partition.reader.count_from(offset)
        table = self._tables.get(partition)
        if table is None:
            table = self._tables[partition] = await self._table_of(partition)
        return table.count_from(offset)

    async def _table_of(self, partition: Partition) -> "_Table":
        table, end_offset = _Table(), partition.log.visible_end
        # As they are before the first pause.
        segments = partition.log.segments
        if partition.reader.past is not None:
            # If the archive cannot be reached, what is here can be counted.
            with contextlib.suppress(CourserError):
                for piece in partition.reader.past.pieces(partition.log):
                    await self._steps.take()
                    table.add(piece.first_offset, piece.end_offset, piece.message_count)
        for segment in segments:
            await self._steps.take()
            table.add(segment.base_offset, min(segment.end_offset, end_offset), segment.message_count)
        return table


class _Table:
    """Sums over segments, oldest first."""

    def __init__(self) -> None:
        self._first_offsets: list[int] = []
        self._end_offsets: list[int] = []
        self._counts: list[int] = []
        self._sums = [0]
        """Before each segment, and at the end."""

    def add(self, first_offset: int, end_offset: int, message_count: int) -> None:
        """Add the next segment. If none of it is visible yet, its end is not above its first offset."""
        end_offset = max(end_offset, first_offset)
        count = min(end_offset - first_offset, message_count)
        self._first_offsets.append(first_offset)
        self._end_offsets.append(end_offset)
        self._counts.append(count)
        self._sums.append(self._sums[-1] + count)

    def count_from(self, offset: int) -> int:
        """The messages from ``offset`` on. In a condensed segment the number is an upper bound."""
        number = bisect_right(self._end_offsets, offset)
        if number == len(self._end_offsets):
            return 0
        left = min(self._end_offsets[number] - max(offset, self._first_offsets[number]), self._counts[number])
        return left + self._sums[-1] - self._sums[number + 1]
