"""Parses the user headers of many messages at once: all blocks are walked in parallel, one entry per step.

No Python object is created per message or entry: numpy finds keys and values, Arrow gathers them. The format of a block
is described in ``courser.records.user_headers``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from numpy.typing import NDArray

from courser.client.arrow import gather
from courser.records.message_keys import KEY_HEADER
from courser.records.user_headers import FIELD_SIZE_MAX, HeaderKind

Positions = NDArray[np.int64]

_KIND_MAX = int(HeaderKind.FLOAT64)
_LENGTH_SIZE = 4
_FIELD_SIZE = 1 + _LENGTH_SIZE
"""Bytes before the contents of a field: its kind and its length."""
_KEY_HEADER = np.frombuffer(KEY_HEADER, np.uint8)


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of all valid blocks, in order: the row of the message, and the positions of key and value."""

    rows: Positions
    key_starts: Positions
    key_ends: Positions
    value_starts: Positions
    value_ends: Positions

    def chosen(self, which: NDArray[Any]) -> "Entries":
        """The entries that ``which`` selects."""
        return Entries(
            self.rows[which],
            self.key_starts[which],
            self.key_ends[which],
            self.value_starts[which],
            self.value_ends[which],
        )


def find_entries(data: NDArray[np.uint8], starts: Positions, lengths: Positions) -> Entries:
    """Parse the blocks at ``starts``. A block in another format, such as an encrypted one, has no entries."""
    rows = np.flatnonzero(lengths)
    positions, ends = starts[rows], (starts + lengths)[rows]
    is_opaque = np.zeros(len(starts), np.bool_)
    steps: list[tuple[Positions, ...]] = []
    while len(rows):
        # Clamp positions beyond the end of a block to its last bytes; such entries are rejected below.
        last = ends - _FIELD_SIZE
        key_field = np.minimum(positions, np.maximum(last, 0))
        key_start = positions + _FIELD_SIZE
        key_end = key_start + _length_at(data, key_field + 1)
        value_field = np.minimum(key_end, np.maximum(last, 0))
        value_start = key_end + _FIELD_SIZE
        value_end = value_start + _length_at(data, value_field + 1)
        is_good = (
            (key_start <= ends)
            & (value_start <= ends)
            & (value_end <= ends)
            & _is_kind(data[key_field])
            & _is_kind(data[value_field])
            & _is_length(key_end - key_start)
            & _is_length(value_end - value_start)
        )
        is_opaque[rows[~is_good]] = True
        steps.append(tuple(array[is_good] for array in (rows, key_start, key_end, value_start, value_end)))
        goes_on = is_good & (value_end < ends)
        rows, positions, ends = rows[goes_on], value_end[goes_on], ends[goes_on]
    if not steps:
        nothing = np.empty(0, np.int64)
        return Entries(nothing, nothing, nothing, nothing, nothing)
    entries = Entries(*(np.concatenate(column) for column in zip(*steps, strict=True)))
    if len(steps) > 1:
        entries = entries.chosen(np.argsort(entries.rows, kind="stable"))
    return entries.chosen(~is_opaque[entries.rows]) if is_opaque.any() else entries


def _length_at(data: NDArray[np.uint8], positions: Positions) -> Positions:
    """The 32-bit numbers at these positions."""
    every_byte: NDArray[np.uint32] = np.ndarray((max(len(data) - _LENGTH_SIZE + 1, 0),), "<u4", data, 0, (1,))
    return every_byte[np.minimum(positions, len(every_byte) - 1)].astype(np.int64)


def _is_kind(kinds: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (kinds >= 1) & (kinds <= _KIND_MAX)


def _is_length(lengths: Positions) -> NDArray[np.bool_]:
    return (lengths >= 1) & (lengths <= FIELD_SIZE_MAX)


def is_key(data: NDArray[np.uint8], entries: Entries) -> NDArray[np.bool_]:
    """Which entries hold the message key rather than a user's header."""
    found: NDArray[np.bool_] = entries.key_ends - entries.key_starts == len(KEY_HEADER)
    candidates = np.flatnonzero(found)
    if len(candidates):
        names = data[entries.key_starts[candidates, None] + np.arange(len(KEY_HEADER))]
        found[candidates] = (names == _KEY_HEADER).all(axis=1)
    return found


# --- columns ------------------------------------------------------------------------------------------


def key_column(data: NDArray[np.uint8], entries: Entries, count: int) -> Any:
    """The key of every message; null where there is none."""
    keys = entries.chosen(is_key(data, entries))
    if not len(keys.rows):
        return pa.nulls(count, pa.binary())
    # If a message has several, the first one counts, as everywhere.
    rows, first = np.unique(keys.rows, return_index=True)
    if len(rows) != len(keys.rows):
        keys = keys.chosen(first)
    values = gather(data, keys.value_starts, keys.value_ends)
    if len(rows) == count:
        return values
    lengths = np.zeros(count, np.int32)
    lengths[rows] = keys.value_ends - keys.value_starts
    return pa.Array.from_buffers(
        pa.binary(), count, [_validity(rows, count), pa.py_buffer(_offsets(lengths)), values.buffers()[2]]
    )


def headers_column(data: NDArray[np.uint8], entries: Entries, count: int, kind: Any) -> Any:
    """The headers of every message without the key, as a map or a list of structs; null where there are none."""
    headers = entries.chosen(~is_key(data, entries))
    if not len(headers.rows):
        return pa.nulls(count, kind)
    rows, counts = np.unique(headers.rows, return_counts=True)
    lengths = np.zeros(count, np.int32)
    lengths[rows] = counts
    pair = kind.field(0).type if pa.types.is_map(kind) else kind.value_type
    columns = [
        _as_text(gather(data, headers.key_starts, headers.key_ends)),
        gather(data, headers.value_starts, headers.value_ends),
    ]
    children = [pa.StructArray.from_arrays(columns, fields=[pair.field(0), pair.field(1)])]
    buffers = [_validity(rows, count), pa.py_buffer(_offsets(lengths))]
    return pa.Array.from_buffers(kind, count, buffers, children=children)


def _offsets(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _validity(rows: Positions, count: int) -> Any:
    is_there = np.zeros(count, np.bool_)
    is_there[rows] = True
    return pa.py_buffer(np.packbits(is_there, bitorder="little"))


def _as_text(names: Any) -> Any:
    """Binary as text. Bytes that are not valid UTF-8 become replacement characters."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.as_py().decode(errors="replace") for name in names], pa.string())
