"""Messages from the file of a segment: batches as they lie there, their hashes checked on the way.

The file may go away at any moment, because the server deletes old segments: then another place is asked. It is never
written to. An open segment may be read as well, up to the size that it had at planning.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from courser.records import layout
from courser.records.stored_header import BadBatch, PartitionIdentity, StoredHeader, check_body, read_header
from courser.spark.errors import ReadFailed
from courser.spark.places import NotHere, Piece
from courser.storage.durable_files import copy_range
from courser.storage.files import File, read_into
from courser.storage.index_file import BLOCK_SIZE, BadIndex, IndexFile, segment_seed
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import index_path, log_path
from courser.storage.scan import find_batch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """One segment of one partition."""

    directory: str
    """Of the partition."""
    identity: PartitionIdentity
    base_offset: int
    size: int
    """Bytes of batches at planning; there may be more by now, or zeros."""
    read_size: int
    """Bytes read at a time."""
    verify: bool
    """Whether bodies are hashed as well as headers."""
    skip_corrupt: bool
    quarantine: str | None
    """Folder to which damaged bytes are copied before they are skipped."""

    @property
    def path(self) -> Path:
        """Of the batches."""
        return log_path(Path(self.directory), self.base_offset)

    def pieces(self, partition: int, start: int, end: int) -> Iterator[Piece]:
        """See ``Place``. Raises ``ReadFailed`` for damage, unless it is to be skipped."""
        assert partition == self.identity.partition_id, "a segment belongs to one partition"
        try:
            file = LocalFileSystem().open(self.path)
        except OSError as error:
            raise NotHere(f"{self.path}: {error.strerror or error}") from error
        try:
            yield from _Walk(self, file, start, end).pieces()
        except OSError as error:
            raise NotHere(f"{self.path}: {error.strerror or error}") from error
        finally:
            file.close()


class _Walk:
    """One pass over a part of a segment."""

    def __init__(self, place: SegmentPlace, file: File, start: int, end: int) -> None:
        self._place = place
        self._file = file
        self._start = start
        self._end = end
        self._buffer = np.empty(place.read_size, np.uint8).data
        self._batch_size = 0
        """Bytes of the largest batch of the last look; 0: not known yet."""
        self._wanted = 0
        """Bytes that the last look asked for."""
        self._position, self._offset = self._begin()

    def _begin(self) -> tuple[int, int]:
        """Where the batch begins that holds the first message, or one before it; and its offset, if that is known."""
        place = self._place
        if self._start == place.base_offset:
            return 0, place.base_offset
        try:
            file = LocalFileSystem().open(index_path(Path(place.directory), place.base_offset))
        except OSError:
            return 0, place.base_offset
        try:
            index = IndexFile(
                file,
                seed=segment_seed(place.identity, place.base_offset),
                base_offset=place.base_offset,
                block_count=file.size() // BLOCK_SIZE,
            )
            entry = index.at_offset(self._start) if index.block_count else None
        except BadIndex as error:
            # It is only a way to begin quickly.
            _log.warning("%s cannot be used: %s", file.path, error)
            return 0, place.base_offset
        finally:
            file.close()
        # The offset of the batch is below that of the entry, if the entry is not its first message.
        return (0, place.base_offset) if entry is None else (entry.batch_position, -1)

    def pieces(self) -> Iterator[Piece]:
        while self._position < self._place.size:
            filled = self._fill()
            first, last, is_over = self._good_batches(filled)
            if last > first:
                yield Piece(self._buffer[first:last], min(self._offset, self._end))
            if is_over:
                if last == first:
                    # Nothing more is wanted, or nothing more is good.
                    yield Piece(self._buffer[:0], min(self._offset, self._end))
                return

    def _fill(self) -> int:
        """Read about as much as is wanted at a time: whole batches, as far as one can guess, none of them twice."""
        size = self._batch_size
        guess = max(round(self._place.read_size / size), 1) * size if size else self._place.read_size
        self._wanted = wanted = min(guess, self._place.size - self._position)
        if wanted > len(self._buffer):
            self._buffer = np.empty(wanted, np.uint8).data
        return read_into(self._file, self._position, self._buffer[:wanted])

    def _good_batches(self, filled: int) -> tuple[int, int, bool]:
        """Where the wanted batches in the buffer begin and end, and whether the range ends with them.

        Moves on behind them; grows the buffer instead if the first batch does not fit.
        """
        at = first = largest = 0
        while at + layout.BATCH_HEADER_SIZE <= filled:
            try:
                header = self._header(at)
                if header.base_offset >= self._end:
                    return first, at, True
                behind = at + header.stored_length
                if behind > filled:
                    break
                is_wanted = header.end_offset > self._start
                if is_wanted and self._place.verify:
                    check_body(header, self._buffer[at + layout.BATCH_HEADER_SIZE : behind])
            except BadBatch as error:
                if at > first:
                    # What is good comes first; the next look begins with the bad one.
                    return first, at, False
                return 0, 0, self._pass_over(error)
            at = behind
            first = first if is_wanted else at
            largest = max(largest, header.stored_length)
            self._offset = header.end_offset
            self._position += header.stored_length
        if at == 0:
            return 0, 0, self._grow(filled)
        self._batch_size = largest
        return first, at, self._offset >= self._end

    def _header(self, at: int) -> StoredHeader:
        header = read_header(self._buffer, at, self._place.identity)
        if self._offset >= 0 and header.base_offset != self._offset:
            raise BadBatch(f"the batch begins at offset {header.base_offset} where {self._offset} is expected")
        return header

    def _grow(self, filled: int) -> bool:
        """Ask for a batch that is larger than what was read. Returns whether the range ends here."""
        try:
            if filled < layout.BATCH_HEADER_SIZE:
                raise BadBatch(f"{filled} bytes are less than a batch header")
            size = self._header(0).stored_length
            if self._position + size > self._place.size:
                raise BadBatch("the file ends inside the batch")
        except BadBatch as error:
            return self._pass_over(error)
        if size <= self._wanted:
            return self._pass_over(BadBatch("the file ends inside the batch"))
        self._batch_size = size
        return False

    def _pass_over(self, error: BadBatch) -> bool:
        """Damage at the position. Goes to the next good batch, if that is allowed; returns whether there is none."""
        place = self._place
        offset = self._offset if self._offset >= 0 else self._start
        where = f"{place.path} is damaged at byte {self._position}, where offset {offset} is expected: {error}"
        if not place.skip_corrupt:
            raise ReadFailed(
                f"{where}; `courser inspect verify` says what else is damaged, and the option onCorrupt=skip goes on"
            )
        found = find_batch(self._file, place.identity, start=self._position, end=place.size, offset=offset)
        self._copy_aside(place.size if found is None else found[0])
        if found is None:
            _log.error("%s; offsets %d to %d are skipped", where, offset, self._end - 1)
            self._offset = self._end
            self._position = place.size
            return True
        self._position, header = found
        _log.error("%s; offsets %d to %d are skipped", where, offset, header.base_offset - 1)
        self._offset = header.base_offset
        return False

    def _copy_aside(self, end: int) -> None:
        """Keep the damaged bytes, from the position on, under a name that says where they lay."""
        place = self._place
        if place.quarantine is None:
            return
        identity, files = place.identity, LocalFileSystem()
        name = f"{identity.topic_uuid.hex()}-{identity.partition_id}-{place.base_offset:020d}-{self._position}.damaged"
        folder = Path(place.quarantine)
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f".{name}-{os.getpid()}"
        try:
            copy_range(files, self._file, self._position, min(end, self._file.size()), aside)
            # Over what an earlier try of the task kept: it is the same.
            files.rename(aside, folder / name)
        except OSError as error:
            raise ReadFailed(f"{folder}: damaged bytes of {place.path} cannot be kept: {error}") from error
