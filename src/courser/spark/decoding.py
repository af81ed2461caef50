"""Decodes stored batches into Arrow record batches, straight from their bytes.

Only the requested columns are built. Numpy finds the frames and reads their fields, and a C++ loop gathers the
payloads; there is no Python object per message. Spark is fastest with record batches of 2 to 4 MB, so larger ones are
split.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from numpy.typing import NDArray

from courser.client.arrow import gather
from courser.errors import InvalidBatch
from courser.model.quantities import CALENDAR_END
from courser.records import layout
from courser.records.frame_walk_pure import FRAME_FIELDS
from courser.records.frames import survey_frames
from courser.spark.errors import ReadFailed
from courser.spark.header_blocks import Positions, find_entries, headers_column, key_column

ROW_COUNT_MAX = 10_000
"""Rows of one record batch: Spark is slower with more."""
_unpack_lengths = layout.FRAME_LENGTHS.unpack_from
_LOG_APPEND_TIME = 1
"""``timestampType`` of Kafka's data source: the timestamp is the append time."""


class Decoder:
    """Decodes the messages of one topic."""

    def __init__(self, schema: Any, *, stream: str, topic: str, size_max: int) -> None:
        """Prepare for a schema.

        Args:
            schema: The Arrow schema that Spark expects.
            stream: The value of the column ``stream``.
            topic: The value of the column ``topic``.
            size_max: Approximate bytes of a record batch.
        """
        self._schema = schema
        self._size_max = size_max
        self._name = f"{stream}/{topic}"
        self._constants = {"stream": _Repeated(stream), "topic": _Repeated(topic)}

    def decode(self, records: memoryview, start: int, end: int) -> Iterator[Any]:
        """Record batches of the messages from offset ``start`` up to, but not including, ``end``; ignores others.

        Raises:
            ReadFailed: the lengths in a batch are inconsistent, or an offset has more than 63 bits.
        """
        frames = _Frames(records, *_survey(records, self._name))
        count = len(frames.starts)
        if not count:
            return
        first, last = int(frames.offsets[0]), int(frames.offsets[-1])
        if last < 0:
            raise ReadFailed(f"{self._name}: offset {last + 2**64} does not fit Spark's BIGINT")
        if first < start or last >= end:
            frames = frames.between(start, end)
        for part in frames.cut(self._size_max):
            yield self._record_batch(part)

    def _record_batch(self, frames: "_Frames") -> Any:
        arrays = [self._column(frames, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, frames: "_Frames", field: Any) -> Any:
        name, count = field.name, len(frames.starts)
        if name in self._constants:
            return self._constants[name].times(count)
        if name == "headers":
            return headers_column(frames.data, frames.entries, count, field.type)
        return _COLUMNS[name](frames, field.type)


class _Repeated:
    """A column that repeats one text. Keeps the longest array so far and returns slices of it."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._count = 0
        self._array: Any = None

    def times(self, count: int) -> Any:
        if self._array is None or self._count < count:
            self._count = max(count, ROW_COUNT_MAX)
            # Built from buffers because ``pa.repeat`` loads pandas, which takes half a second in every new worker.
            bounds = np.arange(self._count + 1, dtype=np.int32) * np.int32(len(self._text))
            buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._text * self._count)]
            self._array = pa.Array.from_buffers(pa.string(), self._count, buffers)
        return self._array.slice(0, count)


def _survey(records: memoryview, name: str) -> tuple[Positions, Positions, Positions]:
    """Where the frames begin, where the batches begin, and how many frames each batch has."""
    starts: list[Positions | list[int]] = []
    singles: list[int] = []
    batches: list[int] = []
    counts: list[int] = []
    unpack, header_size = layout.WIRE_HEADER.unpack_from, layout.BATCH_HEADER_SIZE
    position, size = 0, len(records)
    while position < size:
        _, offset, _, _, length, _, count = unpack(records, position)
        body, end = position + header_size, position + length
        if count == 1 and _frame_end(records, body) == end:
            # Clients that send single messages create many such batches; do not allocate an array for each.
            singles.append(body)
        else:
            starts += (singles, _starts_in(records[body:end], count, offset, name) + body)
            singles = []
        batches.append(position)
        counts.append(count)
        position = end
    found = np.concatenate([np.array(part, np.int64) for part in (*starts, singles)])
    return found, np.array(batches, np.int64), np.array(counts, np.int64)


def _frame_end(records: memoryview, start: int) -> int:
    headers_length, payload_length = _unpack_lengths(records, start + layout.FRAME_LENGTHS_POSITION)
    end: int = start + layout.FRAME_HEADER_SIZE + headers_length + payload_length
    return end


def _starts_in(body: memoryview, count: int, offset: int, name: str) -> Positions:
    try:
        return survey_frames(body, count)[0].starts
    except InvalidBatch as error:
        raise ReadFailed(f"{name}: could not decode the batch at offset {offset}: {error.reason}") from error


class _Frames:
    """Frames of consecutive batches, with their fields as arrays."""

    def __init__(self, records: memoryview, starts: Positions, batches: Positions, counts: Positions) -> None:
        self.records = records
        self.data = np.frombuffer(records, np.uint8)
        self.starts = starts
        self._batches = batches
        self._counts = counts

    def between(self, start: int, end: int) -> "_Frames":
        """Only the frames from offset ``start`` up to, but not including, ``end``."""
        offsets = self.offsets
        wanted = (offsets >= start) & (offsets < end)
        number = np.repeat(np.arange(len(self._batches)), self._counts)[wanted]
        counts = np.bincount(number, minlength=len(self._batches))
        return _Frames(self.records, self.starts[wanted], self._batches, counts)

    def cut(self, size_max: int) -> "Iterator[_Frames]":
        """Split into groups of about ``size_max`` bytes. If the whole is only a little larger, it is not split."""
        count = len(self.starts)
        if not count:
            return
        extent = len(self.records) - int(self.starts[0])
        if count <= ROW_COUNT_MAX and extent <= size_max + size_max // 2:
            yield self
            return
        number = np.repeat(np.arange(len(self._batches)), self._counts)
        first = 0
        while first < count:
            behind = int(np.searchsorted(self.starts, self.starts[first] + size_max))
            last = min(max(behind, first + 1), first + ROW_COUNT_MAX)
            counts = np.bincount(number[first:last], minlength=len(self._batches))
            yield _Frames(self.records, self.starts[first:last], self._batches, counts)
            first = last

    # --- fields ---------------------------------------------------------------------------------------

    @cached_property
    def headers(self) -> NDArray[np.void]:
        """The headers of all frames."""
        # An overlapping view with a header at every byte, so that indexing it reads a header at any position.
        every_byte: NDArray[np.void] = np.ndarray(
            (len(self.data) - FRAME_FIELDS.itemsize + 1,), f"V{FRAME_FIELDS.itemsize}", self.records, 0, (1,)
        )
        return every_byte[self.starts].view(FRAME_FIELDS)

    def field(self, name: str) -> Positions:
        """One numeric field of every frame header."""
        return self.headers[name].astype(np.int64)

    def _of_batch(self, position: int) -> Positions:
        """One field of the batch header, for every frame."""
        every_byte: NDArray[np.int64] = np.ndarray((len(self.data) - 7,), "<i8", self.records, 0, (1,))
        return np.repeat(every_byte[self._batches + position], self._counts)

    @cached_property
    def offsets(self) -> Positions:
        """The offset of every message. Offsets with more than 63 bits appear as negative numbers."""
        return self._of_batch(_BASE_OFFSET_POSITION) + self.field("offset_delta")

    @property
    def timestamps(self) -> Positions:
        """The append time of every message."""
        return _in_calendar(self._of_batch(_TIMESTAMP_POSITION))

    @property
    def origin_timestamps(self) -> Positions:
        """The creation time of every message."""
        return _in_calendar(_in_calendar(self._of_batch(_ORIGIN_POSITION)) + self.field("timestamp_delta"))

    @property
    def partitions(self) -> NDArray[np.int32]:
        """The partition of every message."""
        return self._of_batch(_PARTITION_POSITION).astype(np.int32)

    @cached_property
    def payload_lengths(self) -> Positions:
        """The size of every payload in bytes."""
        return self.field("payload_length")

    @property
    def payload_starts(self) -> Positions:
        """Where every payload begins."""
        return self.starts + layout.FRAME_HEADER_SIZE

    @cached_property
    def entries(self) -> Any:
        """The user headers of all messages."""
        return find_entries(self.data, self.payload_starts + self.payload_lengths, self.field("user_headers_length"))


_RUN_LENGTH_MIN = 16
"""Average length of runs of equally spaced payloads from which one strided copy per run is faster than gathering."""
_PARTITION_POSITION, _BASE_OFFSET_POSITION, _TIMESTAMP_POSITION, _ORIGIN_POSITION = 0, 8, 16, 24


def _in_calendar(times: Positions) -> Positions:
    """Times beyond the year 9999 become its last microsecond. Those with 64 bits are below 0 here."""
    if not len(times) or int(times.view(np.uint64).max()) <= CALENDAR_END:
        return times
    return np.minimum(times.view(np.uint64), np.uint64(CALENDAR_END)).view(np.int64)


def _numbers(kind: Any, values: NDArray[Any]) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _ids(frames: _Frames) -> Any:
    count = len(frames.starts)
    bounds = np.arange(0, 16 * count + 1, 16, dtype=np.int32)
    ids = np.empty((count, 2), "<u8")
    ids[:, 0], ids[:, 1] = frames.headers["id_low"], frames.headers["id_high"]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(ids)])


def _payloads(frames: _Frames) -> Any:
    starts, lengths = frames.payload_starts, frames.payload_lengths
    count, size = len(starts), int(lengths[0])
    if size and bool((lengths == size).all()):
        steps = np.diff(starts)
        runs = np.flatnonzero(steps[1:] != steps[:-1]) + 2 if count > 2 else np.empty(0, np.int64)
        if len(runs) * _RUN_LENGTH_MIN <= count:
            return _equal_payloads(frames, starts, size, [0, *runs.tolist(), count])
    return gather(frames.data, starts, starts + lengths)


def _equal_payloads(frames: _Frames, starts: Positions, size: int, runs: list[int]) -> Any:
    """Payloads of equal size: each run of equally spaced ones is one strided copy."""
    count = len(starts)
    payloads = np.empty((count, size), np.uint8)
    for first, last in pairwise(runs):
        step = int(starts[first + 1] - starts[first]) if last - first > 1 else size
        payloads[first:last] = np.ndarray((last - first, size), np.uint8, frames.records, int(starts[first]), (step, 1))
    bounds = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(payloads)])


_COLUMNS: dict[str, Callable[[_Frames, Any], Any]] = {
    "partition": lambda frames, kind: _numbers(kind, frames.partitions),
    "offset": lambda frames, kind: _numbers(kind, frames.offsets),
    "timestamp": lambda frames, kind: _numbers(kind, frames.timestamps),
    "origin_timestamp": lambda frames, kind: _numbers(kind, frames.origin_timestamps),
    "timestampType": lambda frames, kind: _numbers(kind, np.full(len(frames.starts), _LOG_APPEND_TIME, np.int32)),
    "id": lambda frames, _: _ids(frames),
    "key": lambda frames, _: key_column(frames.data, frames.entries, len(frames.starts)),
    "payload": lambda frames, _: _payloads(frames),
    "value": lambda frames, _: _payloads(frames),
}
