"""Reads a table together with its topic: the rows up to the table's position, and the messages from there on.

Both come from one look: the files are those of the state of the table that has the position, and the messages end where
the topic ended then. So no message is missing and none is there twice, whatever is committed while the query runs, and
however often it runs. Tasks read the files with Arrow: Spark needs no jars for the format.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.errors import ClientFailure
from courser.jobs.source_topic import SourceTopic, open_topic
from courser.lake.change_events import EnvelopeDecoder
from courser.lake.file_layout import fitted
from courser.lake.message_columns import MESSAGE_COLUMNS, OFFSET, TIMESTAMP
from courser.lake.payloads import PayloadFormat, decode, rows_with_messages
from courser.lake.schemas import MESSAGE_FIELDS, as_plain, parse_schema
from courser.lake.table_files import columns_of, file_layout
from courser.lake.table_opening import find_table
from courser.lake.table_place import TablePlace
from courser.lake.tables import StoreAccess, TableContents, TableDescription, TopicPosition
from courser.lake.topic_schemas import PayloadsOf, format_of
from courser.lake.upserts import decode_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMAT = "courser"
_OFFSET, _DELETES = "_courser_offset", "_courser_deletes"
"""Columns of the tail beside those of the table: what orders the changes of a key, and whether it goes."""


class TableMissing(ClientFailure):
    """There is no such table."""

    def __init__(self, place: TablePlace) -> None:
        super().__init__(f"there is no table {place}; start the pipeline that fills it, or check the name")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """How messages become rows of a table: as the pipeline that fills it does it."""

    topic: str
    """The stream and the topic, as ``shop/orders``."""
    payloads: PayloadsOf
    """JSON without a schema: the columns that the table has."""
    key: tuple[str, ...] = ()
    """The columns that identify a row, if a new row replaces the one with its key."""
    events: bool = False
    """Whether payloads are events of Debezium."""


def read_with_tail(
    spark: "SparkSession",
    place: TablePlace,
    options: Mapping[str, str],
    rows: TableRows,
    *,
    environment: Mapping[str, str] = os.environ,
) -> "DataFrame":
    """All rows of a table, and those of the messages that are not in it yet, as of now.

    Messages that are no rows are left out: they are in the table of bad rows once the pipeline has seen them.

    Args:
        spark: The session.
        place: Where the table is.
        options: Those of a batch read of the topic (docs/spark/reading.md).
        rows: How the pipeline makes rows of messages.
        environment: Where credentials of the store are.

    Raises:
        TableMissing: there is no such table.
        CourserError: the table or the topic cannot be read, or the topic has lost messages behind the position.
    """
    table = find_table(place, environment=environment)
    if table is None:
        raise TableMissing(place)
    topic = open_topic(options)
    contents = table.contents(topic.facts.uuid.hex())
    # Where the topic ends is asked after the position: it is never before it.
    starts = _starts(contents.standing.position, topic)
    behind = open_topic({**options, "startingOffsets": starts, "endingOffsets": "latest"})
    ends = json.dumps({str(partition): end for partition, end in behind.ends.items()})
    messages = (
        spark.read.format(_FORMAT)
        .options(**{**options, "startingOffsets": starts, "endingOffsets": ends, "columns": ",".join(_READ.names)})
        .load()
    )
    stored = _stored(spark, contents, table.access())
    tail = _tail(messages, rows, contents.description)
    return _latest(stored, tail, rows.key) if rows.key else stored.unionByName(tail.drop(_OFFSET, _DELETES))


def _starts(position: TopicPosition | None, topic: SourceTopic) -> str:
    """Where the tail begins. Partitions that are not in the position begin at their start."""
    known = {each.partition: each.next_offset for each in position.partitions} if position is not None else {}
    starts = {
        str(partition): known.get(partition, bounds.first) for partition, bounds in topic.facts.partitions.items()
    }
    return json.dumps(starts)


# --- the table ------------------------------------------------------------------------------------------


def _stored(spark: "SparkSession", contents: TableContents, access: StoreAccess) -> "DataFrame":
    count = max(len(contents.sources), 1)
    files = spark.createDataFrame([(source,) for source in contents.sources], "source STRING").repartition(count)
    return files.mapInArrow(_ReadFiles(contents.description, access), _spark_columns(columns_of(contents.description)))


@dataclass(frozen=True, slots=True)
class _ReadFiles:
    """For ``mapInArrow`` over files. Its access has credentials, which are part of no plan that is shown."""

    description: TableDescription
    access: StoreAccess

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        layout = file_layout(self.description)
        for batch in batches:
            for source in batch.column(0).to_pylist():
                rows = fitted(layout.read([source], self.access), layout.columns, layout.table)
                yield from _as_read(rows).to_batches()


# --- the tail -------------------------------------------------------------------------------------------

_READ = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", MESSAGE_FIELDS.field(TIMESTAMP).type),
        ("key", pa.binary()),
        ("payload", pa.binary()),
    ]
)
"""What is read of messages."""


def _tail(messages: "DataFrame", rows: TableRows, description: TableDescription) -> "DataFrame":
    columns = columns_of(description)
    extra = [pa.field(_OFFSET, pa.int64()), pa.field(_DELETES, pa.bool_())]
    schema = _spark_columns(pa.schema([*(field.with_nullable(True) for field in columns), *extra]))
    return messages.mapInArrow(_DecodeTail(rows, description), schema)


@dataclass(frozen=True, slots=True)
class _DecodeTail:
    """For ``mapInArrow`` over messages."""

    rows: TableRows
    description: TableDescription

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        columns = columns_of(self.description)
        decoder = self._decoder(columns)
        optional = pa.schema([field.with_nullable(True) for field in columns])
        for batch in batches:
            payloads = batch.column("payload").cast(pa.binary())
            messages = self._messages(batch)
            if self.rows.key:
                changes = decode_changes(decoder, payloads, messages, self.rows.key, with_messages=True)
                found, offsets, are_deletes = changes.rows, changes.offsets, changes.are_deletes
            else:
                assert not isinstance(decoder, EnvelopeDecoder), "events have a key"
                decoded = decode(decoder, payloads)
                found = rows_with_messages(decoded, messages)
                offsets = messages.column(OFFSET).take(decoded.good)
                are_deletes = pa.array([False] * found.num_rows, pa.bool_())
            kept = [name for name in found.schema.names if name in columns.names]
            table = fitted(found.select(kept), optional, self.description.root)
            table = table.append_column(_OFFSET, offsets).append_column(_DELETES, are_deletes)
            yield from _as_read(table).to_batches()

    def _decoder(self, columns: Any) -> PayloadFormat | EnvelopeDecoder:
        payloads, own = self.rows.payloads, [field for field in columns if field.name not in MESSAGE_COLUMNS]
        schema = pa.schema([pa.field(field.name, as_plain(field.type), nullable=field.nullable) for field in own])
        if payloads.schema is not None:
            schema = parse_schema(payloads.schema)
        return EnvelopeDecoder(schema, self.rows.key) if self.rows.events else format_of(payloads, schema)

    def _messages(self, batch: Any) -> Any:
        names = pa.array([self.rows.topic] * batch.num_rows, pa.string())
        columns = [batch.column(name) for name in ("partition", "offset", "timestamp", "key")]
        arrays = [array.cast(field.type) for array, field in zip([names, *columns], MESSAGE_FIELDS, strict=True)]
        return pa.Table.from_arrays(arrays, schema=MESSAGE_FIELDS)


def _latest(stored: "DataFrame", tail: "DataFrame", key: Sequence[str]) -> "DataFrame":
    """The newest row of each key: every message of the tail is newer than all rows of the table."""
    from pyspark.sql import Window  # noqa: PLC0415 -- optional
    from pyspark.sql import functions as f  # noqa: PLC0415

    newest = Window.partitionBy(*key).orderBy(f.col(_OFFSET).desc())
    rank = "_courser_rank"
    changes = tail.withColumn(rank, f.row_number().over(newest)).where(f.col(rank) == 1).drop(rank, _OFFSET)
    old = stored.join(changes.select(*key), on=list(key), how="left_anti").select(*stored.columns)
    return old.unionByName(changes.where(~f.col(_DELETES)).drop(_DELETES))


# --- what both share ------------------------------------------------------------------------------------


def _spark_columns(columns: Any) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 -- optional

    return from_arrow_schema(_plain(columns), prefer_timestamp_ntz=True)


def _as_read(rows: Any) -> Any:
    """With the types that Spark expects, all optional."""
    return rows.cast(_plain(rows.schema))


def _plain(columns: Any) -> Any:
    return pa.schema([pa.field(field.name, as_plain(field.type)) for field in columns])
