"""Decodes Avro payloads with fastavro, because Spark's own decoder is in a package that pip does not install.

Each payload is one datum without a header, written with the schema from the schema file.
"""

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from courser.errors import ClientFailure

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
_KEPT = {*_LOGICAL, "decimal"}
"""Logical types that map to a Spark type. Others are read as their underlying type: a uuid as text, a time of day as a
number."""


class AvroRefused(ClientFailure):
    """A schema cannot be read, or has no equivalent in Spark."""


def read_avro_schema(path: Path) -> str:
    """The validated schema in a file, as JSON. Raises ``AvroRefused``."""
    try:
        from fastavro import parse_schema  # noqa: PLC0415 -- optional
        from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise AvroRefused("fastavro is not installed; run: pip install 'courser[lake]'") from error
    try:
        # Parsing also expands all names to full names.
        schema = parse_schema(json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise AvroRefused(f"could not read {path}: {error.strerror or error}") from error
    except (ValueError, SchemaParseException, UnknownType) as error:
        raise AvroRefused(f"{path} is not a valid Avro schema: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise AvroRefused(f"{path}: the schema must be an Avro record")
    return json.dumps(_plain(schema))


def _plain(part: Any) -> Any:
    """A schema without the logical types that Spark does not have."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _plain(value)
        for name, value in part.items()
        if not name.startswith("__") and not (name == "logicalType" and value not in _KEPT)
    }


def avro_columns(schema: str) -> "list[StructField]":
    """Columns for the fields of a record. All are nullable, because bad rows have no values. Raises ``AvroRefused``."""
    from pyspark.sql.types import StructField  # noqa: PLC0415

    record = json.loads(schema)
    named = {record["name"]: record}
    within = (record["name"],)
    return [StructField(field["name"], _type_of(field["type"], named, within), True) for field in record["fields"]]


def _type_of(kind: Any, named: dict[str, Any], within: tuple[str, ...]) -> "DataType":
    """``named``: types defined so far. ``within``: names of the enclosing records."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType  # noqa: PLC0415

    if isinstance(kind, list):
        others = [item for item in kind if item != "null"]
        if len(others) != 1:
            raise AvroRefused(f"Spark has no equivalent for a union of {len(others)} types: {json.dumps(kind)}")
        return _type_of(others[0], named, within)
    if isinstance(kind, str):
        return _type_of(named[kind], named, within) if kind in named else _primitive(kind)
    if kind.get("name") in within:
        raise AvroRefused(f"record {kind['name']} is recursive, which Spark does not support")
    if "name" in kind:
        named[kind["name"]] = kind
        within = (*within, kind["name"])
    if "logicalType" in kind:
        return _logical(kind)
    match kind["type"]:
        case "record":
            return StructType(
                [StructField(field["name"], _type_of(field["type"], named, within)) for field in kind["fields"]]
            )
        case "array":
            return ArrayType(_type_of(kind["items"], named, within))
        case "map":
            return MapType(StringType(), _type_of(kind["values"], named, within))
        case other:
            return _type_of(other, named, within) if isinstance(other, list | dict) else _primitive(other)


def _primitive(kind: str) -> "DataType":
    from pyspark.sql.types import _parse_datatype_string  # noqa: PLC0415

    if kind not in _PRIMITIVES:
        raise AvroRefused(f'Spark has no equivalent for the Avro type "{kind}"')
    found: DataType = _parse_datatype_string(_PRIMITIVES[kind])
    return found


def _logical(kind: dict[str, Any]) -> "DataType":
    from pyspark.sql.types import DecimalType, _parse_datatype_string  # noqa: PLC0415

    name = kind["logicalType"]
    if name == "decimal":
        return DecimalType(kind["precision"], kind.get("scale", 0))
    if name in _LOGICAL:
        found: DataType = _parse_datatype_string(_LOGICAL[name])
        return found
    return _primitive(kind["type"])


class AvroDecoder:
    """Decodes batches in a task. ``columns`` is the output schema in Spark's JSON form."""

    def __init__(self, schema: str, columns: str) -> None:
        self._schema = schema
        self._columns = columns

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields one output batch per input batch."""
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional
        from fastavro import parse_schema  # noqa: PLC0415
        from pyspark.sql.types import StructType  # noqa: PLC0415

        from courser.spark.releases import arrow_schema  # noqa: PLC0415 -- needs pyspark

        parsed = parse_schema(json.loads(self._schema))
        schema = arrow_schema(StructType.fromJson(json.loads(self._columns)))
        for batch in batches:
            rows, reasons = _decode(batch.column("_payload").to_pylist(), parsed)
            arrays = []
            for column in schema:
                if column.name == "_bad":
                    arrays.append(pa.array(reasons, pa.string()))
                elif column.name in batch.schema.names:
                    arrays.append(batch.column(column.name))
                else:
                    arrays.append(pa.array([row.get(column.name) for row in rows], column.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decode(payloads: list[bytes | None], schema: Any) -> tuple[list[dict[str, Any]], list[str | None]]:
    from fastavro import schemaless_reader  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    reasons: list[str | None] = []
    for payload in payloads:
        row: Any = {}
        reason = None
        try:
            source = io.BytesIO(payload or b"")
            row = schemaless_reader(source, schema, None)
            if source.read(1):
                row, reason = {}, "the payload has extra bytes after its Avro record"
        except Exception as error:  # noqa: BLE001 -- fastavro raises whatever a wrong byte leads to
            reason = f"the payload does not match the Avro schema: {type(error).__name__}: {error}"
        rows.append(row)
        reasons.append(reason)
    return rows, reasons
