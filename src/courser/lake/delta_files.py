"""Data files of Delta tables, without the table's log: for tasks.

Partition columns are folders and not in the files. Other tools read such folders only if every file is in one.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from courser.archive.reader import open_store
from courser.lake.file_names import NULL_VALUE
from courser.lake.table_mismatch import TableMismatch
from courser.lake.table_place import store_settings
from courser.lake.tables import PartitionField, StoreAccess, TableDescription, WrittenFile
from courser.storage.local_files import LocalFileSystem

STATISTICS_COLUMNS_MAX = 32
"""Columns from the first on that have bounds in the log, as Delta's own writers have it."""
STATISTICS_TEXT_MAX = 64
"""Characters. Longer texts have no bounds: they would make the log large, and cutting the upper one is no bound."""
_EXACT_DIGITS = 15
"""Digits of a decimal that a number of JSON holds in every reader."""


def described(columns: Any, partition_by: Sequence[PartitionField]) -> str:
    """The body of a description. ``columns``: the Arrow schema of the table."""
    schema = base64.b64encode(columns.serialize().to_pybytes()).decode("ascii")
    fields = [[field.source, field.transform, field.argument, field.name] for field in partition_by]
    return json.dumps({"columns": schema, "partition_by": fields})


class DeltaFiles:
    """Implements ``FileLayout``."""

    def __init__(self, description: TableDescription) -> None:
        body = json.loads(description.body)
        self._layout = description.layout
        self.table = description.root
        self._all = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(body["columns"])))
        self._fields = [
            PartitionField(source=source, transform=transform, argument=argument)
            for source, transform, argument, _ in body["partition_by"]
        ]
        self._names = [name for *_, name in body["partition_by"]]
        derived = {field.name for field in self._fields if field.transform != "identity"}
        self.columns = pa.schema([field for field in self._all if field.name not in derived])
        self.file_schema = pa.schema([field for field in self._all if field.name not in self._names])

    @property
    def partition_sources(self) -> Sequence[str]:
        return [field.source for field in self._fields]

    def partition_values(self, rows: Any) -> Sequence[Any]:
        values = [derived(field, rows[field.source]).cast(self._all.field(field.name).type) for field in self._fields]
        # A text without characters is null in the log, and belongs to the same folder.
        return [
            pc.if_else(pc.equal(array, ""), None, array) if pa.types.is_string(array.type) else array
            for array in values
        ]

    def partition_text(self, values: Sequence[Any]) -> str:
        return json.dumps([as_text(value) for value in values])

    def key(self, values: Sequence[Any], name: str) -> str:
        folders = [_folder(column, as_text(value)) for column, value in zip(self._names, values, strict=True)]
        return "/".join([*folders, name])

    def written(self, key: str, values: Sequence[Any], size: int, metadata: Any) -> WrittenFile:
        return WrittenFile(
            path=key,
            size=size,
            row_count=metadata.num_rows,
            layout=self._layout,
            partition_values=self.partition_text(values),
            statistics=json.dumps(_statistics(metadata, self.file_schema)),
        )

    def read(self, sources: Sequence[str], access: StoreAccess, names: Sequence[str] | None = None) -> Any:
        """Sources: the key of a file, and its partition values as texts."""
        store = open_store(store_settings(access), LocalFileSystem(), b"")
        columns = self.columns if names is None else pa.schema([self.columns.field(name) for name in names])
        tables = []
        for source in sources:
            key, values = json.loads(source)
            file = pq.ParquetFile(BytesIO(store.read(key)))
            rows = file.read(columns=[name for name in columns.names if name in file.schema_arrow.names])
            arrays = [self._column(rows, field, dict(zip(self._names, values, strict=True))) for field in columns]
            tables.append(pa.table(arrays, schema=columns))
        return pa.concat_tables(tables)

    def path(self, source: str) -> str:
        return str(json.loads(source)[0])

    def _column(self, rows: Any, field: Any, values: Mapping[str, str | None]) -> Any:
        if field.name in values:
            value = values[field.name]
            return pa.array([value] * rows.num_rows, pa.string()).cast(field.type)
        if field.name in rows.schema.names:
            return rows[field.name].cast(field.type)
        return pa.nulls(rows.num_rows, field.type)


def _folder(column: str, value: str | None) -> str:
    """As Delta's own writers name it: without blanks, which other folders of a lake have."""
    return f"{quote(column, safe='')}={NULL_VALUE if value is None else quote(value, safe='')}"


def derived(field: PartitionField, column: Any) -> Any:
    """The values that a partition field has for those of its source."""
    match field.transform:
        case "identity":
            return column
        case "day":
            return _instant(column).cast(pa.date32())
        case "hour":
            return pc.floor_temporal(_instant(column), unit="hour")
        case "month" | "year":
            return pc.floor_temporal(_instant(column), unit=field.transform).cast(pa.date32())
        case "bucket" | "truncate":
            # Those of Iceberg: a table of either format has its rows in the same buckets.
            from pyiceberg.transforms import BucketTransform, TruncateTransform  # noqa: PLC0415 -- only for these two
            from pyiceberg.types import BinaryType  # noqa: PLC0415

            kind = BucketTransform if field.transform == "bucket" else TruncateTransform
            transform: BucketTransform[Any] | TruncateTransform[Any] = kind(field.argument or 0)
            # It looks at the type of the array alone.
            return transform.pyarrow_transform(BinaryType())(column)


def derived_type(field: PartitionField, source: Any) -> Any:
    """The type of the column of a partition field."""
    try:
        return derived(field, pa.chunked_array([pa.array([], source)])).type
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, TypeError) as error:
        raise TableMismatch(field.source, f"{field.transform} is not possible for values of type {source}") from error


def _instant(column: Any) -> Any:
    """Times of the day in UTC: a table has no other zone."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.timestamp(column.type.unit))
    return column


def as_text(value: Any) -> str | None:
    """A partition value as Delta's log has it. A text without characters is null there."""
    match value:
        case None | "" | b"":
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return moment.isoformat(" ", "microseconds")
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case _:
            return str(value)


def _statistics(metadata: Any, schema: Any) -> dict[str, Any]:
    """Counts and bounds by column, from the footer: of plain columns, whose bounds are exact."""
    names = {field.name for field in list(schema)[:STATISTICS_COLUMNS_MAX] if not pa.types.is_nested(field.type)}
    lows: dict[str, list[Any]] = {}
    highs: dict[str, list[Any]] = {}
    nulls: dict[str, int] = {}
    unbounded = set()
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for place in range(metadata.num_columns):
            column = row_group.column(place)
            name, found = column.path_in_schema, column.statistics
            if name not in names:
                continue
            if found is None or not found.has_null_count:
                unbounded |= {name}
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                lows.setdefault(name, []).append(found.min)
                highs.setdefault(name, []).append(found.max)
            elif found.null_count < column.num_values:
                unbounded |= {name}
    bounds: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}}
    for name in sorted(lows.keys() - unbounded):
        low, high = min(lows[name]), max(highs[name])
        if (text := _as_json(low)) is not None:
            bounds["minValues"][name] = text
        # NaN is in no footer, and larger than all numbers for those who read the log.
        if not isinstance(high, float) and (text := _as_json(high)) is not None:
            bounds["maxValues"][name] = text
    return {"numRecords": metadata.num_rows, **bounds, "nullCount": nulls}


def _as_json(value: Any) -> Any:
    """A bound, or None if it has no exact form."""
    match value:
        case bool() | bytes():
            return None
        case str():
            return value if len(value) <= STATISTICS_TEXT_MAX else None
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value) if len(value.as_tuple().digits) <= _EXACT_DIGITS else None
        case datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return f"{text}Z" if value.tzinfo else text
        case date():
            return value.isoformat()
        case int():
            return value
        case _:
            return None
