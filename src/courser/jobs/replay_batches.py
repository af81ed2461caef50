"""Turns the batches of one topic into batches for another, and keeps everything that the producer set.

Whole batches pass unchanged. Batches that a range cuts are renumbered, and small batches are joined, so that a topic
that was written message by message is not staged message by message.
"""

from collections.abc import Iterator

from courser.errors import InvalidBatch
from courser.records import layout
from courser.records.batch import Batch, batch_of, merge_batches

_SMALL_SIZE = 128 * 1024
"""Bytes below which a batch is joined with others."""
_JOINED_SIZE = 1024 * 1024
"""Bytes of a joined batch: the default maximum of producers."""


class BatchJoiner:
    """Takes the records of a range in order and returns batches to send."""

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._end = end
        self._waiting: list[Batch] = []
        self._waiting_size = 0

    def add(self, records: memoryview) -> Iterator[Batch]:
        """Add records, whose memory may be reused afterwards. Returns the batches that are ready."""
        position = 0
        while position < len(records):
            length = layout.WIRE_HEADER.unpack_from(records, position)[4]
            batch = self._wanted(records[position : position + length])
            position += length
            if batch is None:
                continue
            if batch.size >= _SMALL_SIZE:
                yield from self.rest()
                yield batch
                continue
            self._waiting.append(batch)
            self._waiting_size += batch.size
            if self._waiting_size >= _JOINED_SIZE:
                yield from self.rest()

    def rest(self) -> Iterator[Batch]:
        """The batches that are still waiting."""
        waiting, self._waiting, self._waiting_size = self._waiting, [], 0
        if len(waiting) < 2:
            yield from waiting
            return
        try:
            yield merge_batches(waiting)
        except InvalidBatch:
            # Their creation times are too far apart for one batch.
            yield from waiting

    def _wanted(self, record: memoryview) -> Batch | None:
        """A copy of the messages of a batch that are in the range."""
        _, base_offset, _, origin, _, _, count = layout.WIRE_HEADER.unpack_from(record)
        body = memoryview(bytes(record[layout.BATCH_HEADER_SIZE :]))
        batch = batch_of(origin, count, body)
        # A poll may already have trimmed the batch, so that its first message has an offset delta above 0.
        first = base_offset + int.from_bytes(body[layout.FRAME_OFFSET_DELTA_POSITION :][:4], "little")
        skipped, wanted_end = max(self._start - first, 0), min(self._end - first, count)
        if skipped >= wanted_end:
            return None
        if skipped == 0 and wanted_end == count and first == base_offset:
            return batch
        starts = batch.frames.starts
        begin = int(starts[skipped])
        behind = int(starts[wanted_end]) if wanted_end < count else len(body)
        return merge_batches([batch_of(origin, wanted_end - skipped, body[begin:behind])])
