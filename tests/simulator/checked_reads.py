"""Reads of a simulated partition, each compared with the model: by offset, by time, from the end, and all of it."""

import random
from collections.abc import Callable

from courser.records.frames import iterate_frames
from courser.records.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE, WIRE_HEADER
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import PartitionLog
from courser.storage.read_result import ReadResult
from tests.simulator.partition_model import PartitionModel, SeenMessage, SentBatch, promise
from tests.simulator.simulated_clock import stored_times

_EVERYTHING = 1 << 40


def messages_of(result: ReadResult) -> list[SeenMessage]:
    """Take a result apart as a client would."""
    data = memoryview(b"".join(result.pieces))
    seen: list[SeenMessage] = []
    position = 0
    while position < len(data):
        _, base_offset, timestamp, _, length, _, count = WIRE_HEADER.unpack_from(data, position)
        body = data[position + BATCH_HEADER_SIZE : position + length]
        seen += [
            SeenMessage(base_offset + frame.offset_delta, frame.message_id, bytes(frame.payload), timestamp)
            for frame in iterate_frames(body, count)
        ]
        position += length
    promise(len(seen) == result.message_count, f"(f) {result.message_count} messages announced, {len(seen)} came")
    return seen


def read_everything(log: PartitionLog, reader: LogReader) -> list[SeenMessage]:
    """Read from the start to the end, in as many calls as it takes."""
    seen: list[SeenMessage] = []
    offset = log.start_offset
    while True:
        result = reader.read(offset, count=_EVERYTHING, size_max=_EVERYTHING)
        seen += messages_of(result)
        if result.next_offset <= offset:
            return seen
        offset = result.next_offset


class RandomReads:
    """Asks random questions."""

    def __init__(self, source: random.Random, note: Callable[[str, str], None]) -> None:
        self._source = source
        self._note = note

    def read(self, log: PartitionLog, reader: LogReader, model: PartitionModel, *, may_stop: bool) -> None:
        """A poll with limits. ``may_stop``: there are holes at which a read ends early."""
        source = self._source
        offset = source.randint(max(log.start_offset - 3, 0), log.next_offset + 2)
        count = source.choice((1, 2, 5, 40, 1000))
        size_max = source.choice((1, 300, 900, 3_000, 100_000))
        self._note("read", f"from {offset}, {count} messages, {size_max} bytes")
        result = reader.read(offset, count=count, size_max=size_max)
        seen = messages_of(result)
        expected = model.visible(max(offset, log.start_offset), log.visible_end)
        for message, (expected_offset, identifier, payload, batch) in zip(seen, expected, strict=False):
            is_same = (message.offset, message.identifier, message.payload) == (expected_offset, identifier, payload)
            promise(is_same, f"(f) offset {message.offset} came, expected {expected_offset}")
            promise(message.timestamp == batch.timestamp, f"(e) another time at offset {message.offset}")
            model.confirm(message.offset, message.identifier)
        promise(len(seen) <= min(count, len(expected)), f"(f) {len(seen)} of {min(count, len(expected))} messages came")
        promise(result.size <= size_max or len(seen) == 1, f"(f) {result.size} bytes came, at most {size_max} fit")
        if seen:
            promise(result.next_offset > seen[-1].offset, f"(f) the next read would begin at {result.next_offset}")
        if not may_stop:
            promise(bool(seen) or not expected, f"(f) no message came, and {len(expected)} are there")
            self._note_short(seen, expected, result.size, min(count, len(expected)), size_max)

    def _note_short(
        self,
        seen: list[SeenMessage],
        expected: list[tuple[int, int, bytes, SentBatch]],
        size: int,
        count: int,
        size_max: int,
    ) -> None:
        """A read may give less than fits, as long as it gives something: that costs a call, and is only counted."""
        if len(seen) < count:
            next_size = BATCH_HEADER_SIZE + FRAME_HEADER_SIZE + len(expected[len(seen)][2])
            if size + next_size <= size_max:
                self._note("short read", f"{len(seen)} of {count}")

    def look_up(self, log: PartitionLog, reader: LogReader, model: PartitionModel) -> None:
        """Where does a time begin, and where do the last n messages?"""
        source = self._source
        kept = [batch for batch in model.batches if batch.base_offset >= log.start_offset]
        if kept:
            times = stored_times(log, kept)
            timestamp = max(times[source.choice(kept)] + source.choice((-1, 0, 0, 1)), 0)
            expected = next((batch.base_offset for batch in kept if times[batch] >= timestamp), log.next_offset)
            found = reader.offset_at_time(timestamp)
            promise(found == expected, f"(f) time {timestamp} begins at {found}, expected {expected}")
        count = source.choice((1, 2, 5, 17, 1000))
        visible = model.visible(log.start_offset, log.visible_end)
        expected = visible[-count][0] if len(visible) >= count else log.start_offset
        found = reader.offset_of_last(count)
        self._note("look up", f"last {count} begin at {found}")
        promise(found == expected, f"(f) the last {count} begin at {found}, expected {expected}")
