"""Changes instead of rows: Debezium's events as rows with an operation, and what is left of a batch by key.

An event of Debezium is a JSON object with the row before, the row after, and what happened. It comes alone, or as the
``payload`` beside a ``schema``, as Kafka's converter writes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]

from courser.lake.json_format import JsonFormat
from courser.lake.payloads import Bad, decode, shown
from courser.lake.schemas import as_optional
from courser.lake.table_mismatch import SchemaRefused

INSERT, UPDATE, DELETE = "insert", "update", "delete"
_OPERATIONS = {"c": INSERT, "r": INSERT, "u": UPDATE, "d": DELETE}
"""By Debezium's letter. ``r`` is a row of the first snapshot."""
_UNKNOWN = {"t": "it empties the whole table", "m": "it is a message, not a row"}


@dataclass(frozen=True, slots=True)
class Changes:
    """A batch of events. Each payload is in ``good``, in ``bad`` or in ``tombstones``, once."""

    rows: Any
    """An Arrow table: the row after an insert or update; of a delete, the row before, as far as the event has it."""
    operations: Any
    """An Arrow array: for each row ``insert``, ``update`` or ``delete``."""
    good: Any
    """An Arrow array: the place in the batch of the payload of each row."""
    bad: tuple[Bad, ...]
    tombstones: Any
    """The places of empty payloads. Debezium sends one after each delete, which it only repeats."""


class EnvelopeDecoder:
    """Decodes events about rows of a schema."""

    def __init__(self, schema: Any, key: Sequence[str]) -> None:
        """``key``: the columns that identify a row. Raises ``SchemaRefused``."""
        check_key(schema, key)
        self.schema = schema
        self._key = tuple(key)
        # The row before has only its key, or nothing at all, unless the database is told otherwise.
        self._row = pa.struct(list(schema))
        before = pa.struct([pa.field(field.name, as_optional(field.type)) for field in schema])
        envelope = [pa.field("before", before), pa.field("after", self._row), pa.field("op", pa.string())]
        self._format = JsonFormat(pa.schema([*envelope, pa.field("payload", pa.struct(envelope))]))

    def decode(self, payloads: Any) -> Changes:
        """Decode a binary array of events."""
        filled = payloads.fill_null(b"")
        is_empty = pc.equal(pc.binary_length(filled), 0)
        tombstones, events = _places(is_empty), _places(pc.invert(is_empty))
        decoded = decode(self._format, filled.take(events))
        places = events.take(decoded.good)
        bad = [Bad(events[found.index].as_py(), found.reason) for found in decoded.bad]
        before, after, letters = _unwrapped(decoded.rows.combine_chunks())
        is_delete = pc.fill_null(pc.equal(letters, "d"), False)
        is_good = self._judge(before, after, letters, is_delete, places, bad)
        kept = _places(is_good)
        rows = _chosen(after, before, is_delete, self.schema).take(kept)
        operations = pa.array([_OPERATIONS[letter] for letter in letters.take(kept).to_pylist()], pa.string())
        return Changes(rows, operations, places.take(kept), tuple(sorted(bad, key=lambda one: one.index)), tombstones)

    def _judge(self, before: Any, after: Any, letters: Any, is_delete: Any, places: Any, bad: list[Bad]) -> Any:
        """Which events can be applied. Adds the others to ``bad``."""
        is_known = pc.is_in(letters, pa.array(list(_OPERATIONS)))
        has_row = pc.is_valid(after)
        has_key = pc.if_else(is_delete, _has_key(before, self._key), _has_key(after, self._key))
        is_good = pc.and_(pc.and_(is_known, pc.or_(is_delete, has_row)), has_key)
        for index in _places(pc.invert(is_good)).to_pylist():
            letter = letters[index].as_py()
            if not is_known[index].as_py():
                reason = _UNKNOWN.get(letter, "it must be c, r, u or d")
                reason = f"the field op is {'missing' if letter is None else shown(letter)}: {reason}"
            elif letter != "d" and not has_row[index].as_py():
                reason = f"the field after is missing, but an event with op {letter} needs it"
            else:
                side = "before" if letter == "d" else "after"
                reason = f"the field {side} has no value for the key {', '.join(self._key)}"
            bad.append(Bad(places[index].as_py(), reason))
        return is_good


def check_key(schema: Any, key: Sequence[str]) -> None:
    """Check that the columns of a key identify rows. Raises ``SchemaRefused``."""
    if not key:
        raise SchemaRefused("the key has no columns")
    for name in key:
        if name not in schema.names:
            raise SchemaRefused(f"the key {name} is not a column; the columns are {', '.join(schema.names)}")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise SchemaRefused(f"the column {name} cannot be a key: values of {kind} are not compared exactly")


def _places(are: Any) -> Any:
    """Where an array of truth values is true."""
    return pa.array(np.flatnonzero(are.to_numpy(zero_copy_only=False)), pa.int64())


def _unwrapped(events: Any) -> tuple[Any, Any, Any]:
    """The arrays before, after and op, from within ``payload`` where an event has its fields there."""
    within = _array(events.column("payload"))
    is_within = within.is_valid().to_numpy(zero_copy_only=False)
    rows = np.arange(len(within)) + np.where(is_within, len(within), 0)
    found = []
    for name in ("before", "after", "op"):
        inner = within.flatten()[within.type.get_field_index(name)]
        found.append(pa.concat_arrays([_array(events.column(name)), inner]).take(pa.array(rows)))
    return found[0], found[1], found[2]


def _array(column: Any) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _has_key(rows: Any, key: Sequence[str]) -> Any:
    found = rows.is_valid()
    fields = rows.flatten()
    for name in key:
        found = pc.and_(found, fields[rows.type.get_field_index(name)].is_valid())
    return found


def _chosen(after: Any, before: Any, is_delete: Any, schema: Any) -> Any:
    """The row before of deletes and the row after of others, as a table of optional columns."""
    rows = pa.array(np.arange(len(after)) + np.where(is_delete.to_numpy(zero_copy_only=False), len(after), 0))
    columns = []
    fields = [pa.field(field.name, as_optional(field.type)) for field in schema]
    for field, later, earlier in zip(fields, after.flatten(), before.flatten(), strict=True):
        columns.append(pa.concat_arrays([later.cast(field.type), earlier]).take(rows))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


# --- the latest by key --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Latest:
    """What is left of a batch by key. A key is in one of the first two, once. Arrays of places in the batch."""

    upserts: Any
    """The latest row of each key that is not deleted."""
    deletes: Any
    """Of each key whose latest row is a delete marker, that row."""
    keyless: Any
    """Rows without a key, which no later row can replace."""


def latest_by_key(keys: Sequence[Any], offsets: Any, are_deletes: Any) -> Latest:
    """The latest row of each key. All arguments are arrays as long as the batch.

    ``keys``: the columns of the key. ``offsets``: what orders the rows of a key; of equal ones, the later row counts.
    ``are_deletes``: whether a row deletes its key.
    """
    columns = [_array(key) if isinstance(key, pa.ChunkedArray) else key for key in keys]
    has_key = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
    # Ranks by offset, so that the largest place within a key is the latest.
    order = np.argsort(np.asarray(offsets), kind="stable")
    order = order[has_key[order]]
    names = [f"key_{number}" for number in range(len(columns))]
    ordered = pa.array(order, pa.int64())
    table = pa.table([*(column.take(ordered) for column in columns), pa.array(np.arange(len(order)))], [*names, "rank"])
    ranks = table.group_by(names, use_threads=False).aggregate([("rank", "max")]).column("rank_max").to_numpy()
    latest = np.sort(order[ranks])
    is_delete = np.asarray(are_deletes, dtype=bool)[latest]
    return Latest(
        upserts=pa.array(latest[~is_delete], pa.int64()),
        deletes=pa.array(latest[is_delete], pa.int64()),
        keyless=pa.array(np.flatnonzero(~has_key), pa.int64()),
    )
