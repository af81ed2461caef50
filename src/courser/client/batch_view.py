"""A view of one batch in memory: columns instead of one object per message."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from courser.api.replies import Polled
from courser.records import layout
from courser.records.frames import FrameLayout, frame_fields, survey_frames


class BatchView:
    """One batch: its header, and its frames in place. Methods return one column for all messages.

    Attributes:
        partition_id: The partition.
        base_offset: The offset that the batch was stored with. ``first_offset`` is above it if the batch was cut.
        timestamp: When the server received it, in microseconds since 1970.
        origin_timestamp: The smallest creation time, set by the producer.
        count: How many messages it contains.

    Example:
        (view,) = await client.poll_batches("shop/orders", partition_id=0)
        print(view.offsets(), view.origin_timestamps(), view.ids())
        print(view.payload_lengths(), view.header_lengths())
        ends, payloads = view.payloads()
        ends, blocks = view.header_blocks()
    """

    def __init__(self, record: memoryview) -> None:
        fields: tuple[int, ...] = layout.WIRE_HEADER.unpack_from(record)
        self.partition_id, self.base_offset, self.timestamp, self.origin_timestamp, _, _, self.count = fields
        self.record = record
        """Header and frames."""
        self.body = record[layout.BATCH_HEADER_SIZE :]
        """The frames, one after another."""

    @cached_property
    def frames(self) -> FrameLayout:
        """The positions of the frames. Raises ``InvalidBatch`` if the lengths are inconsistent."""
        return survey_frames(self.body, self.count)[0]

    @property
    def first_offset(self) -> int:
        """The offset of the first message: above ``base_offset`` if the batch was cut."""
        delta = int.from_bytes(self.body[layout.FRAME_OFFSET_DELTA_POSITION :][:4], "little")
        return self.base_offset + delta

    @property
    def next_offset(self) -> int:
        """The offset after the last message."""
        return self.first_offset + self.count

    # --- columns --------------------------------------------------------------------------------------

    def _field(self, position: int, dtype: str) -> NDArray[Any]:
        return frame_fields(self.body, self.frames, position, dtype)

    def offsets(self) -> NDArray[np.uint64]:
        """The offsets of all messages."""
        return self._field(layout.FRAME_OFFSET_DELTA_POSITION, "<u4").astype(np.uint64) + np.uint64(self.base_offset)

    def origin_timestamps(self) -> NDArray[np.uint64]:
        """The creation times of all messages, in microseconds since 1970."""
        deltas = self._field(layout.FRAME_TIMESTAMP_DELTA_POSITION, "<u4").astype(np.uint64)
        return deltas + np.uint64(self.origin_timestamp)

    def ids(self) -> NDArray[np.void]:
        """The ids, 16 bytes each."""
        halves = np.empty((self.count, 2), "<u8")
        halves[:, 0] = self._field(layout.FRAME_ID_POSITION, "<u8")
        halves[:, 1] = self._field(layout.FRAME_ID_POSITION + 8, "<u8")
        return halves.view("V16").reshape(-1)

    def header_lengths(self) -> NDArray[np.uint32]:
        """Bytes of the user headers of each message."""
        return self._field(layout.FRAME_LENGTHS_POSITION, "<u4")

    def payload_lengths(self) -> NDArray[np.uint32]:
        """Bytes of the payload of each message."""
        return self._field(layout.FRAME_LENGTHS_POSITION + 4, "<u4")

    def payloads(self) -> tuple[NDArray[np.int64], memoryview]:
        """All payloads one after another, and the start of each, followed by the end of the last one."""
        lengths = self.payload_lengths()
        ends = np.zeros(self.count + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        size = self.frames.frame_size
        if size and int(lengths.max()) == int(lengths.min()):
            rows = np.frombuffer(self.body, np.uint8).reshape(self.count, size)
            first = layout.FRAME_HEADER_SIZE
            return ends, np.ascontiguousarray(rows[:, first : first + int(lengths[0])]).reshape(-1).data
        starts = self.frames.starts + layout.FRAME_HEADER_SIZE
        return ends, _gathered(self.body, starts, starts + lengths)

    def header_blocks(self) -> tuple[NDArray[np.int64], memoryview]:
        """All blocks of user headers one after another, with starts and end like those of ``payloads``."""
        lengths = self.header_lengths()
        ends = np.zeros(self.count + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        if not ends[-1]:
            return ends, memoryview(b"")
        starts = self.frames.starts + layout.FRAME_HEADER_SIZE + self.payload_lengths()
        return ends, _gathered(self.body, starts, starts + lengths)


def _gathered(body: memoryview, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> memoryview:
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return memoryview(b"".join([body[start:end] for start, end in pairs]))


def batches_of(polled: Polled) -> Iterator[BatchView]:
    """The batches of a reply, in order. Reads only their headers."""
    for records in polled.pieces:
        start, size = 0, len(records)
        while start < size:
            length = layout.WIRE_HEADER.unpack_from(records, start)[4]
            yield BatchView(records[start : start + length])
            start += length
