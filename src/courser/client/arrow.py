"""Convert batches to Arrow tables without an object per message. The only module that imports pyarrow."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from numpy.typing import NDArray

from courser.client.batch_view import BatchView
from courser.model.quantities import CALENDAR_END
from courser.records import layout
from courser.records.message_keys import key_of
from courser.records.user_headers import is_typed, iterate_user_headers

_OFFSET_MAX = 2**63 - 1

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("origin_timestamp", _TIME, nullable=False),
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The columns of every table."""
HEADERS = pa.field("headers", pa.map_(pa.string(), pa.binary()))
"""An additional column, if requested."""


def table_of(views: Sequence[BatchView], *, headers: bool = False) -> Any:
    """A ``pyarrow.Table`` with a row per message and a record batch per batch. Copies as little as possible.

    Times after the year 9999 become its last microsecond.

    Raises:
        OverflowError: an offset does not fit into a signed 64-bit integer.
    """
    schema = SCHEMA.append(HEADERS) if headers else SCHEMA
    return pa.Table.from_batches([_record_batch(view, schema, headers=headers) for view in views], schema)


def _record_batch(view: BatchView, schema: Any, *, headers: bool) -> Any:
    if view.next_offset > _OFFSET_MAX:
        raise OverflowError(f"offset {view.next_offset} has more than 63 bits")
    count = view.count
    columns = [
        _numbers(pa.int32(), np.full(count, view.partition_id, np.int32)),
        _numbers(pa.int64(), view.offsets().view(np.int64)),
        _numbers(_TIME, np.full(count, min(view.timestamp, CALENDAR_END), np.int64)),
        _numbers(_TIME, _origin_times(view)),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(view.ids())]),
        _keys(view),
        _payloads(view),
    ]
    if headers:
        columns.append(_headers(view))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _origin_times(view: BatchView) -> NDArray[np.int64]:
    times = view.origin_timestamps()
    if view.origin_timestamp > CALENDAR_END - layout.TIMESTAMP_DELTA_MAX:
        # Unsigned 64-bit integers wrap around to 0.
        is_beyond = (times > CALENDAR_END) | (times < view.origin_timestamp)
        times = np.where(is_beyond, np.uint64(CALENDAR_END), times)
    return times.view(np.int64)


def _numbers(kind: Any, values: NDArray[Any]) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _payloads(view: BatchView) -> Any:
    """The payloads of all messages, in memory of Arrow's pool: the kernel need not clear its pages."""
    lengths, count = view.payload_lengths(), view.count
    starts, length = view.frames.starts + layout.FRAME_HEADER_SIZE, int(lengths[0])
    if not view.frames.frame_size or not length:
        return gather(np.frombuffer(view.body, np.uint8), starts, starts + lengths)
    # All payloads have the same size: one strided copy.
    data = pa.allocate_buffer(count * length)
    rows = np.ndarray((count, length), np.uint8, view.body, layout.FRAME_HEADER_SIZE, (view.frames.frame_size, 1))
    np.copyto(np.frombuffer(data, np.uint8).reshape(count, length), rows)
    bounds = np.arange(0, (count + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), data])


def gather(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Any:
    """A binary array of the slices from each start to its end. The slices are in order and do not overlap.

    ``data`` is viewed as one binary array in which slices and gaps alternate; one C++ loop then takes every second
    element.
    """
    count = len(starts)
    if not count:
        return pa.nulls(0, pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    slices = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)], null_count=0
    )
    # Not ``pa.array``: it imports pandas, which takes half a second.
    return slices.take(_numbers(pa.int32(), np.arange(0, 2 * count, 2, dtype=np.int32)))


def _blocks(view: BatchView) -> list[bytes]:
    """The headers of every message, one object each. Most batches have none."""
    ends, data = view.header_blocks()
    positions = ends.tolist()
    return [bytes(data[start:end]) for start, end in pairwise(positions)]


def _keys(view: BatchView) -> Any:
    if not view.header_lengths().any():
        return pa.nulls(view.count, pa.binary())
    return pa.array([key_of(block) for block in _blocks(view)], pa.binary())


def _headers(view: BatchView) -> Any:
    rows = [_pairs_in(block) for block in _blocks(view)]
    return pa.array(rows, HEADERS.type)


def _pairs_in(block: bytes) -> list[tuple[str, bytes]] | None:
    """Names and raw values; None if there are no headers, or if they are malformed."""
    if not block or not is_typed(block):
        return None
    return [(entry.key.decode(errors="replace"), entry.value) for entry in iterate_user_headers(block)]
