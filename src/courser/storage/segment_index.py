"""The index of one segment, wherever its entries are: in memory, on disk, or some here and some there.

Derived data. The log is the authority: an entry only says where to look, and the reader checks what it finds there.
"""

from enum import Enum

from courser.model.buffers import Buffer
from courser.records.frames import FrameLayout
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import File
from courser.storage.index_entries import BatchEntries, IndexEntries, IndexEntry
from courser.storage.index_file import (
    BLOCK_SIZE,
    BadIndex,
    IndexFile,
    encode_blocks,
    entries_per_block,
    segment_seed,
)


class IndexCache(Enum):
    """Which indexes stay in memory: `system.segment.cache_indexes`."""

    ALL = "all"
    OPEN_SEGMENT = "open_segment"
    NONE = "none"


class SegmentIndex:
    """Entries on file followed by entries in memory.

    The partition's owner adds and flushes. Lookups may come from other threads: what they need is replaced in one
    assignment, never changed in place.
    """

    __slots__ = (
        "_base_offset",
        "_entries",
        "_entries_per_block",
        "_file",
        "_flushed_block_count",
        "_interval",
        "_seed",
        "block_size",
        "is_partial",
    )

    def __init__(
        self, identity: PartitionIdentity, base_offset: int, interval: int, block_size: int = BLOCK_SIZE
    ) -> None:
        self._base_offset = base_offset
        self.block_size = block_size
        """Bytes of a block in the file."""
        self._entries_per_block = entries_per_block(block_size)
        self._interval = interval
        self._seed = segment_seed(identity, base_offset)
        self._entries = IndexEntries(base_offset)
        self._file: IndexFile | None = None
        self._flushed_block_count = 0
        self.is_partial = False
        """Whether the beginning was on file only, and is lost: it is then written no more, but built again."""

    def entries_of(self, base_offset: int, position: int, frames: FrameLayout) -> BatchEntries | None:
        """What the index would hold of the next batch; None if it is small, and a neighbour stands for it."""
        entries, interval = self._entries, self._interval
        if frames.count == 1 and (position + BATCH_HEADER_SIZE) // interval == entries.last_cell:
            return None
        return entries.entries_of(base_offset, position, frames, interval)

    def add(self, entries: BatchEntries, position: int, timestamp: int) -> None:
        """The next batch is written."""
        self._entries.add(entries, position, timestamp)

    def add_batch(self, base_offset: int, position: int, timestamp: int, frames: FrameLayout) -> None:
        """Take note of the next batch, which is written."""
        entries = self.entries_of(base_offset, position, frames)
        if entries is not None:
            self._entries.add(entries, position, timestamp)

    def at_offset(self, offset: int) -> IndexEntry | None:
        """The last entry at or before ``offset``. Raises ``BadIndex``."""
        file, entries = self._file, self._entries
        return entries.at_offset(offset) or (file.at_offset(offset) if file is not None else None)

    def before_time(self, timestamp: int) -> IndexEntry | None:
        """The last entry older than ``timestamp``. Raises ``BadIndex``."""
        file, entries = self._file, self._entries
        return entries.before_time(timestamp) or (file.before_time(timestamp) if file is not None else None)

    @property
    def interval(self) -> int:
        """Bytes of log that one entry stands for."""
        return self._interval

    @property
    def size_in_memory(self) -> int:
        """Bytes that the entries in memory take."""
        return self._entries.size_in_memory

    # --- writing ---

    def unflushed(self, block_count: int | None = None, *, covered_size: int | None = None) -> tuple[int, Buffer]:
        """Where in the file to write, and what: so many of the full blocks not yet written, or all, closing the index.

        May run on another thread than the one that adds batches, as long as that one flushes nothing meanwhile.
        """
        # In this order: a reader that finds the file damaged says so before it drops it.
        has_file = self._file is not None
        if self.is_partial:
            return 0, b""
        first_entry = 0 if has_file else self._flushed_block_count * self._entries_per_block
        data = encode_blocks(
            self._entries,
            first_entry=first_entry,
            end_entry=None if block_count is None else first_entry + block_count * self._entries_per_block,
            first_block=self._flushed_block_count,
            seed=self._seed,
            base_offset=self._base_offset,
            interval=self._interval,
            covered_size=covered_size,
            block_size=self.block_size,
        )
        return self._flushed_block_count * self.block_size, data

    @property
    def full_block_count(self) -> int:
        """Blocks that could be flushed before the segment is sealed."""
        if self.is_partial:
            return 0
        flushed_in_memory = 0 if self._file is not None else self._flushed_block_count * self._entries_per_block
        return (len(self._entries) - flushed_in_memory) // self._entries_per_block

    def note_flushed(self, block_count: int, file: File | None) -> None:
        """``block_count`` more blocks are on file. With ``file`` their entries leave the memory."""
        self._flushed_block_count += block_count
        if file is None:
            return
        old = self._file
        if old is not None:
            # It is the same file, and somebody may be reading it.
            file.close()
            file = old.file
        in_memory = block_count if self._file is not None else self._flushed_block_count
        count = min(in_memory * self._entries_per_block, len(self._entries))
        # First the file, then the shorter memory: a lookup in between finds an entry twice, never not at all.
        self._file = self._index_file(file, self._flushed_block_count)
        self._entries = self._entries.without(count)

    def _index_file(self, file: File, block_count: int) -> IndexFile:
        return IndexFile(
            file,
            seed=self._seed,
            base_offset=self._base_offset,
            block_count=block_count,
            block_size=self.block_size,
        )

    # --- at start ---

    def restore(self, file: File, log_size: int) -> int:
        """Take from the file of an open segment what it says of the log below ``log_size``, which was synced.

        Return the position of the batch from which on the log has to be read again.
        """
        entries = IndexEntries(self._base_offset)
        index_file = self._index_file(file, file.size() // self.block_size)
        is_complete = False
        for number in range(index_file.block_count):
            try:
                block = index_file.block(number)
            except BadIndex:
                break
            if block.interval != self._interval:
                break
            entries.add_rows(block.entries.rows(0, block.entry_count))
            is_complete = block.covered_size == log_size
            if block.entry_count < self._entries_per_block:
                # The last one of an earlier session; what follows it was meant to follow its successor.
                break
        if not is_complete:
            entries = entries.below(log_size)
            # The batch of the last entry may have more entries that were not written yet.
            log_size = entries.last_batch_position
            entries = entries.below(log_size)
        entries.continue_at(self._interval)
        self._entries = entries
        self._flushed_block_count = len(entries) // self._entries_per_block
        return log_size

    def drop_file(self) -> None:
        """What is on file is damaged: do without it. Older messages are then found by walking."""
        file, self._file = self._file, None
        self.is_partial = self.is_partial or file is not None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the file. Whoever still needs it gets ``BadIndex``."""
        if self._file is not None:
            self._file.close()

    @property
    def flushed_size(self) -> int:
        """Bytes of the file that hold blocks which need not be written again."""
        return self._flushed_block_count * self.block_size

    def use_file(self, file: File, covered_size: int, *, into_memory: bool) -> None:
        """Take the index of a sealed segment from its file. Raises ``BadIndex`` if it is not exactly that."""
        index_file = self._index_file(file, (file.size() + self.block_size - 1) // self.block_size)
        index_file.check_complete(covered_size)
        self._flushed_block_count = index_file.block_count
        if into_memory:
            self._entries = index_file.load()
        else:
            self._file = index_file
            self._entries = IndexEntries(self._base_offset)
