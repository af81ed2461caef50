"""Encodes Arrow columns as batches of messages. Arrow and numpy build the frames of whole columns at once.

No Python object is created per message, except for two hashes: the checksum of a frame, and the partition of each
distinct key.
"""

import os
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from courser.records import layout
from courser.records.batch import Batch, batch_of
from courser.records.frame_walk import fill_checksums
from courser.records.frame_walk_pure import FRAME_FIELDS
from courser.records.message_keys import KEY_HEADER, hash_of_key
from courser.records.user_headers import FIELD_SIZE_MAX, USER_HEADERS_SIZE_MAX, HeaderKind
from courser.spark.errors import RowRefused

Array: TypeAlias = Any
"""A ``pyarrow.Array``; pyarrow has no type stubs."""

MESSAGE_SIZE_MAX = layout.BATCH_SIZE_MAX - layout.BATCH_HEADER_SIZE - layout.FRAME_HEADER_SIZE
"""Bytes of a payload with its user headers: a message must fit into a batch."""
ID_SIZE = 16
_FIELD_HEAD = np.dtype([("kind", "u1"), ("length", "<u4")])
"""Precedes each key and each value in a block of user headers."""
_KEY_PREFIX = bytes([HeaderKind.STRING]) + len(KEY_HEADER).to_bytes(4, "little") + KEY_HEADER + bytes([HeaderKind.RAW])


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages as columns of equal length, ready to be made into frames."""

    payloads: Array
    """Binary, without nulls."""
    blocks: Array | None
    """Binary, without nulls: blocks of user headers in their stored form."""
    ids: NDArray[np.void] | None
    """16 bytes each."""
    times: NDArray[np.int64] | None
    """Creation times in microseconds."""

    def __len__(self) -> int:
        return len(self.payloads)

    def frame_ends(self) -> NDArray[np.int64]:
        """Cumulative size of the frames in bytes, up to and including each one."""
        sizes = np.diff(_offsets(self.payloads)) + layout.FRAME_HEADER_SIZE
        if self.blocks is not None:
            sizes = sizes + np.diff(_offsets(self.blocks))
        return np.cumsum(sizes)

    def take(self, numbers: NDArray[np.int64]) -> "Rows":
        """The rows with these numbers, in this order."""
        return Rows(
            self.payloads.take(pa.array(numbers)),
            None if self.blocks is None else self.blocks.take(pa.array(numbers)),
            None if self.ids is None else self.ids[numbers],
            None if self.times is None else self.times[numbers],
        )

    def slice(self, start: int, end: int) -> "Rows":
        """The rows from ``start`` up to, but not including, ``end``."""
        return Rows(
            self.payloads.slice(start, end - start),
            None if self.blocks is None else self.blocks.slice(start, end - start),
            None if self.ids is None else self.ids[start:end],
            None if self.times is None else self.times[start:end],
        )


def join_rows(pieces: list[Rows]) -> Rows:
    """Concatenate rows that have the same columns."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    return Rows(
        pa.concat_arrays([piece.payloads for piece in pieces]),
        None if first.blocks is None else pa.concat_arrays([piece.blocks for piece in pieces]),
        None if first.ids is None else np.concatenate([piece.ids for piece in pieces if piece.ids is not None]),
        None if first.times is None else np.concatenate([piece.times for piece in pieces if piece.times is not None]),
    )


# --- columns ------------------------------------------------------------------------------------------


def binary_column(column: Array, name: str) -> Array:
    """A text or binary column as binary. Nulls are kept."""
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    raise RowRefused(f'column "{name}" must hold text or bytes, not {kind}')


def without_nulls(column: Array, name: str) -> Array:
    """The column, which must not contain nulls. Raises ``RowRefused``."""
    if column.null_count:
        number = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise RowRefused(
            f'column "{name}" is null in row {number} of a batch of {len(column)}; every message needs a value'
        )
    return column


def id_column(column: Array) -> NDArray[np.void]:
    """An id of 16 bytes for each row. Nulls get new ids."""
    ids = new_ids(len(column))
    if column.null_count == len(column):
        return ids
    sizes = pc.binary_length(column)
    if not pc.all(pc.equal(sizes, ID_SIZE)).as_py():
        number = pc.index(pc.not_equal(sizes, ID_SIZE).fill_null(False), True).as_py()
        raise RowRefused(f'column "id" has {sizes[number]} bytes in row {number}; an id must have {ID_SIZE}')
    given = column.is_valid().to_numpy(zero_copy_only=False)
    ids[given] = np.frombuffer(_data(column.drop_null()), f"V{ID_SIZE}")
    return ids


def new_ids(count: int) -> NDArray[np.void]:
    """Unique ids: consecutive numbers from a random start."""
    low, high = np.frombuffer(os.urandom(ID_SIZE), "<u8")
    ids = np.empty((count, 2), "<u8")
    ids[:, 0] = np.arange(count, dtype=np.uint64) + low
    ids[:, 1] = high
    return ids.view(f"V{ID_SIZE}").reshape(count)


def time_column(column: Array) -> NDArray[np.int64]:
    """Microseconds since 1970. Nulls become the current time."""
    times = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    values: NDArray[np.int64] = times.fill_null(time.time_ns() // 1000).to_numpy(zero_copy_only=False)
    if len(values) and int(values.min()) < 0:
        raise RowRefused('column "origin_timestamp" has a time before 1970')
    return values


# --- keys and headers -----------------------------------------------------------------------------------


def key_partitions(keys: Array, count: int) -> NDArray[np.int64]:
    """The partition of each key, the same as for keyed sends of any client; -1 where the key is null."""
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    hashes = np.fromiter(map(hash_of_key, distinct), np.int64, len(distinct)) % count
    numbers = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    partitions: NDArray[np.int64] = np.append(hashes, -1)[numbers]
    return partitions


def key_blocks(keys: Array) -> Array:
    """The user header that stores each key; empty where there is no key."""
    sizes = pc.binary_length(keys).fill_null(0).to_numpy(zero_copy_only=False)
    if len(sizes) and int(sizes.max()) > FIELD_SIZE_MAX:
        number = int(sizes.argmax())
        raise RowRefused(f'column "key" has {sizes[number]} bytes in row {number}; the maximum is {FIELD_SIZE_MAX}')
    has_key = pa.array(sizes > 0)
    prefix = pc.if_else(has_key, pa.scalar(_KEY_PREFIX, pa.binary()), pa.scalar(b"", pa.binary()))
    lengths = pc.if_else(has_key, _fixed(sizes.astype("<u4"), 4), pa.scalar(b"", pa.binary()))
    return pc.binary_join_element_wise(prefix, lengths, keys.fill_null(b""), b"")


def header_blocks(headers: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The stored form of headers in a map column or in Kafka's list of pairs, and which rows contain a message key.

    Raises:
        RowRefused: a name or value is empty, null or too long, or there are too many of them.
    """
    keys, values = _pairs(headers)
    value_kind = HeaderKind.STRING if pa.types.is_string(values.type) else HeaderKind.RAW
    names, contents = binary_column(keys, "headers"), binary_column(values, "headers")
    for what, column in (("key", names), ("value", contents)):
        _check_fields(what, column)
    entries = pc.binary_join_element_wise(
        _field_heads(names, HeaderKind.STRING), names, _field_heads(contents, value_kind), contents, b""
    )
    starts = _offsets(entries)
    rows = _list_offsets(headers)
    row_starts = starts[rows]
    if len(rows) > 1 and int(np.diff(row_starts).max()) > USER_HEADERS_SIZE_MAX:
        raise RowRefused(f'column "headers" exceeds the maximum of {USER_HEADERS_SIZE_MAX} bytes per row')
    is_key = pc.equal(names, KEY_HEADER).to_numpy(zero_copy_only=False)
    counts = np.append(0, np.cumsum(is_key))[rows]
    base = int(row_starts[0]) if len(row_starts) else 0
    data = entries.buffers()[2] or pa.py_buffer(b"")
    offsets = pa.py_buffer((row_starts - base).astype(np.int32))
    blocks = pa.Array.from_buffers(pa.binary(), len(headers), [None, offsets, data.slice(base)])
    return blocks, np.diff(counts) > 0


def _pairs(headers: Array) -> tuple[Array, Array]:
    kind = headers.type
    if pa.types.is_map(kind):
        return headers.keys, headers.items
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2:
        pairs = headers.values
        return pairs.field(0), pairs.field(1)
    raise RowRefused(f'column "headers" must hold a map of text to bytes, not {kind}')


def _list_offsets(headers: Array) -> NDArray[np.int64]:
    """Where the pairs of each row begin. Null rows have none."""
    offsets: NDArray[np.int64] = headers.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    if headers.null_count:
        # In Arrow a null row may still span pairs.
        sizes = np.diff(offsets) * headers.is_valid().to_numpy(zero_copy_only=False)
        if int(sizes.sum()) != int(offsets[-1] - offsets[0]):
            raise RowRefused('column "headers" has null rows with contents')
    return offsets


def _check_fields(what: str, column: Array) -> None:
    sizes = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    if len(sizes) and not 1 <= int(sizes.min()) <= int(sizes.max()) <= FIELD_SIZE_MAX:
        bad = int(sizes[(sizes < 1) | (sizes > FIELD_SIZE_MAX)][0])
        raise RowRefused(f'column "headers": a {what} has {bad} bytes; it must have 1 to {FIELD_SIZE_MAX}')


def _field_heads(column: Array, kind: HeaderKind) -> Array:
    heads = np.empty(len(column), _FIELD_HEAD)
    heads["kind"] = kind
    heads["length"] = pc.binary_length(column).to_numpy(zero_copy_only=False)
    return _fixed(heads, _FIELD_HEAD.itemsize)


# --- batches --------------------------------------------------------------------------------------------


def make_batches(rows: Rows) -> list[Batch]:
    """One batch of the messages, or several if their creation times are too far apart for one.

    Raises:
        RowRefused: a message does not fit into a batch.
    """
    times = rows.times
    if times is None:
        return [_make_batch(rows)]
    batches, start = [], 0
    while start < len(rows):
        rest = times[start:]
        is_wide = np.maximum.accumulate(rest) - np.minimum.accumulate(rest) > layout.TIMESTAMP_DELTA_MAX
        count = int(is_wide.argmax()) or len(rest)
        batches.append(_make_batch(rows.slice(start, start + count)))
        start += count
    return batches


def _make_batch(rows: Rows) -> Batch:
    count = len(rows)
    heads = np.zeros(count, FRAME_FIELDS)
    ids = (new_ids(count) if rows.ids is None else np.ascontiguousarray(rows.ids)).view("<u8").reshape(count, 2)
    heads["id_low"], heads["id_high"] = ids[:, 0], ids[:, 1]
    heads["offset_delta"] = np.arange(count, dtype=np.uint32)
    sizes = np.diff(_offsets(rows.payloads))
    heads["payload_length"] = sizes
    if rows.blocks is not None:
        block_sizes = np.diff(_offsets(rows.blocks))
        heads["user_headers_length"] = block_sizes
        sizes = sizes + block_sizes
    if int(sizes.max()) > MESSAGE_SIZE_MAX:
        raise RowRefused(f"a message has {int(sizes.max())} bytes; the maximum is {MESSAGE_SIZE_MAX}")
    origin = time.time_ns() // 1000
    if rows.times is not None:
        origin = int(rows.times.min())
        heads["timestamp_delta"] = rows.times - origin
    body = _frames(heads, rows)
    fill_checksums(body, count)
    return batch_of(origin, count, body)


def _frames(heads: NDArray[np.void], rows: Rows) -> memoryview:
    """Frame headers, payloads and user headers of all messages, joined in writable memory."""
    count, size = len(rows), int(heads["payload_length"][0])
    if rows.blocks is None and (heads["payload_length"] == size).all():
        # Payloads of equal size without headers, a common case: two copies, no loop.
        table = np.empty((count, layout.FRAME_HEADER_SIZE + size), np.uint8)
        table[:, : layout.FRAME_HEADER_SIZE] = heads.view(np.uint8).reshape(count, -1)
        table[:, layout.FRAME_HEADER_SIZE :] = np.frombuffer(_data(rows.payloads), np.uint8).reshape(count, size)
        return table.reshape(-1).data
    columns = [_fixed(heads, layout.FRAME_HEADER_SIZE), rows.payloads]
    if rows.blocks is not None:
        columns.append(rows.blocks)
    joined = pc.binary_join_element_wise(*columns, b"")
    data = _data(joined).cast("B")
    return memoryview(bytearray(data)) if data.readonly else data


def _fixed(values: NDArray[Any], width: int) -> Array:
    """A binary column whose values are the elements of an array."""
    count = len(values)
    offsets = np.arange(0, width * count + 1, width, dtype=np.int32)
    data = np.ascontiguousarray(values).view(np.uint8)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _offsets(column: Array) -> NDArray[np.int64]:
    """Where each value of a binary column begins in its data, and where the last one ends."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(1, np.int64)
    start = column.offset
    return np.frombuffer(buffer, np.int32)[start : start + len(column) + 1].astype(np.int64)


def _data(column: Array) -> memoryview:
    """The concatenated values of a binary column."""
    offsets, buffer = _offsets(column), column.buffers()[2]
    return memoryview(b"") if buffer is None else memoryview(buffer)[int(offsets[0]) : int(offsets[-1])]
