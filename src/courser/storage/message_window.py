"""The ids of a partition's newest messages: says which messages of a batch were stored before, and where.

The window is limited by count and age. Ids are in a ring, in the order of their offsets, and found through a hash table
of ring places with open addressing. All of it is in arrays, 48 to 64 bytes for an id, and a whole batch is looked up at
a time. A few ids are looked up one by one, because each operation on arrays takes as long as a lookup. The window grows
with the number of ids up to its limit.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from courser.configuration.key import setting
from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND
from courser.records import layout
from courser.records.frames import FrameLayout, frame_fields, layout_of

Words: TypeAlias = NDArray[np.uint64]
Numbers: TypeAlias = NDArray[np.int64]

NEW = -1
"""Instead of the offset of a message that was not stored before."""
REPEATED = -2
"""The same for one whose id an earlier message of the same batch has."""

FEW = 32
"""Messages of a batch whose ids are looked up one by one, at most."""
_CAPACITY_MIN = 256
_SLOTS_PER_ID = 4
"""Slots of the table per id. Half of them are used at most, by ids that are there or that were replaced."""
_MASK = 2**64 - 1
_unpack_id = struct.Struct("<QQ").unpack_from


@dataclass(frozen=True, slots=True)
class Deduplication:
    """How long the id of a message is remembered."""

    count_max: int = setting(
        "system.message_deduplication.max_entries",
        kinds.integer(1, 10_000_000),
        10_000,
        "ids that a partition remembers, at 48 to 64 bytes each",
    )
    age_max: int = setting(
        "system.message_deduplication.expiry",
        kinds.duration(SECOND),
        60 * SECOND,
        "how long a partition remembers an id",
    )
    """Microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageIds:
    """The ids of the messages of a batch, in halves."""

    low: Words
    high: Words

    def __len__(self) -> int:
        return len(self.low)

    def pick(self, numbers: Numbers) -> "MessageIds":
        """Only the ids of the messages with these numbers."""
        return MessageIds(self.low[numbers], self.high[numbers])


FewIds: TypeAlias = Sequence[tuple[int, int]]
"""The same of a small batch."""


class MessageWindow:
    """The remembered ids of one partition. For one thread."""

    def __init__(self, limits: Deduplication, seed: int) -> None:
        """``seed`` is random, so that nobody can choose ids that all have the same place in the table."""
        self._limits = limits
        low, high = (int(factor) | 1 for factor in np.random.default_rng(seed).integers(0, 2**63, 2))
        self._factors = low, high
        self._first = self._next = 0
        """The ids that are remembered, numbered in the order in which they came."""
        self._allocate(min(_CAPACITY_MIN, limits.count_max))

    def __len__(self) -> int:
        return self._next - self._first

    @property
    def size_in_memory(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in (self._low, self._high, self._offsets, self._times, self._table))

    # --- lookups ---

    def find(self, ids: MessageIds, now: int, start_offset: int) -> Numbers:
        """The offset of each message, or ``NEW``, or ``REPEATED``. The id 0 is always new.

        ``start_offset`` is where the partition begins: deleted messages are not known any more.
        """
        self._expire(now - self._limits.age_max, start_offset)
        found = np.full(len(ids), NEW, np.int64)
        hashes = self._hashes(ids)
        pending = np.flatnonzero(ids.low | ids.high)
        if _has_repeats(hashes):
            # Different hashes prove that the ids differ, so this is rare.
            pairs = np.stack((ids.low[pending], ids.high[pending]), axis=1)
            _, firsts, groups = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
            is_repeat = pending[firsts[groups.reshape(-1)]] != pending
            found[pending[is_repeat]] = REPEATED
            pending = pending[~is_repeat]
        slots, low, high = self._slots(hashes)[pending], ids.low[pending], ids.high[pending]
        while len(pending):
            entries = self._table[slots]
            places = entries - 1
            is_used = entries > 0
            is_same = (self._low[places] == low) & (self._high[places] == high) & is_used
            if is_same.any():
                is_same &= (places - self._first) % self._capacity < len(self)
                found[pending[is_same]] = self._offsets[places[is_same]]
            rest = np.flatnonzero(is_used & ~is_same)
            pending, low, high = pending[rest], low[rest], high[rest]
            slots = (slots[rest] + 1) & self._mask
        return found

    def has_none_of(self, ids: MessageIds | FewIds, now: int, start_offset: int) -> bool:
        """Whether ``find`` says ``NEW`` for all of them: nearly always."""
        if isinstance(ids, MessageIds):
            return bool((self.find(ids, now, start_offset) == NEW).all())
        self._expire(now - self._limits.age_max, start_offset)
        if len(ids) > 1 and len(set(ids)) < len(ids):
            # Those without an id are not alike.
            named = [pair for pair in ids if pair != (0, 0)]
            if len(set(named)) < len(named):
                return False
        return not any(self._has(low, high) for low, high in ids)

    def _has(self, low: int, high: int) -> bool:
        slot, table = self._slot(low, high), self._table_items
        while entry := table[slot]:
            place = entry - 1
            if self._low_items[place] == low and self._high_items[place] == high and low | high:
                is_live: bool = (place - self._first) % self._capacity < len(self)
                if is_live:
                    return True
            slot = (slot + 1) & self._mask
        return False

    def _hashes(self, ids: MessageIds) -> Words:
        low, high = self._factors
        mixed: Words = ids.low * np.uint64(low) ^ ids.high * np.uint64(high)
        return mixed ^ mixed >> np.uint64(32)

    def _slots(self, hashes: Words) -> Numbers:
        return (hashes & np.uint64(self._mask)).view(np.int64)

    def _slot(self, low: int, high: int) -> int:
        mixed = low * self._factors[0] & _MASK ^ high * self._factors[1] & _MASK
        return (mixed ^ mixed >> 32) & self._mask

    # --- changes ---

    def remember(self, ids: MessageIds | FewIds, first_offset: int, timestamp: int) -> None:
        """Messages with these ids were stored from ``first_offset`` on. The id 0 is not remembered."""
        if isinstance(ids, MessageIds):
            numbers = np.flatnonzero(ids.low | ids.high)[-self._limits.count_max :]
            if len(numbers):
                self._make_room(len(numbers))
                times = np.full(len(numbers), timestamp, np.int64)
                self._insert(ids.pick(numbers), first_offset + numbers, times)
            return
        named = [(first_offset + number, low, high) for number, (low, high) in enumerate(ids) if low | high]
        if named:
            named = named[-self._limits.count_max :]
            self._make_room(len(named))
            for offset, low, high in named:
                self._insert_one(low, high, offset, timestamp)

    def _make_room(self, count: int) -> None:
        if len(self) + count > self._capacity < self._limits.count_max:
            self._rebuild(min(max(2 * self._capacity, len(self) + count), self._limits.count_max))
        if 2 * (self._used_count + count) > len(self._table):
            self._rebuild(self._capacity)

    def _insert_one(self, low: int, high: int, offset: int, timestamp: int) -> None:
        place, slot, table = self._next % self._capacity, self._slot(low, high), self._table_items
        self._low_items[place], self._high_items[place] = low, high
        self._offset_items[place], self._time_items[place] = offset, timestamp
        self._note_inserted(1)
        while table[slot]:
            slot = (slot + 1) & self._mask
        table[slot] = place + 1

    def _note_inserted(self, count: int) -> None:
        self._next += count
        self._first = max(self._first, self._next - self._capacity)
        self._used_count += count

    def _insert(self, ids: MessageIds, offsets: Numbers, times: Numbers) -> None:
        count, table = len(ids), self._table
        places = np.arange(self._next, self._next + count) % self._capacity
        self._low[places], self._high[places] = ids.low, ids.high
        self._offsets[places], self._times[places] = offsets, times
        self._note_inserted(count)
        slots, entries = self._slots(self._hashes(ids)), places + 1
        while len(slots):
            is_free = table[slots] == 0
            table[slots[is_free]] = entries[is_free]
            # Of several that want one slot, the last one gets it.
            rest = np.flatnonzero(table[slots] != entries)
            slots, entries = (slots[rest] + 1) & self._mask, entries[rest]

    def _expire(self, time_min: int, start_offset: int) -> None:
        """Forget what is too old or deleted. Times and offsets grow from each id to the next."""
        while self._first < self._next:
            place = self._first % self._capacity
            if self._time_items[place] >= time_min and self._offset_items[place] >= start_offset:
                return
            end = min(self._capacity, place + len(self))
            old = int(np.searchsorted(self._times[place:end], time_min))
            deleted = int(np.searchsorted(self._offsets[place:end], start_offset))
            self._first += max(old, deleted, 1)

    def _rebuild(self, capacity: int) -> None:
        """Move to arrays of another size, or to a table without ids that were replaced."""
        places = np.arange(self._first, self._next) % self._capacity
        ids = MessageIds(self._low[places], self._high[places])
        offsets, times = self._offsets[places], self._times[places]
        self._allocate(capacity)
        self._first = self._next = 0
        self._insert(ids, offsets, times)

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        self._low, self._high = np.zeros(capacity, np.uint64), np.zeros(capacity, np.uint64)
        self._offsets, self._times = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        self._table = np.zeros(1 << (_SLOTS_PER_ID * capacity - 1).bit_length(), np.int32)
        """Places in the ring, counted from 1; 0 is free."""
        self._mask = len(self._table) - 1
        self._used_count = 0
        # The same memory, for single items: a third of the time.
        self._low_items, self._high_items = memoryview(self._low.data), memoryview(self._high.data)
        self._offset_items, self._time_items = memoryview(self._offsets.data), memoryview(self._times.data)
        self._table_items = memoryview(self._table.data)


def _has_repeats(hashes: Words) -> bool:
    ordered = np.sort(hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


def message_ids(body: memoryview, frames: FrameLayout) -> MessageIds:
    """The ids of a batch, from its frames."""
    low, high = (
        frame_fields(body, frames, layout.FRAME_ID_POSITION + half, "<u8").astype(np.uint64) for half in (0, 8)
    )
    return MessageIds(low, high)


def few_ids(body: memoryview, frames: FrameLayout) -> FewIds:
    """The ids in a small batch."""
    size, position = frames.frame_size, layout.FRAME_ID_POSITION
    starts = range(0, frames.count * size, size) if size else frames.starts.tolist()
    return [_unpack_id(body, start + position) for start in starts]


def ids_in(records: memoryview) -> Iterator[tuple[MessageIds, int, int]]:
    """Of each batch in what a read returns: the ids, the first offset, and the time of the append."""
    position = 0
    while position < len(records):
        _, base_offset, timestamp, _, length, _, count = layout.WIRE_HEADER.unpack_from(records, position)
        body = records[position + layout.BATCH_HEADER_SIZE : position + length]
        start = layout.FRAME_OFFSET_DELTA_POSITION
        number = int.from_bytes(body[start : start + 4], "little")
        yield message_ids(body, layout_of(body, count)), base_offset + number, timestamp
        position += length
