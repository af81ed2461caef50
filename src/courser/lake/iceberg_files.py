"""Data files of Iceberg tables, without catalog and without pyiceberg's access to stores: for tasks."""

import base64
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    ArrowScan,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from courser.lake.tables import StoreAccess, TableDescription, WrittenFile

_BOUNDS = ("lower_bounds", "upper_bounds")


class IcebergFiles:
    """Implements ``FileLayout``. The body of the description is the table's metadata without its history."""

    def __init__(self, description: TableDescription) -> None:
        self._description = description
        self._metadata: TableMetadata = TableMetadataUtil.parse_raw(description.body)
        self._schema, self._spec = self._metadata.schema(), self._metadata.spec()
        self.table = self._metadata.location
        self.columns = schema_to_pyarrow(self._schema, include_field_ids=False)
        self.file_schema = schema_to_pyarrow(self._schema, include_field_ids=True)
        self._root = description.root.rstrip("/") + "/"
        self._locations = load_location_provider(self._metadata.location, self._metadata.properties)

    @property
    def partition_sources(self) -> Sequence[str]:
        return [self._schema.find_column_name(field.source_id) or "" for field in self._spec.fields]

    def partition_values(self, rows: Any) -> Sequence[Any]:
        return [
            field.transform.pyarrow_transform(self._schema.find_type(field.source_id))(_column(rows, source))
            for field, source in zip(self._spec.fields, self.partition_sources, strict=True)
        ]

    def partition_text(self, values: Sequence[Any]) -> str:
        return partition_text(self._record(values), partition_types(self._spec, self._schema))

    def key(self, values: Sequence[Any], name: str) -> str:
        if values:
            name = f"{self._spec.partition_to_path(self._record(values), self._schema)}/{name}"
        return self._locations.new_data_location(name).removeprefix(self._root)

    def _record(self, values: Sequence[Any]) -> Record:
        fields = zip(self._spec.fields, values, strict=True)
        return Record(*(partition_record_value(field, value, self._schema) for field, value in fields))

    @cached_property
    def _statistics(self) -> Callable[[Any], dict[str, Any]]:
        plan = compute_statistics_plan(self._schema, self._metadata.properties)
        mapping = parquet_path_to_id_mapping(self._schema)
        return lambda metadata: data_file_statistics_from_parquet_metadata(metadata, plan, mapping).to_serialized_dict()

    def written(self, key: str, values: Sequence[Any], size: int, metadata: Any) -> WrittenFile:
        statistics = self._statistics(metadata)
        for name in _BOUNDS:
            statistics[name] = {number: _text(bound) for number, bound in statistics[name].items()}
        return WrittenFile(
            path=self._root + key,
            size=size,
            row_count=metadata.num_rows,
            layout=self._description.layout,
            partition_values=self.partition_text(values),
            statistics=json.dumps(statistics),
        )

    def read(self, sources: Sequence[str], access: StoreAccess, names: Sequence[str] | None = None) -> Any:
        tasks = [FileScanTask(data_file(WrittenFile(**json.loads(source)), self._metadata)) for source in sources]
        store = load_file_io(dict(access.options), self._metadata.location)
        columns = self._schema if names is None else self._schema.select(*names)
        return ArrowScan(self._metadata, store, columns, AlwaysTrue()).to_table(tasks)

    def path(self, source: str) -> str:
        return str(json.loads(source)["path"])


def partition_types(spec: PartitionSpec, schema: Schema) -> list[PrimitiveType]:
    """The types of the partition values."""
    kinds = [field.field_type for field in spec.partition_type(schema).fields]
    return [kind for kind in kinds if isinstance(kind, PrimitiveType)]


def partition_text(values: Record, types: Sequence[PrimitiveType]) -> str:
    """Partition values as ``WrittenFile`` has them."""
    texts = [
        None if values[place] is None else _text(to_bytes(kind, values[place])) for place, kind in enumerate(types)
    ]
    return json.dumps(texts)


def data_file(file: WrittenFile, metadata: TableMetadata) -> DataFile:
    """A file as a manifest has it."""
    statistics = json.loads(file.statistics)
    # The keys are ids of fields, which JSON has as texts.
    by_field = {
        name: {int(number): _bytes(value) if name in _BOUNDS else value for number, value in values.items()}
        for name, values in statistics.items()
        if isinstance(values, dict)
    }
    spec = metadata.spec()
    values = zip(partition_types(spec, metadata.schema()), json.loads(file.partition_values), strict=True)
    file_of_table = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(None if text is None else from_bytes(kind, _bytes(text)) for kind, text in values)),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **(statistics | by_field),
    )
    # It is not part of a manifest's entry, so it is set apart: reading needs it.
    file_of_table.spec_id = spec.spec_id
    return file_of_table


def _column(rows: Any, name: str) -> Any:
    """A column, or a field inside of one."""
    first, *inner = name.split(".")
    column = rows[first].combine_chunks() if isinstance(rows[first], pa.ChunkedArray) else rows[first]
    return pc.struct_field(column, inner) if inner else column


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
