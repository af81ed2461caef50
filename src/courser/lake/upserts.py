"""Upserts: rows of a topic replace the rows of a table that have the same key, exactly once with the position.

A file of a table never changes, so the files that hold a key are written again without it. In two steps of tasks,
because only the first knows the keys and only the second knows the files:

1. Tasks decode their messages (``decode_changes``) and call ``write_changes``: the latest change of each key, as files
   beside the table that no reader sees, split as the table is.
2. The driver calls ``upsert``. It plans which files may hold the keys, has tasks call ``apply_changes``, and commits
   the new files, the removal of the old ones and the position at once. If somebody else has meanwhile written where
   the keys may be, it plans again: otherwise a key could be there twice.

The messages of a key are in one partition of a topic, and the larger offset wins. An older message can never replace
what is in the table: its commit would start before the position, and is refused. A row whose ``before`` is elsewhere
needs no care either: all files that may hold the key are looked through, whatever partition the new row belongs to.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from courser.archive.store import Store
from courser.lake.change_events import DELETE, EnvelopeDecoder, latest_by_key
from courser.lake.file_layout import FileLayout, fitted
from courser.lake.message_columns import KEY, OFFSET
from courser.lake.payloads import Bad, Decoded, PayloadFormat, decode, rows_with_messages
from courser.lake.table_file_names import CHANGES, own_file, rows_name
from courser.lake.table_files import create_file, file_layout, parquet_bytes, split_rows, write_rows
from courser.lake.tables import (
    Commit,
    MessageRange,
    StoreAccess,
    Table,
    TableDescription,
    Upserted,
    UpsertOvertaken,
    UpsertWork,
    WrittenChanges,
)

PLANS_MAX = 20
"""Times that an upsert is planned while somebody else writes to the same files, before the job tells about it."""
_OFFSET, _DELETES = "_courser_offset", "_courser_deletes"
"""Columns of files of changes, beside those of the table: what orders the changes of a key, and whether it goes."""


# --- messages become changes ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowChanges:
    """A batch of messages as changes. Each message is a change, in ``bad``, or says nothing that others do not."""

    rows: Any
    """An Arrow table. A row that deletes has at least its key."""
    offsets: Any
    """An Arrow array: the offset of each row."""
    are_deletes: Any
    bad: tuple[Bad, ...]
    """By the place in the batch."""


def decode_changes(
    decoder: PayloadFormat | EnvelopeDecoder, payloads: Any, messages: Any, key: Sequence[str], *, with_messages: bool
) -> RowChanges:
    """Decode a batch: events of Debezium, or rows of which an empty payload deletes the one with the message's key.

    ``messages``: a table of ``MESSAGE_FIELDS``, a row for each payload. ``with_messages``: whether rows have these.
    """
    payloads = payloads.fill_null(b"")
    if isinstance(decoder, EnvelopeDecoder):
        changes = decoder.decode(payloads)
        rows, places, bad = changes.rows, changes.good, changes.bad
        are_deletes = pc.equal(changes.operations, DELETE)
        rows = rows_with_messages(Decoded(rows, places, ()), messages) if with_messages else rows
    else:
        is_empty = pc.equal(pc.binary_length(payloads), 0)
        filled, empty = pc.indices_nonzero(pc.invert(is_empty)), pc.indices_nonzero(is_empty)
        decoded = decode(decoder, payloads.take(filled))
        bad = tuple(replace(found, index=filled[found.index].as_py()) for found in decoded.bad)
        places = pa.concat_arrays([filled.take(decoded.good).cast(pa.int64()), empty.cast(pa.int64())])
        nothing = pa.Table.from_arrays(
            [pa.nulls(len(empty), field.type) for field in decoder.schema], schema=_optional(decoder.schema)
        )
        rows = pa.concat_tables([decoded.rows.cast(_optional(decoder.schema)), nothing])
        rows = rows_with_messages(Decoded(rows, places, ()), messages) if with_messages else rows
        are_deletes = pa.array(np.arange(len(places)) >= len(decoded.good))
    return _with_key(RowChanges(rows, messages.column(OFFSET).take(places), are_deletes, bad), places, key)


def _with_key(changes: RowChanges, places: Any, key: Sequence[str]) -> RowChanges:
    """Without the rows that have no key: no later row could replace them."""
    has_key = pa.array([True] * changes.rows.num_rows, pa.bool_())
    for name in key:
        has_key = pc.and_(has_key, pa.chunked_array(changes.rows[name]).is_valid().combine_chunks())
    if pc.all(has_key).as_py() or not len(has_key):
        return changes
    bad = []
    for place in pc.indices_nonzero(pc.invert(has_key)).to_pylist():
        if changes.are_deletes[place].as_py() and KEY not in key:
            reason = f"the payload is empty, so it has no value for the key {', '.join(key)}; key the table by {KEY}"
        else:
            reason = f"it has no value for the key {', '.join(key)}"
        bad.append(Bad(places[place].as_py(), reason))
    return RowChanges(
        changes.rows.filter(has_key),
        changes.offsets.filter(has_key),
        changes.are_deletes.filter(has_key),
        tuple(sorted([*changes.bad, *bad], key=lambda one: one.index)),
    )


def _optional(columns: Any) -> Any:
    return pa.schema([field.with_nullable(True) for field in columns])


# --- the first step of tasks ----------------------------------------------------------------------------


def write_changes(
    description: TableDescription, key: Sequence[str], changes: RowChanges, source: MessageRange, store: Store
) -> list[WrittenChanges]:
    """Write the latest change of each key, for those who apply it. Nobody else sees the files.

    Raises:
        TableMismatch: the rows have columns or types that the table lacks.
        ArchiveFailure: the store refused, or did not answer.
    """
    layout = file_layout(description)
    rows = changes.rows.combine_chunks()
    latest = latest_by_key([rows[name] for name in key], changes.offsets, changes.are_deletes)
    keyed = pa.schema([layout.columns.field(name) for name in key])
    deleted = fitted(rows.take(latest.deletes).select(key), keyed, layout.table)
    tables = [
        fitted(rows.take(latest.upserts), layout.columns, layout.table).cast(_optional(layout.columns)),
        fitted(deleted, _optional(layout.columns), layout.table),
    ]
    places = pa.concat_arrays([latest.upserts, latest.deletes])
    table = pa.concat_tables(tables).append_column(_OFFSET, changes.offsets.take(places))
    table = table.append_column(_DELETES, changes.are_deletes.take(places))
    decides = set(layout.partition_sources) <= set(key)
    written = []
    parts = split_rows(table, layout.partition_values(table) if decides else ())
    for number, (values, part) in enumerate(parts):
        name = f"{CHANGES}/{rows_name(description, source, number)}"
        create_file(store, name, parquet_bytes(part)[0])
        partition = layout.partition_text(values) if decides else None
        written.append(
            WrittenChanges(key=name, row_count=part.num_rows, layout=description.layout, partition=partition)
        )
    return written


# --- the second step of tasks ---------------------------------------------------------------------------


def apply_changes(work: UpsertWork, attempt: str, access: StoreAccess, store: Store) -> Upserted:
    """Write the files that hold a key again, without it, and the new rows. ``attempt`` is used only once.

    Raises:
        ArchiveFailure: the store refused, or did not answer.
    """
    layout, key = file_layout(work.description), list(work.key)
    needed = None if work.adds else key
    changes = pa.concat_tables([pq.read_table(BytesIO(store.read(name)), columns=needed) for name in work.changes])
    keys = changes.select(key).combine_chunks()
    parts, replaced = [], []
    for source in work.sources:
        hit = _are_in(layout.read([source], access, key), keys, layout)
        if hit.any():
            rows = layout.read([source], access)
            parts.append(fitted(rows.filter(pa.array(~hit)), layout.columns, layout.table))
            replaced.append(layout.path(source))
    if work.adds:
        latest = latest_by_key([keys[name] for name in key], changes[_OFFSET], changes[_DELETES])
        parts.append(fitted(changes.take(latest.upserts).select(layout.columns.names), layout.columns, layout.table))
    if not parts:
        return Upserted(files=(), replaced=())
    files = write_rows(layout, pa.concat_tables(parts), _names(work, attempt), store)
    return Upserted(files=tuple(files), replaced=tuple(replaced))


def _are_in(rows: Any, keys: Any, layout: FileLayout) -> Any:
    """Which rows have one of the keys, as an array of NumPy."""
    schema = pa.schema([layout.columns.field(name) for name in keys.schema.names])
    rows, keys = rows.select(schema.names).cast(_optional(schema)), keys.cast(_optional(schema))
    if len(schema) == 1:
        found = pc.is_in(rows.column(0), value_set=keys.column(0).combine_chunks())
        return np.asarray(found.combine_chunks().to_numpy(zero_copy_only=False), dtype=bool)
    hit = np.zeros(rows.num_rows, dtype=bool)
    numbered = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    hit[numbered.join(keys, schema.names, join_type="left semi")["row"].to_numpy()] = True
    return hit


def _names(work: UpsertWork, attempt: str) -> Iterator[str]:
    """Named after the changes: their offsets are behind the position once the files are in the table."""
    own = own_file(work.changes[0])
    assert own is not None, "write_changes names them"
    source = MessageRange(
        topic=own.topic,
        partition=own.partition,
        incarnation=own.incarnation,
        first_offset=own.first_offset,
        last_offset=own.last_offset,
        attempt=attempt,
    )
    return (rows_name(work.description, source, number) for number in itertools.count())


# --- the driver -----------------------------------------------------------------------------------------


def upsert(
    table: Table,
    key: Sequence[str],
    changes: Sequence[WrittenChanges],
    commit: Commit,
    run: Callable[[Sequence[UpsertWork]], Iterable[Upserted]],
) -> bool:
    """Apply changes and move the position, as ``commit`` says. Returns False if this very commit had landed before.

    ``commit`` has no files yet. ``run`` calls ``apply_changes`` for all works, in tasks.

    Raises:
        UpsertOvertaken: somebody else kept writing to the same files.
        CourserError: whatever ``Table.commit`` and ``Table.plan_upsert`` raise.
    """
    for _ in range(PLANS_MAX):
        plan = table.plan_upsert(key, changes)
        results = list(run(plan.works)) if plan.works else []
        files = tuple(file for result in results for file in result.files)
        replaced = tuple(path for result in results for path in result.replaced)
        with suppress(UpsertOvertaken):
            return table.commit(replace(commit, plan=plan, files=files, replaced=replaced))
    raise UpsertOvertaken(table.name)


def remove_changes(changes: Iterable[WrittenChanges], store: Store) -> None:
    """Remove changes that have been applied. What is left after a failure, the removal of orphans finds."""
    for each in changes:
        with suppress(Exception):
            store.delete(each.key)
