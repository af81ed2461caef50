"""The order of a scan: which partition is looked at next, and which messages can be returned already.

A partition is looked at piece by piece, from one end. The time that was reached there is its *frontier*: if the newest
messages are wanted first, nothing that follows in that partition is newer. A message is returned as soon as no other
partition can have an earlier one in this order.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from courser.api.scans import Hit, ScanOrder


@dataclass(slots=True)
class Row:
    """What is left to look at in a partition: offsets from ``first_offset`` up to but not including ``end_offset``."""

    partition_id: int
    first_offset: int
    end_offset: int
    frontier: int
    """The time of the next message."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.first_offset >= self.end_offset


@dataclass(order=True, slots=True)
class _Held:
    """A hit that is not returned yet; the least is returned first."""

    rank: int
    partition_id: int
    place: int
    hit: Hit = field(compare=False)


class Merge:
    """Brings the hits of several partitions into one order."""

    def __init__(self, rows: Mapping[int, Row], order: ScanOrder, count: int) -> None:
        """``count`` hits are wanted."""
        self.rows = rows
        self._sign = -1 if order is ScanOrder.NEWEST else 1
        self._held: list[_Held] = []
        """A heap."""
        self._passed_over: dict[int, int] = {}
        """By partition: the first, in this order, of the hits for which there was no room."""
        self._count = count
        self.found_count = 0
        """Hits that were returned."""

    @property
    def left_count(self) -> int:
        """How many more hits are wanted."""
        return self._count - self.found_count

    @property
    def is_full(self) -> bool:
        """Whether as many hits as wanted were returned."""
        return not self.left_count

    @property
    def is_complete(self) -> bool:
        """Whether everything was looked at and returned."""
        return self.next_row() is None and not self._held and not self._passed_over

    def next_row(self) -> Row | None:
        """The partition to look at next; None if all are done."""
        rows = (row for row in self.rows.values() if not row.is_done)
        return min(rows, key=lambda row: (self._sign * row.frontier, row.partition_id), default=None)

    def add(self, hit: Hit) -> None:
        """A message was found."""
        heapq.heappush(self._held, _Held(self._sign * hit.timestamp, hit.partition_id, self._sign * hit.offset, hit))
        if len(self._held) > 2 * self.left_count:
            # More are never returned. A later scan finds the rest again.
            held = sorted(self._held)
            self._held = held[: self.left_count]
            for other in held[self.left_count :]:
                self._put_back(self._passed_over, other.hit)

    def ready(self) -> Iterator[Hit]:
        """The hits that can be returned now, in their order."""
        limit = min((self._sign * row.frontier for row in self.rows.values() if not row.is_done), default=None)
        while self._held and not self.is_full and (limit is None or self._held[0].rank <= limit):
            self.found_count += 1
            yield heapq.heappop(self._held).hit

    def positions(self) -> dict[int, int]:
        """Where a later scan continues, by partition: it finds everything that was not returned."""
        places = {
            partition_id: row.end_offset if self._sign < 0 else row.first_offset
            for partition_id, row in self.rows.items()
        }
        for held in self._held:
            self._put_back(places, held.hit)
        for partition_id, offset in self._passed_over.items():
            places[partition_id] = self._earlier(places[partition_id], offset)
        return places

    def _put_back(self, places: dict[int, int], hit: Hit) -> None:
        """Let a later scan find a hit."""
        offset = hit.offset + 1 if self._sign < 0 else hit.offset
        places[hit.partition_id] = self._earlier(places.get(hit.partition_id, offset), offset)

    def _earlier(self, one: int, other: int) -> int:
        return max(one, other) if self._sign < 0 else min(one, other)
