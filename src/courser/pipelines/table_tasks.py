"""What the tasks of a pipeline into a table do: decode messages, and write files of rows and of bad rows.

Nobody sees the files before the driver commits them (``courser.lake.tables``).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]

from courser.jobs.source_topic import fetch_ranges
from courser.lake.payloads import BAD_ROWS, Decoded, PayloadFormat, bad_rows, decode, rows_with_messages
from courser.lake.schemas import MESSAGE_FIELDS
from courser.lake.table_files import open_table_store, write_files
from courser.lake.tables import MessageRange, StoreAccess, TableDescription, WrittenFile
from courser.lake.topic_schemas import PayloadsOf, format_of
from courser.spark.decoding import Decoder
from courser.spark.read_options import ReadOptions
from courser.spark.sources import OffsetRange

FILE_SIZE = 128 * 1024 * 1024
"""Bytes of rows in memory from which the result of a query becomes files."""
BAD_PAYLOAD, BAD_REASON = "_bad_payload", "_bad_reason"
"""Columns beside those of the rows, for what cannot be decoded."""
WRITTEN = "path STRING, size BIGINT, row_count BIGINT, layout STRING, partition_values STRING, statistics STRING"
"""The fields of ``WrittenFile`` as columns of Spark."""

MESSAGES = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", MESSAGE_FIELDS.field("_topic_timestamp").type, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""What is read of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table to write files for."""

    description: TableDescription
    access: StoreAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the payloads of a topic become rows."""

    name: str
    """``stream/topic``, for a column."""
    payloads: PayloadsOf
    schema: Any
    """The Arrow schema of the payloads."""
    with_metadata: bool

    def format(self) -> PayloadFormat:
        return format_of(self.payloads, self.schema)

    def decode(self, format_: PayloadFormat, batch: Any) -> tuple[Decoded, Any]:
        """A batch of ``MESSAGES``, decoded, and the columns of its messages."""
        names = pa.array([self.name] * batch.num_rows, pa.string())
        columns = [batch.column(name) for name in ("partition", "offset", "timestamp", "key")]
        arrays = [array.cast(field.type) for array, field in zip([names, *columns], MESSAGE_FIELDS, strict=True)]
        messages = pa.Table.from_arrays(arrays, schema=MESSAGE_FIELDS)
        return decode(format_, batch.column("payload").cast(pa.binary())), messages

    def rows(self, decoded: Decoded, messages: Any) -> Any:
        return rows_with_messages(decoded, messages) if self.with_metadata else decoded.rows

    @property
    def columns(self) -> Any:
        """The Arrow schema of the rows."""
        return pa.schema([*self.schema, *(MESSAGE_FIELDS if self.with_metadata else ())])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What all tasks of a step have in common."""

    options: ReadOptions
    topic: str
    """The uuid of the topic, in hexadecimal."""
    reading: Reading
    rows: Target
    bad: Target | None
    """None: bad rows are only counted."""
    bad_from: Mapping[int, int]
    """The offset from which on bad rows are not in their table yet, by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeWork:
    """The messages of one task."""

    part: OffsetRange
    ranges: tuple[OffsetRange, ...]
    """The same, split by the sources that hold its messages."""
    incarnation: int
    size: int
    """Approximate bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """What a task has done."""

    files: tuple[WrittenFile, ...]
    bad_files: tuple[WrittenFile, ...]
    message_count: int
    bad_count: int
    first_bad: str = ""
    """Where the first bad row is, and why."""


def write_range(step: StepWork, work: RangeWork) -> RangeResult:
    """Write the files of a range. Runs in a task."""
    decoder = Decoder(MESSAGES, stream=step.options.stream, topic=step.options.topic, size_max=step.options.batch_size)
    format_, rows, bad, message_count = step.reading.format(), [], [], 0
    for wanted, fetched in fetch_ranges(work.ranges, step.options):
        for batch in decoder.decode(fetched.records, wanted.start, wanted.end):
            decoded, messages = step.reading.decode(format_, batch)
            rows.append(step.reading.rows(decoded, messages))
            message_count += batch.num_rows
            if decoded.bad:
                bad.append(bad_rows(decoded, batch.column("payload"), messages))
    wrong = pa.concat_tables(bad) if bad else BAD_ROWS.empty_table()
    source = MessageRange(
        topic=step.topic,
        partition=work.part.partition,
        incarnation=work.incarnation,
        first_offset=work.part.start,
        last_offset=work.part.end - 1,
        # A task that Spark repeats is another attempt.
        attempt=uuid4().hex,
    )
    bad_files: list[WrittenFile] = []
    if step.bad is not None and bad:
        is_new = pc.greater_equal(wrong.column("_topic_offset"), step.bad_from.get(work.part.partition, 0))
        bad_files = _written(step.bad, wrong.filter(is_new), source)
    return RangeResult(
        files=tuple(_written(step.rows, pa.concat_tables(rows), source)) if rows else (),
        bad_files=tuple(bad_files),
        message_count=message_count,
        bad_count=wrong.num_rows,
        first_bad=shown_bad(wrong.slice(0, 1).to_pylist()[0]) if bad else "",
    )


def shown_bad(row: Mapping[str, Any]) -> str:
    """Where a bad row is, and why."""
    return f"partition {row['_topic_partition']}, offset {row['_topic_offset']}: {row['reason']}"


def _written(target: Target, rows: Any, source: MessageRange) -> list[WrittenFile]:
    if not rows.num_rows:
        return []
    return write_files(target.description, rows, source, open_table_store(target.access))


# --- within a query of Spark ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """For ``mapInArrow`` over messages: rows, and bad rows with a payload and a reason."""

    reading: Reading

    @property
    def columns(self) -> Any:
        """The Arrow schema of what it returns. Bad rows have no values."""
        own = [field.with_nullable(True) for field in self.reading.columns]
        known = {field.name for field in own}
        messages = [field for field in MESSAGE_FIELDS if field.name not in known]
        return pa.schema([*own, *messages, (BAD_PAYLOAD, pa.binary()), (BAD_REASON, pa.string())])

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Decode all batches of a task."""
        format_, columns = self.reading.format(), self.columns
        for batch in batches:
            decoded, messages = self.reading.decode(format_, batch)
            yield from _filled(rows_with_messages(decoded, messages), columns).to_batches()
            if decoded.bad:
                bad = bad_rows(decoded, batch.column("payload").cast(pa.binary()), messages)
                names = [*MESSAGE_FIELDS.names, BAD_PAYLOAD, BAD_REASON]
                yield from _filled(bad.rename_columns(names), columns).to_batches()


def _filled(rows: Any, columns: Any) -> Any:
    """Rows with these columns, null where they have none."""
    names = set(rows.schema.names)
    arrays = [rows[field.name] if field.name in names else pa.nulls(rows.num_rows, field.type) for field in columns]
    return pa.table([array.cast(field.type) for array, field in zip(arrays, columns, strict=True)], schema=columns)


@dataclass(frozen=True, slots=True)
class WriteRows:
    """For ``mapInArrow`` over rows for a table: writes files, and returns what the driver needs to commit them."""

    target: Target
    source: MessageRange
    """Its attempt is another one in each task."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Write all rows of a task."""
        parts: list[Any] = []
        size = 0
        for batch in batches:
            parts.append(batch)
            size += batch.nbytes
            if size >= FILE_SIZE:
                yield self._write(parts)
                parts, size = [], 0
        if parts:
            yield self._write(parts)

    def _write(self, parts: list[Any]) -> Any:
        source = replace(self.source, attempt=uuid4().hex)
        written = _written(self.target, pa.Table.from_batches(parts), source)
        kinds = {"size": pa.int64(), "row_count": pa.int64()}
        schema = pa.schema([(each.name, kinds.get(each.name, pa.string())) for each in fields(WrittenFile)])
        return pa.RecordBatch.from_pylist([file.to_row() for file in written], schema)
