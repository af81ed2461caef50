"""The entries of a segment's index, in memory: find a message by its offset or by its time.

The index is sparse: the first frame that begins in each *cell* of the log, a stretch of ``interval`` bytes, has an
entry. So the entry at or before a message is less than one interval away from it, inside a large batch too. The rule
looks at nothing but positions: an index that is built again from the log comes out the same.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from courser.records.frame_walk import first_in_cells
from courser.records.frames import FrameLayout
from courser.records.layout import BATCH_HEADER_SIZE

ROW = np.dtype(
    [
        ("offset", "<u4"),  # relative to the segment's first offset
        ("frame_position", "<u4"),
        ("batch_position", "<u4"),
        ("reserved", "<u4"),
        ("timestamp", "<u8"),
    ]
)
"""An entry on disk."""

BatchEntries: TypeAlias = tuple[bytes, bytes, int]
"""Of one batch: offsets from the segment's first on and positions of frames, 32 bits each; the last cell."""


class IndexEntry(NamedTuple):
    """A message that the index knows."""

    offset: int
    frame_position: int
    """Where its frame begins in the log."""
    batch_position: int
    """Where its batch begins in the log."""
    timestamp: int
    """The time of its batch."""


class IndexEntries:
    """Entries in offset order, a column each. One thread adds; any number may look up meanwhile.

    A lookup uses only the first ``len(self)`` rows, and that number grows last.
    """

    __slots__ = ("_base_offset", "_batch_positions", "_count", "_frame_positions", "_offsets", "_times", "last_cell")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._offsets = array("I")
        self._frame_positions = array("I")
        self._batch_positions = array("I")
        self._times = array("Q")
        self._count = 0
        self.last_cell = -1
        """The last one that has a first frame."""

    def __len__(self) -> int:
        return self._count

    @property
    def first_offset(self) -> int | None:
        """The offset of the first entry."""
        return self._offsets[0] + self._base_offset if self._count else None

    def entries_of(self, base_offset: int, position: int, frames: FrameLayout, interval: int) -> BatchEntries:
        """The entries of a batch that will lie at ``position``, behind all that was added before."""
        return first_in_cells(
            frames.packed_starts,
            frames.frame_size,
            frames.count,
            position + BATCH_HEADER_SIZE,
            base_offset - self._base_offset,
            interval,
            self.last_cell,
        )

    def add(self, entries: BatchEntries, position: int, timestamp: int) -> None:
        """Take note of a batch that lies at ``position``."""
        offsets, frame_positions, self.last_cell = entries
        if offsets:
            count = len(offsets) // 4
            self._offsets.frombytes(offsets)
            self._frame_positions.frombytes(frame_positions)
            self._batch_positions.frombytes(position.to_bytes(4, "little") * count)
            self._times.frombytes(timestamp.to_bytes(8, "little") * count)
            self._count += count

    def at_offset(self, offset: int) -> IndexEntry | None:
        """The last entry at or before ``offset``."""
        return self._entry(bisect_right(self._offsets, offset - self._base_offset, 0, self._count) - 1)

    def before_time(self, timestamp: int) -> IndexEntry | None:
        """The last entry that is older than ``timestamp``: the first message not older lies behind it."""
        return self._entry(bisect_left(self._times, timestamp, 0, self._count) - 1)

    def _entry(self, number: int) -> IndexEntry | None:
        if number < 0:
            return None
        return IndexEntry(
            self._offsets[number] + self._base_offset,
            self._frame_positions[number],
            self._batch_positions[number],
            self._times[number],
        )

    def rows(self, start: int, end: int) -> NDArray[np.void]:
        """Entries ``start`` to ``end`` as they are stored."""
        rows = np.zeros(end - start, ROW)
        self.copy_rows(rows, start, end)
        return rows

    def copy_rows(self, rows: NDArray[np.void], start: int, end: int) -> None:
        """Write entries ``start`` to ``end`` into ``rows``, of whatever shape."""
        for name, column in (
            ("offset", self._offsets),
            ("frame_position", self._frame_positions),
            ("batch_position", self._batch_positions),
            ("timestamp", self._times),
        ):
            rows[name] = np.asarray(column[start:end]).reshape(rows.shape)

    def add_rows(self, rows: NDArray[np.void]) -> None:
        """Append entries that were stored."""
        self._offsets.frombytes(rows["offset"].tobytes())
        self._frame_positions.frombytes(rows["frame_position"].tobytes())
        self._batch_positions.frombytes(rows["batch_position"].tobytes())
        self._times.frombytes(rows["timestamp"].tobytes())
        self._count = len(self._times)

    def below(self, position: int) -> "IndexEntries":
        """A copy with the entries of batches that begin below ``position``."""
        kept = IndexEntries(self._base_offset)
        kept.add_rows(self.rows(0, bisect_left(self._batch_positions, position, 0, self._count)))
        return kept

    @property
    def last_batch_position(self) -> int:
        """Where the batch of the last entry begins; 0 if there is none."""
        return self._batch_positions[-1] if self._count else 0

    def continue_at(self, interval: int) -> None:
        """Make ready to add batches behind entries that were stored: every cell with a frame in it has an entry."""
        self.last_cell = self._frame_positions[-1] // interval if self._count else -1

    def without(self, count: int) -> "IndexEntries":
        """A copy that lacks the first ``count`` entries. It goes on where this one stands."""
        rest = IndexEntries(self._base_offset)
        rest.add_rows(self.rows(count, self._count))
        rest.last_cell = self.last_cell
        return rest

    @property
    def size_in_memory(self) -> int:
        """Bytes that the columns take."""
        columns = (self._offsets, self._frame_positions, self._batch_positions, self._times)
        return sum(column.itemsize * len(column) for column in columns)
