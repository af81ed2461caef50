"""Avro payloads as rows, with fastavro: Spark's own decoder is in a package that pip does not install.

Each payload is one datum without a header, written with the schema from the schema file.
"""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.errors import ClientFailure
from courser.lake.payloads import BadPayload
from courser.lake.text_values import INSTANT, LOCAL, Unsure

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": INSTANT,
    "timestamp-micros": INSTANT,
    "local-timestamp-millis": LOCAL,
    "local-timestamp-micros": LOCAL,
}
_KEPT = {*_LOGICAL, "decimal"}
"""Logical types that map to a type of tables. Others are read as their underlying type: a uuid as text, a time of day
as a number."""


class AvroRefused(ClientFailure):
    """A schema cannot be read, or has no equivalent in Spark and in tables."""


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
    """A schema without the logical types that tables do not have."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _plain(value)
        for name, value in part.items()
        if not name.startswith("__") and not (name == "logicalType" and value not in _KEPT)
    }


# --- types --------------------------------------------------------------------------------------------


def avro_columns(schema: str) -> Any:
    """The Arrow schema of the fields of a record. A field that cannot be null is required. Raises ``AvroRefused``."""
    record = json.loads(schema)
    return pa.schema(_fields(record, {record["name"]: record}, (record["name"],)))


def _fields(record: Any, named: dict[str, Any], within: tuple[str, ...]) -> list[Any]:
    return [
        pa.field(field["name"], _type_of(field["type"], named, within), nullable=_is_optional(field["type"]))
        for field in record["fields"]
    ]


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, list) and "null" in kind


def _type_of(kind: Any, named: dict[str, Any], within: tuple[str, ...]) -> Any:
    """``named``: types defined so far. ``within``: names of the enclosing records."""
    if isinstance(kind, list):
        others = [item for item in kind if item != "null"]
        if len(others) != 1:
            raise AvroRefused(f"no table has an equivalent for a union of {len(others)} types: {json.dumps(kind)}")
        return _type_of(others[0], named, within)
    if isinstance(kind, str):
        return _type_of(named[kind], named, within) if kind in named else _primitive(kind)
    if kind.get("name") in within:
        raise AvroRefused(f"record {kind['name']} is recursive, which tables do not have")
    if "name" in kind:
        named[kind["name"]] = kind
        within = (*within, kind["name"])
    if "logicalType" in kind:
        return _logical(kind)
    match kind["type"]:
        case "record":
            return pa.struct(_fields(kind, named, within))
        case "array":
            return pa.list_(pa.field("element", _type_of(kind["items"], named, within)))
        case "map":
            return pa.map_(pa.string(), _type_of(kind["values"], named, within))
        case other:
            return _type_of(other, named, within) if isinstance(other, list | dict) else _primitive(other)


def _primitive(kind: str) -> Any:
    if kind not in _PRIMITIVES:
        raise AvroRefused(f'no table has an equivalent for the Avro type "{kind}"')
    return _PRIMITIVES[kind]


def _logical(kind: dict[str, Any]) -> Any:
    name = kind["logicalType"]
    if name == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    return _LOGICAL[name] if name in _LOGICAL else _primitive(kind["type"])


# --- payloads -----------------------------------------------------------------------------------------


class AvroFormat:
    """Data of one Avro schema, as ``read_avro_schema`` returns it."""

    def __init__(self, schema: str) -> None:
        from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 -- optional

        self.schema = avro_columns(schema)
        self._parsed = parse_schema(json.loads(schema))
        self._read: Callable[..., Any] = schemaless_reader

    def columns(self, payloads: Any) -> Sequence[Any]:  # noqa: ARG002 -- there is no fast way, whatever they are
        raise Unsure

    def values(self, payload: bytes) -> Sequence[Any]:
        if not payload and len(self.schema):
            raise BadPayload("the payload is empty")
        source = io.BytesIO(payload)
        try:
            row = self._read(source, self._parsed, None)
        except Exception as error:
            raise BadPayload(f"the payload does not match the Avro schema: {type(error).__name__}: {error}") from error
        if source.read(1):
            raise BadPayload("the payload has extra bytes after its Avro record")
        return [row[name] for name in self.schema.names]
