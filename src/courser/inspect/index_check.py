"""Check an index file against its log: entries point to their frames, and a rebuild would give the same entries.

An index can be rebuilt, so damage to it loses nothing. Only the index of a sealed segment must exist and be complete.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from courser.inspect.findings import Finding, Severity
from courser.inspect.small_files import read_whole
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.index_entries import ROW, IndexEntries
from courser.storage.index_file import BLOCK_SIZE, BadIndex, scan_blocks, segment_seed
from courser.storage.scan import GoodBatch

_REMEDY = "rebuilt at next read"


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of an index file."""

    size: int
    rows: NDArray[np.void]
    interval: int
    covered_size: int
    problems: tuple[tuple[int, str], ...]
    """Block number and reason."""


class IndexCheck:
    """Observes the batches of the log in order, then reports problems of the index."""

    def __init__(
        self, file_system: FileSystem, path: Path, identity: PartitionIdentity, base_offset: int, *, is_sealed: bool
    ) -> None:
        self._path = path
        self._base_offset = base_offset
        self._is_sealed = is_sealed
        self._expected = IndexEntries(base_offset)
        self._wrong: list[tuple[int, int]] = []
        self._log_end = 0
        seed = segment_seed(identity, base_offset)
        self._contents = self._load(file_system, seed)
        if self._contents is not None and self._contents.problems:
            # The file may have been written at that moment.
            self._contents = self._load(file_system, seed)
        self._batch_positions = self._contents.rows["batch_position"] if self._contents is not None else None

    @property
    def size(self) -> int:
        """Bytes of the file; 0 if there is none."""
        return self._contents.size if self._contents is not None else 0

    def _load(self, file_system: FileSystem, seed: int) -> _Contents | None:
        try:
            data = bytearray(read_whole(file_system, self._path))
        except FileNotFoundError:
            return None
        rows: list[NDArray[np.void]] = [np.zeros(0, ROW)]
        problems: list[tuple[int, str]] = []
        interval = covered_size = 0
        for number, block in enumerate(scan_blocks(data, seed=seed, base_offset=self._base_offset)):
            if isinstance(block, BadIndex):
                problems.append((number, str(block)))
                continue
            interval = interval or block.interval
            covered_size = block.covered_size
            rows.append(block.entries.rows(0, block.entry_count))
        return _Contents(len(data), np.concatenate(rows), interval, covered_size, tuple(problems))

    def observe(self, batch: GoodBatch) -> None:
        """Check the entries of one batch."""
        frames = batch.frames
        self._log_end = batch.end_position
        contents = self._contents
        if contents is None or self._batch_positions is None or not contents.interval:
            return
        header = batch.header
        entries = self._expected.entries_of(header.base_offset, batch.position, frames, contents.interval)
        self._expected.add(entries, batch.position, header.base_timestamp)
        first, end = np.searchsorted(self._batch_positions, (batch.position, batch.position + 1))
        if first == end:
            return
        rows = contents.rows[first:end]
        numbers = rows["offset"].astype(np.int64) + (self._base_offset - header.base_offset)
        # The index knows only the first message of a batch that is compressed or encrypted.
        is_inside = (numbers >= 0) & (numbers < frames.count)
        places = frames.starts[np.clip(numbers, 0, frames.count - 1)] + (batch.position + BATCH_HEADER_SIZE)
        is_right = is_inside & (rows["frame_position"] == places) & (rows["timestamp"] == header.base_timestamp)
        self._wrong += [(int(first) + int(number), header.base_offset) for number in np.flatnonzero(~is_right)]

    def findings(self, *, sealed_size: int | None, is_log_whole: bool) -> Iterator[Finding]:
        """The findings, after the whole log was observed. ``sealed_size`` is None if the segment is not sealed."""
        contents = self._contents
        if contents is None:
            if self._is_sealed:
                yield self._finding(Severity.WARNING, f"the index is missing: {_REMEDY}")
            return
        # Only the next start reads the index of an open segment, and it verifies it against the log.
        severity = Severity.DAMAGE if self._is_sealed else Severity.WARNING
        for number, reason in contents.problems:
            position = number * BLOCK_SIZE
            yield self._finding(severity, f"index damage, {_REMEDY}: {reason}", position, position + BLOCK_SIZE)
        for number, offset in self._wrong[:1]:
            text = f"index damage, {_REMEDY}: entry {number} does not point to its message ({len(self._wrong)} in all)"
            yield self._finding(severity, text, first_offset=offset)
        if contents.problems or self._wrong:
            return
        if sealed_size is not None and contents.covered_size != sealed_size:
            covered = contents.covered_size or "an unknown number of"
            text = f"the index is stale: it covers {covered} bytes of {sealed_size}: {_REMEDY}"
            yield self._finding(Severity.WARNING, text)
        elif is_log_whole and not self._is_as_rebuilt(contents):
            yield self._finding(severity, f"index damage, {_REMEDY}: its entries differ from the log")

    def _is_as_rebuilt(self, contents: _Contents) -> bool:
        rows = contents.rows
        if not self._is_sealed:
            # Ignore entries of batches that were appended after the log was read.
            rows = rows[rows["batch_position"] < self._log_end]
        expected = self._expected.rows(0, len(self._expected))
        if not self._is_sealed:
            expected = expected[: len(rows)]
        return np.array_equal(rows, expected)

    def _finding(
        self,
        severity: Severity,
        reason: str,
        position: int | None = None,
        end_position: int | None = None,
        first_offset: int | None = None,
    ) -> Finding:
        return Finding(severity, "index", self._path, reason, position, end_position, first_offset)
