"""Batches of a log file, each loaded whole and checked, several per call to the file where they are small."""

from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_header import BadBatch, PartitionIdentity, StoredHeader, check_body, read_header
from courser.storage.files import File, read_into
from courser.storage.read_result import ReadBuffer


class BatchLoader:
    """Serves one read of one segment. Its blocks live in the reader's buffer."""

    __slots__ = ("_block", "_buffer", "_file", "_identity", "_limit", "_position", "_wait", "size_read")

    def __init__(self, file: File, identity: PartitionIdentity, limit: int, buffer: ReadBuffer, *, wait: bool) -> None:
        self._file = file
        self._identity = identity
        self._limit = limit
        self._buffer = buffer
        self._wait = wait
        self._block = memoryview(b"")
        self._position = 0
        self.size_read = 0

    def load(self, position: int, guess: int) -> tuple[StoredHeader, memoryview, int]:
        """The batch at ``position``: its header, the block that holds it, and where in the block it begins.

        ``guess`` is how many bytes the reader expects to need from here on.

        Raises:
            BadBatch: what lies there fails a check.
        """
        at = position - self._position
        if not 0 <= at <= len(self._block) - BATCH_HEADER_SIZE:
            self._fetch(position, guess)
            at = 0
        header = read_header(self._block, at, self._identity)
        if at + header.stored_length > len(self._block):
            if position + header.stored_length > self._limit:
                raise BadBatch(f"the batch of {header.stored_length} bytes reaches beyond the end of the log")
            if at:
                self._fetch(position, header.stored_length)
                at = 0
            else:
                self._complete(header.stored_length)
        end = at + header.stored_length
        if end > len(self._block):
            raise BadBatch("the file ends inside the batch")
        check_body(header, self._block[at + BATCH_HEADER_SIZE : end])
        return header, self._block, at

    def load_part(self, header_position: int, start: int, end: int) -> tuple[StoredHeader, memoryview]:
        """The header of a batch that was checked before, with the bytes ``start`` to ``end`` of the log behind it."""
        block = self._buffer.take(BATCH_HEADER_SIZE + end - start)
        self._read(header_position, block[:BATCH_HEADER_SIZE])
        header = read_header(block, 0, self._identity)
        self._read(start, block[BATCH_HEADER_SIZE:])
        return header, block

    def _fetch(self, position: int, guess: int) -> None:
        size = min(max(guess, BATCH_HEADER_SIZE), self._limit - position)
        if size < BATCH_HEADER_SIZE:
            raise BadBatch(f"{size} bytes are less than a batch header")
        block = self._buffer.take(size)
        filled = read_into(self._file, position, block, wait=self._wait)
        if filled < BATCH_HEADER_SIZE:
            raise BadBatch("the file ends before the log should")
        if filled < size:
            # The batches that are there are good all the same.
            block = block[:filled]
        self.size_read += filled
        self._block, self._position = block, position

    def _complete(self, size: int) -> None:
        """Read the rest of the batch that the block begins with."""
        have = len(self._block)
        block = self._buffer.extend(self._block, size)
        self._read(self._position + have, block[have:])
        self._block = block

    def _read(self, position: int, buffer: memoryview) -> None:
        if read_into(self._file, position, buffer, wait=self._wait) < len(buffer):
            raise BadBatch("the file ends before the log should")
        self.size_read += len(buffer)
