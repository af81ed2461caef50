"""JSON payloads as rows of a declared schema: many at once with Arrow's parser, or one with a reason.

What is good: an object (RFC 8259) in UTF-8 that names at least one of the columns. A column that is missing or null is
null, if that is allowed. Other fields are not looked at. A column or field that appears twice is wrong. Whole numbers
have no point, exponent or quotes; what is out of range is wrong, never rounded. Decimals may be in quotes. Times, dates
and bytes (base64) are text. A STRING takes anything: what is not text becomes its JSON.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.json as arrow_json  # type: ignore[import-untyped]

from courser.lake.payloads import BadPayload, offsets_of, shown, text_of, texts_of
from courser.lake.table_mismatch import SchemaRefused
from courser.lake.text_values import (
    NotThatType,
    Unsure,
    all_finite,
    column_of_texts,
    expected,
    narrowed,
    value_of_text,
    wide_decimal,
)

_BLANKS = " \t\r\n"
_NO_NUMBER = re.compile(rb"[:,\[][ \t\r\n]*-?(?:NaN|Inf(?:inity)?)[ \t\r\n]*[,\]}]")
"""What Arrow's parser takes for a number, but is not JSON."""

_OPEN, _CLOSE = ord("{"), ord("}")
Convert = Callable[[Any, str], Any]
"""From a value that was parsed, and the path of its field, to a value for Arrow. Raises ``BadPayload``."""


class JsonObject(list[tuple[str, Any]]):
    """The fields of an object, in order. A name may be there twice."""


class JsonNumber(str):
    """A number, as it is written."""

    __slots__ = ()


class WholeNumber(JsonNumber):
    """A number without a point or an exponent."""

    __slots__ = ()


def _refuse_constant(word: str) -> None:
    raise BadPayload(f"the payload is not JSON: {word} is not a JSON value")


_PARSER = json.JSONDecoder(
    object_pairs_hook=JsonObject, parse_int=WholeNumber, parse_float=JsonNumber, parse_constant=_refuse_constant
)


def parse_object(payload: bytes) -> list[tuple[str, Any]]:
    """The fields of a payload: text as ``str``, numbers as ``JsonNumber``.

    Raises ``BadPayload``, and ``RecursionError`` if lists or objects are too deep within each other.
    """
    if not payload.strip():
        raise BadPayload("the payload is empty")
    text = text_of(payload)
    try:
        value = _PARSER.decode(text)
    except json.JSONDecodeError as error:
        raise BadPayload(f"the payload is not JSON: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(value, JsonObject):
        raise BadPayload(f"the payload is {shown(json_text(value))}, not a JSON object")
    return value


def json_text(value: Any) -> str:
    """A parsed value as JSON without blanks. Numbers stay as they were written."""
    if isinstance(value, JsonNumber):
        return str(value)
    if isinstance(value, JsonObject):
        return "{" + ",".join(f"{_quoted(name)}:{json_text(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class JsonFormat:
    """JSON objects with the columns of a schema."""

    def __init__(self, schema: Any) -> None:
        """Raises ``SchemaRefused`` if JSON has no such values."""
        if not len(schema):
            raise SchemaRefused("the schema has no columns")
        self.schema = schema
        self._convert = _struct_converter(list(schema))
        self._read_fields = [pa.field(field.name, _read_type(field.type)) for field in schema]
        self._is_fast = not any(_has_map(field.type) for field in schema)
        self._names = frozenset(schema.names)

    def columns(self, payloads: Any) -> Sequence[Any]:
        if not self._is_fast:
            raise Unsure
        lines = _lines(payloads)
        options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(self._read_fields), unexpected_field_behavior="ignore", newlines_in_values=False
        )
        # One block: the parser cuts others at line ends, also at those within a payload.
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        try:
            table = arrow_json.read_json(pa.BufferReader(lines), reading, options)
        except (pa.ArrowException, UnicodeError) as error:
            raise Unsure from error
        if table.num_rows != len(payloads):
            raise Unsure
        read = [table.column(field.name).combine_chunks() for field in self._read_fields]
        _check_that_none_is_empty(read)
        return [_typed(_one_array(column), field) for column, field in zip(read, self.schema, strict=True)]

    def values(self, payload: bytes) -> Sequence[Any]:
        try:
            return self._values(payload)
        except RecursionError:
            return self._values_of_deep_json(payload)

    def _values_of_deep_json(self, payload: bytes) -> Sequence[Any]:
        """Arrow's parser follows any depth, Python's does not. What is good alone must be good beside bad ones."""
        try:
            return [column[0].as_py() for column in self.columns(pa.array([payload], pa.binary()))]
        except Unsure:
            raise BadPayload("the payload has too many lists or objects within each other to be read") from None

    def _values(self, payload: bytes) -> Sequence[Any]:
        fields = parse_object(payload)
        if not any(name in self._names for name, _ in fields):
            raise BadPayload(f"the payload has none of the columns {shown(', '.join(self.schema.names))}")
        row: dict[str, Any] = self._convert(fields, "")
        return list(row.values())


# --- many payloads ------------------------------------------------------------------------------------


def _lines(payloads: Any) -> Any:
    """The payloads as lines of text, in one buffer. Raises ``Unsure``.

    Each must begin with "{" and end with "}". Then as many rows as payloads prove that each payload is one row: at its
    end, the parser is not within a text, because no text has a line end in it; so the "}" closed something, and after
    that "{" can only follow between rows. Each payload is therefore one row or more.
    """
    texts = texts_of(payloads)
    if not _are_braced(texts):
        texts = pc.utf8_trim(texts, characters=_BLANKS)
        if not _are_braced(texts):
            raise Unsure
    lines = pc.binary_join_element_wise(texts, "", "\n")
    offsets = offsets_of(lines)
    joined = lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()
    # Almost always false, and much faster than the pattern.
    if (b"NaN" in joined or b"Inf" in joined) and _NO_NUMBER.search(joined):
        raise Unsure
    return joined


def _are_braced(texts: Any) -> bool:
    offsets = offsets_of(texts)
    begins, ends = offsets[:-1], offsets[1:]
    if (ends - begins < len("{}")).any():
        return False
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    return bool((data[begins] == _OPEN).all() and (data[ends - 1] == _CLOSE).all())


def _read_type(kind: Any) -> Any:
    """The type to let Arrow's parser read a type as."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return wide_decimal(kind)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _read_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _read_type(field.type)) for field in kind])
    return kind


def _has_map(kind: Any) -> bool:
    """Whether there is a map in a type, which Arrow's parser does not have."""
    if pa.types.is_map(kind):
        return True
    if pa.types.is_list(kind):
        return _has_map(kind.value_type)
    return pa.types.is_struct(kind) and any(_has_map(field.type) for field in kind)


def _one_array(column: Any) -> Any:
    """A column as one array; ``combine_chunks`` gives a chunked one if there are no rows."""
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _check_that_none_is_empty(columns: Sequence[Any]) -> None:
    """Raises ``Unsure`` if a row has nothing but nulls: its payload may have none of the columns."""
    if all(column.null_count for column in columns):
        are_empty = np.logical_and.reduce([column.is_null().to_numpy(zero_copy_only=False) for column in columns])
        if are_empty.any():
            raise Unsure


def _typed(values: Any, field: Any) -> Any:
    """Values as they were read, as those of the field. Raises ``Unsure``."""
    if values.null_count and not field.nullable:
        raise Unsure
    return _typed_values(values, field.type)


def _typed_values(values: Any, kind: Any) -> Any:
    types = pa.types
    if types.is_decimal(kind):
        return narrowed(values, kind)
    if types.is_floating(kind):
        return all_finite(values)
    if types.is_list(kind):
        inner = _typed_values(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, inner, type=kind, mask=values.is_null())
    if types.is_struct(kind):
        return _typed_struct(values, kind)
    return values if values.type == kind else column_of_texts(values, kind)


def _typed_struct(values: Any, kind: Any) -> Any:
    children = []
    for field in kind:
        child = values.field(kind.get_field_index(field.name))
        # Where the struct itself is null, so are its fields.
        if not field.nullable and child.null_count != values.null_count:
            raise Unsure
        children.append(_typed_values(child, field.type))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())


# --- one payload --------------------------------------------------------------------------------------


def _converter(kind: Any) -> Convert:
    types = pa.types
    if types.is_struct(kind):
        return _of_type(JsonObject, kind, _struct_converter(list(kind)))
    if types.is_list(kind):
        return _of_type(list, kind, _list_converter(kind))
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise SchemaRefused("the keys of a MAP must be STRING, because those of JSON are")
        return _of_type(JsonObject, kind, _map_converter(kind))
    if types.is_string(kind):
        return as_text
    return _scalar_converter(kind)


def is_json_list(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, JsonObject)


def _wrong(value: Any, path: str, kind: Any) -> BadPayload:
    return BadPayload(f"the field {path} is {shown(json_text(value))}, but must be {expected(kind)}")


def _of_type(python_type: type, kind: Any, convert: Convert) -> Convert:
    def checked(value: Any, path: str) -> Any:
        if not isinstance(value, python_type) or (python_type is list and not is_json_list(value)):
            raise _wrong(value, path, kind)
        return convert(value, path)

    return checked


def _struct_converter(fields: Sequence[Any]) -> Convert:
    """From an object to a dictionary in the order of the fields."""
    converters = {field.name: _converter(field.type) for field in fields}
    required = [field.name for field in fields if not field.nullable]
    nothing: dict[str, Any] = dict.fromkeys(converters)

    def convert(value: list[tuple[str, Any]], path: str) -> dict[str, Any]:
        row = dict(nothing)
        seen = set()
        prefix = f"{path}." if path else ""
        for name, item in value:
            converter = converters.get(name)
            if converter is None:
                continue
            if name in seen:
                raise BadPayload(f"the field {prefix}{name} appears twice")
            seen.add(name)
            if item is not None:
                row[name] = converter(item, prefix + name)
        for name in required:
            if row[name] is None:
                what = "null" if name in seen else "missing"
                raise BadPayload(f"the field {prefix}{name} is {what}, but the schema requires it")
        return row

    return convert


def _list_converter(kind: Any) -> Convert:
    convert_item = _converter(kind.value_type)

    def convert(value: list[Any], path: str) -> list[Any]:
        return [None if item is None else convert_item(item, f"{path}[{number}]") for number, item in enumerate(value)]

    return convert


def _map_converter(kind: Any) -> Convert:
    convert_item = _converter(kind.item_type)

    def convert(value: list[tuple[str, Any]], path: str) -> list[tuple[str, Any]]:
        items: dict[str, Any] = {}
        for name, item in value:
            if name in items:
                raise BadPayload(f"the field {path}.{name} appears twice")
            items[as_text(name, f"{path}.{name}")] = None if item is None else convert_item(item, f"{path}.{name}")
        return list(items.items())

    return convert


def as_text(value: Any, path: str) -> str:
    """What a STRING is of a parsed value. Raises ``BadPayload``."""
    text = value if type(value) is str else json_text(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            reason = "which has half of a surrogate pair: it is no text"
            raise BadPayload(f'the field {path} is "{shown(ascii(text)[1:-1])}", {reason}') from error
    return text


def _scalar_converter(kind: Any) -> Convert:
    """Numbers and truth values, and what JSON has only as text."""
    types = pa.types
    is_whole, is_boolean = types.is_integer(kind), types.is_boolean(kind)
    takes_numbers = types.is_floating(kind) or types.is_decimal(kind)
    takes_text = not (is_whole or is_boolean or types.is_floating(kind))

    def convert(value: Any, path: str) -> Any:
        if is_boolean:
            fits = isinstance(value, bool)
        elif isinstance(value, JsonNumber):
            fits = takes_numbers or (is_whole and isinstance(value, WholeNumber))
        else:
            fits = takes_text and isinstance(value, str)
        if not fits:
            raise _wrong(value, path, kind)
        if is_boolean:
            return value
        try:
            return value_of_text(str(value), kind)
        except NotThatType:
            raise _wrong(value, path, kind) from None

    return convert
