"""Opens the tables that a pipeline fills, with the columns that its rows have."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.jobs.source_topic import SourceTopic, fetch_ranges
from courser.lake.message_columns import MESSAGE_COLUMNS
from courser.lake.payloads import BAD_ROWS
from courser.lake.table_files import columns_of
from courser.lake.table_opening import find_table, open_table
from courser.lake.tables import Patience, Table, TableLayout, TableRefused
from courser.lake.topic_schemas import schema_of
from courser.pipelines.checkpoint import Checkpoint
from courser.pipelines.definition import INFER, Definition
from courser.pipelines.progress import offsets_of
from courser.pipelines.table_rows import TopicRows
from courser.pipelines.table_sinks import bad_place, partition_fields, payloads_of, place_of
from courser.pipelines.table_tasks import MESSAGES, Reading
from courser.spark.decoding import Decoder
from courser.spark.sources import OffsetRange

SAMPLE_COUNT = 500
"""Messages of each end of a partition that decide a schema: old ones may have other fields than new ones."""
SAMPLE_SIZE = 8 * 1024 * 1024
"""Bytes of messages of one end of a partition, if they are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTables:
    """The table of a pipeline, and the one for its bad rows."""

    rows: Table
    bad: Table | None
    reading: Reading
    columns: Any
    """The Arrow schema of the rows."""

    def fit(self) -> None:
        """Give the tables the columns that they lack. Raises ``TableMismatch``."""
        self.rows.evolve(self.columns)
        if self.bad is not None:
            self.bad.evolve(BAD_ROWS)


def reading_of(definition: Definition, table: Table | None, sample: Callable[[], Iterable[bytes]]) -> Reading:
    """How payloads become rows. ``table``: the one that is there. Raises ``SchemaRefused``."""
    decoding, payloads = definition.decoding, payloads_of(definition.decoding)
    if decoding.schema == INFER and table is not None and definition.transform.sql is None:
        # Inferred once. What the table has since then is fixed.
        own = [field for field in columns_of(table.describe()) if field.name not in MESSAGE_COLUMNS]
        schema = pa.schema([pa.field(field.name, _plain(field.type), nullable=field.nullable) for field in own])
    else:
        schema = schema_of(payloads, sample)
    return Reading(name=str(definition.source), payloads=payloads, schema=schema, with_metadata=decoding.with_metadata)


def open_tables(
    rows: TopicRows, definition: Definition, topic: SourceTopic, patience: Patience, environment: Mapping[str, str]
) -> OpenTables:
    """Open the tables, create those that are missing, and add the columns that they lack.

    Raises:
        CourserError: the schema, the place or the table cannot be used.
    """
    sink = definition.sink
    place, partition_by = place_of(sink), partition_fields(sink)
    found = find_table(place, partition_by, environment=environment, patience=patience)
    reading = reading_of(definition, found, lambda: sample_of(topic))
    columns = rows.columns(reading)
    layout = TableLayout(columns=columns, partition_by=partition_by)
    table = found or open_table(place, layout, environment=environment, patience=patience)
    bad = None
    if definition.decoding.on_bad_row == "quarantine" and definition.decoding.format != "raw":
        bad = open_table(bad_place(place), TableLayout(columns=BAD_ROWS), environment=environment, patience=patience)
    tables = OpenTables(rows=table, bad=bad, reading=reading, columns=columns)
    tables.fit()
    return tables


def earlier_ends(table: Table, checkpoint: Checkpoint, topic: str) -> Mapping[int, int] | None:
    """Where a table goes on that has rows of this pipeline but no position; None: it has none.

    Courser used to store the number of a batch in the table, and the offsets in a checkpoint of Spark.
    Raises ``TableRefused`` if only the first of the two is there.
    """
    query = checkpoint.query_id
    batch = table.earlier_batch(query)
    if query is None or batch is None:
        if batch is not None:
            reason = f"it has rows of an earlier version, and their checkpoint {checkpoint.root.place} is gone"
            raise TableRefused(table.name, f"{reason}; restore it, or write to another table")
        return None
    text = checkpoint.batch_offsets(batch)
    if text is None or json.loads(text).get("topic_id") != topic:
        reason = f"the checkpoint {checkpoint.root.place} of its rows does not say where this topic goes on"
        raise TableRefused(table.name, f"{reason}; write to another table")
    return {int(partition): offset for partition, offset in offsets_of(text).next.items()}


def sample_of(topic: SourceTopic) -> Iterator[bytes]:
    """Payloads from both ends of each partition."""
    for partition, bounds in topic.facts.partitions.items():
        last = max(bounds.first, bounds.next - SAMPLE_COUNT)
        first_end = min(bounds.first + SAMPLE_COUNT, last)
        for part in (OffsetRange(partition, bounds.first, first_end), OffsetRange(partition, last, bounds.next)):
            if part.count > 0:
                yield from _payloads(topic, part)


def _payloads(topic: SourceTopic, part: OffsetRange) -> Iterator[bytes]:
    decoder = Decoder(pa.schema([MESSAGES.field("payload")]), stream="", topic="", size_max=topic.options.batch_size)
    size = 0
    for wanted, fetched in fetch_ranges(topic.sources_of(part), topic.options):
        for batch in decoder.decode(fetched.records, wanted.start, wanted.end):
            for payload in batch.column(0).to_pylist():
                yield payload
                size += len(payload)
                if size > SAMPLE_SIZE:
                    return


def _plain(kind: Any) -> Any:
    """A type of a table as schemas have it: tables give long texts and lists."""
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type), nullable=kind.value_field.nullable))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type), nullable=field.nullable) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind
