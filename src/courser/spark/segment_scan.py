"""One pass over part of a segment: finds the batches of a range, checks the stored hashes, and decodes.

The bytes come from a file or from an object of the archive.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from courser.records import layout
from courser.records.encryption import KeyRing
from courser.records.stored_body import decode, decoded_header
from courser.records.stored_header import BadBatch, PartitionIdentity, StoredHeader, check_body, read_header
from courser.spark.errors import ReadFailed
from courser.spark.sources import FetchedBatches
from courser.storage.durable_files import copy_range
from courser.storage.files import File, read_into
from courser.storage.index_file import BLOCK_SIZE, BadIndex, IndexFile, segment_seed
from courser.storage.local_files import LocalFileSystem
from courser.storage.scan import find_batch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """How stored batches are read, from a file or from the archive."""

    read_size: int
    """Bytes to read at a time."""
    verify: bool
    """Whether to check the hashes of bodies, not only those of headers."""
    skip_corrupt: bool
    quarantine: str | None
    """Folder that damaged bytes are copied to before they are skipped; None: they are not copied."""
    keys: KeyRing
    """Decrypt the bodies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSegment:
    """What is known of the bytes to read."""

    name: str
    """For error messages."""
    remedy: str
    """What to do about damage."""
    identity: PartitionIdentity
    base_offset: int
    """The first offset of the segment."""
    first_offset: int
    """The first offset of these bytes, which may be a later part of the segment."""
    position: int = 0
    """Where these bytes are in the segment."""
    size: int
    options: ScanOptions


class Scan:
    """One pass over part of a segment. Raises ``ReadFailed`` if it is damaged, unless damage is to be skipped."""

    def __init__(
        self, source: FoundSegment, file: File, open_index: Callable[[], File | None], start: int, end: int
    ) -> None:
        self._source = source
        self._file = file
        self._open_index = open_index
        self._start = start
        self._end = end
        self._buffer = np.empty(source.options.read_size, np.uint8).data
        self._batch_size = 0
        """Bytes of the largest batch in the last read; 0 if not known yet."""
        self._wanted = 0
        """Bytes that the last read asked for."""
        self._decoded: list[bytes] = []
        """The batches of the current run, if they were compressed or encrypted."""
        self._doubtful_position = -1
        """Where damage was seen once."""
        self._position, self._offset = self._begin()

    def _begin(self) -> tuple[int, int]:
        """The position of the batch that holds the first message, or of an earlier one; and its offset, or -1."""
        source = self._source
        if self._start == source.first_offset or source.position:
            # The index is that of the whole segment.
            return 0, source.first_offset
        file = self._open_index()
        if file is None:
            return 0, source.first_offset
        try:
            index = IndexFile(
                file,
                seed=segment_seed(source.identity, source.base_offset),
                base_offset=source.base_offset,
                block_count=file.size() // BLOCK_SIZE,
            )
            entry = index.at_offset(self._start) if index.block_count else None
        except BadIndex as error:
            # The index only saves time: read from the beginning of the segment instead.
            _log.warning("ignoring the index %s: %s", file.path, error)
            return 0, source.first_offset
        finally:
            file.close()
        if entry is None or entry.batch_position >= source.size:
            # There is no entry, or the index belongs to a longer file that was replaced.
            return 0, source.first_offset
        # The entry need not be the first message of its batch, so the batch may begin at a lower offset.
        return entry.batch_position, -1

    @property
    def size_left(self) -> int:
        """Bytes that were not read yet."""
        return self._source.size - self._position

    def fetch(self) -> Iterator[FetchedBatches]:
        """The batches of the range."""
        while self._position < self._source.size:
            filled = self._fill()
            first, last, is_over = self._good_batches(filled)
            if last > first:
                records = memoryview(b"".join(self._decoded)) if self._decoded else self._buffer[first:last]
                yield FetchedBatches(records, min(self._offset, self._end))
            if is_over:
                if last == first:
                    # Nothing more is wanted, or nothing more is intact.
                    yield FetchedBatches(self._buffer[:0], min(self._offset, self._end))
                return

    def _fill(self) -> int:
        """Read about ``read_size`` bytes, rounded to whole batches as far as their size is known."""
        size = self._batch_size
        guess = max(round(self._source.options.read_size / size), 1) * size if size else self._source.options.read_size
        self._wanted = wanted = min(guess, self._source.size - self._position)
        if wanted > len(self._buffer):
            self._buffer = np.empty(wanted, np.uint8).data
        return read_into(self._file, self._position, self._buffer[:wanted])

    def _good_batches(self, filled: int) -> tuple[int, int, bool]:
        """Where the wanted batches in the buffer begin and end, and whether the range ends with them.

        Advances the position past them. If not even the first batch fits, enlarges the buffer instead. Either all of
        them are encoded, and then decoded here, or none.
        """
        at = first = largest = decoded_size = 0
        self._decoded = []
        while at + layout.BATCH_HEADER_SIZE <= filled:
            try:
                header = self._header(at)
                if header.base_offset >= self._end:
                    # What lies before it is read, or was removed.
                    self._offset = self._end
                    return first, at, True
                behind = at + header.stored_length
                if behind > filled:
                    break
                is_wanted = header.end_offset > self._start
                if is_wanted and at > first and bool(header.flags) != bool(self._decoded):
                    return first, at, False
                if is_wanted and (self._source.options.verify or header.flags):
                    check_body(header, self._buffer[at + layout.BATCH_HEADER_SIZE : behind])
                if is_wanted and header.flags:
                    decoded_size += self._decode(header, self._buffer[at:behind])
            except BadBatch as error:
                if at > first:
                    # Return the intact batches first; the next read begins with the damaged one.
                    return first, at, False
                return 0, 0, self._pass_over(error)
            at = behind
            first = first if is_wanted else at
            largest = max(largest, header.stored_length)
            self._offset = header.end_offset
            self._position += header.stored_length
            if decoded_size >= self._source.options.read_size:
                return first, at, self._offset >= self._end
        if at == 0:
            return 0, 0, self._grow(filled)
        self._batch_size = largest
        return first, at, self._offset >= self._end

    def _decode(self, header: StoredHeader, stored: memoryview) -> int:
        """Decode a batch to the form in which a server sends it. Returns its size. Raises ``BadBatch``."""
        frames = decode(header, stored, self._source.options.keys)
        self._decoded += (bytes(decoded_header(header, frames, header.message_count)), bytes(frames))
        return header.batch_length

    def _header(self, at: int) -> StoredHeader:
        header = read_header(self._buffer, at, self._source.identity)
        if self._offset >= 0 and header.previous_end_offset != self._offset:
            raise BadBatch(f"the batch begins at offset {header.previous_end_offset}, expected {self._offset}")
        if self._offset < 0 and header.previous_end_offset > self._start:
            raise BadBatch(f"the batch begins at offset {header.previous_end_offset}, expected {self._start} or less")
        return header

    def _grow(self, filled: int) -> bool:
        """Prepare to read a batch that is larger than what was read. Returns whether the range ends here."""
        try:
            if filled < layout.BATCH_HEADER_SIZE:
                raise BadBatch(f"{filled} bytes are too few for a batch header")
            size = self._header(0).stored_length
            if self._position + size > self._source.size:
                raise BadBatch("the file ends inside the batch")
        except BadBatch as error:
            return self._pass_over(error)
        if size <= self._wanted:
            return self._pass_over(BadBatch("the file ends inside the batch"))
        self._batch_size = size
        return False

    def _pass_over(self, error: BadBatch) -> bool:
        """Skip damage at the current position, if that is allowed. Returns whether no intact batch follows."""
        source = self._source
        if self._offset < 0:
            # The server may have replaced log and index between the two opens, so do without the index.
            self._position, self._offset = 0, source.first_offset
            return False
        if self._position != self._doubtful_position:
            # The bytes may have been changed on their way.
            self._doubtful_position = self._position
            self._file.discard_cache()
            return False
        offset = self._offset
        where = f"{source.name} is damaged at byte {self._position} (expected offset {offset}): {error}"
        if not source.options.skip_corrupt:
            raise ReadFailed(f"{where}; {source.remedy}, or set the option onCorrupt=skip to skip it")
        found = find_batch(self._file, source.identity, start=self._position, end=source.size, offset=offset)
        self._copy_aside(source.size if found is None else found[0])
        if found is None:
            _log.error("%s; skipped offsets %d to %d", where, offset, self._end - 1)
            self._offset = self._end
            self._position = source.size
            return True
        self._position, header = found
        _log.error("%s; skipped offsets %d to %d", where, offset, header.base_offset - 1)
        self._offset = header.previous_end_offset
        return False

    def _copy_aside(self, end: int) -> None:
        """Copy the damaged bytes from the current position on to a file whose name says where they were."""
        source = self._source
        if source.options.quarantine is None:
            return
        identity, files = source.identity, LocalFileSystem()
        position = source.position + self._position
        name = f"{identity.topic_uuid.hex()}-{identity.partition_id}-{source.base_offset:020d}-{position}.damaged"
        folder = Path(source.options.quarantine)
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f".{name}-{os.getpid()}"
        try:
            copy_range(files, self._file, self._position, min(end, self._file.size()), aside)
            # An earlier attempt of the task may have written the same file; replacing it is harmless.
            files.rename(aside, folder / name)
        except OSError as error:
            raise ReadFailed(f"could not copy damaged bytes of {source.name} to {folder}: {error}") from error
