"""A schema from a sample of JSON payloads, to be fixed from then on: payloads after the sample do not change it.

The rules. Whole numbers are BIGINT. With fractions among them they are DOUBLE, if a double holds each exactly. Text is
STRING, also if it looks like a time or a number: a later one may not. Objects are STRUCT of all their fields, lists are
ARRAY of what all their elements have in common. Every column is optional, because a sample does not show that a field
is always there. What is ambiguous is STRING, which takes anything: a field that is sometimes a number and sometimes
text, a number that is too large, a field that is always null, an empty object, one with more than 200 fields, one whose
fields differ only in case. So every payload of the sample that is an object, with no field twice, is a good row.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.lake.json_format import JsonNumber, JsonObject, WholeNumber, as_text, parse_object
from courser.lake.payloads import BadPayload
from courser.lake.schemas import DEPTH_MAX, refuse_names
from courser.lake.table_mismatch import SchemaRefused

FIELDS_MAX = 200
"""Fields of an object. One with more is rather a map, whose keys will not end with the sample."""
_EXACT_MAX = 2**53
"""Up to here a double holds every whole number."""
_BIGINT_MAX = 2**63

# Kinds of values, which are types of Arrow, or one of these.
_NOTHING = pa.null()
"""Only nulls so far."""
_LARGE = pa.uint64()
"""A whole number that a BIGINT holds, but a double does not."""
_TEXT = pa.string()


def infer_schema(sample: Iterable[bytes]) -> Any:
    """The Arrow schema of the JSON objects in a sample. Raises ``SchemaRefused`` if there is none."""
    merged: Any = None
    count = 0
    for payload in sample:
        count += 1
        try:
            kind = _struct_of(parse_object(payload), 0)
        except (BadPayload, RecursionError):
            continue
        merged = kind if merged is None else _merge_structs(merged, kind, is_top=True)
    if merged is None or not len(merged):
        what = f"none of the {count} payloads of the sample is a JSON object with fields" if count else "it is empty"
        raise SchemaRefused(f"the sample of the topic gives no schema: {what}; declare a schema, or store payloads raw")
    if len(merged) > FIELDS_MAX:
        raise SchemaRefused(
            f"the sample of the topic has {len(merged)} fields, more than {FIELDS_MAX}; declare those that you need"
        )
    schema = pa.schema([pa.field(field.name, _final(field.type)) for field in merged])
    refuse_names(schema)
    return schema


def _struct_of(fields: Iterable[tuple[str, Any]], depth: int) -> Any:
    kinds: dict[str, Any] = {}
    for name, value in fields:
        # A name that is there twice is a bad payload, whatever the schema; the schema is made by the others.
        kinds[as_text(name, name)] = _kind_of(value, depth + 1)
    return _struct(kinds)


def _struct(kinds: Mapping[str, Any]) -> Any:
    return pa.struct([pa.field(name, kind) for name, kind in kinds.items()])


def _kind_of(value: Any, depth: int) -> Any:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, JsonNumber):
        return _kind_of_number(value)
    if depth >= DEPTH_MAX or not isinstance(value, list):
        return _TEXT
    if isinstance(value, JsonObject):
        return _struct_of(value, depth)
    return pa.list_(reduce(_merge, (_kind_of(item, depth + 1) for item in value), _NOTHING))


def _kind_of_number(value: str) -> Any:
    if isinstance(value, WholeNumber):
        if len(value) > len(str(-_BIGINT_MAX)) or not -_BIGINT_MAX <= int(value) < _BIGINT_MAX:
            return _TEXT
        return pa.int64() if abs(int(value)) <= _EXACT_MAX else _LARGE
    return _TEXT if float(value) in (float("inf"), -float("inf")) else pa.float64()


def _merge(one: Any, other: Any) -> Any:
    types = pa.types
    if one == other or other == _NOTHING:
        return one
    if one == _NOTHING:
        return other
    if types.is_struct(one) and types.is_struct(other):
        return _merge_structs(one, other)
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_merge(one.value_type, other.value_type))
    found = {one, other}
    if found == {pa.int64(), pa.float64()}:
        return pa.float64()
    return _LARGE if found == {pa.int64(), _LARGE} else _TEXT


def _merge_structs(one: Any, other: Any, *, is_top: bool = False) -> Any:
    kinds = {field.name: field.type for field in one}
    for field in other:
        kinds[field.name] = _merge(kinds.get(field.name, _NOTHING), field.type)
    # From here on it is text, so that a sample of objects with ever new keys does not grow without end.
    return _struct(kinds) if is_top or len(kinds) <= FIELDS_MAX else _TEXT


def _final(kind: Any) -> Any:
    """A kind of values as a type of a table."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _final(kind.value_type)))
    if pa.types.is_struct(kind):
        names = {field.name.lower() for field in kind}
        if len(names) < len(kind) or not names or "" in names or len(kind) > FIELDS_MAX:
            return _TEXT
        return pa.struct([pa.field(field.name, _final(field.type)) for field in kind])
    return {_NOTHING: _TEXT, _LARGE: pa.int64()}.get(kind, kind)
