"""The columns of a table as an Arrow schema: as text in the syntax of SQL, as JSON, and which names they may have."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.lake.message_columns import KEY, OFFSET, PARTITION, RESERVED, TIMESTAMP, TOPIC
from courser.lake.table_mismatch import SchemaRefused
from courser.lake.text_values import INSTANT, LOCAL

MESSAGE_FIELDS = pa.schema(
    [
        pa.field(TOPIC, pa.string()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, INSTANT),
        pa.field(KEY, pa.binary()),
    ]
)
"""The types of the columns that say which message a row comes from. All are optional: others may write rows, too."""
DEPTH_MAX = 32
"""Levels of types within each other. No table needs more, and parsers of other tools follow each level by a call."""

_NAMED = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": INSTANT,
    "TIMESTAMP_NTZ": LOCAL,
}
_NAME_BY_TYPE = {kind: name for name, kind in _NAMED.items()}
_SYNONYMS = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_DECIMAL_DIGITS_MAX = 38
"""More do not fit into the 16 bytes that Parquet, Iceberg and Delta have for a decimal."""
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")|([<>(),:]))")


# --- from text ----------------------------------------------------------------------------------------


class _Tokens:
    """The words and signs of a text, one after another."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._position = 0

    def peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self._position += 1
        return token

    def take_if(self, *words: str) -> bool:
        """Take these words, whatever their case, if they come next."""
        following = self._tokens[self._position : self._position + len(words)]
        if [token.upper() for token in following] != list(words):
            return False
        self._position += len(words)
        return True

    def expect(self, sign: str, after: str) -> None:
        if not self.take_if(sign):
            found = self.peek()
            raise SchemaRefused(f'expected "{sign}" after {after}, but found {quoted(found) if found else "the end"}')

    def integer(self, after: str) -> int:
        token = self.take()
        if not re.fullmatch(r"[0-9]{1,9}", token):
            raise SchemaRefused(f"expected a number after {after}, but found {quoted(token) if token else 'the end'}")
        return int(token)


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if found is None:
            raise SchemaRefused(
                f"did not understand {quoted(text[position:].strip()[:20])}; write name TYPE, name TYPE"
            )
        yield found.group().strip()
        position = found.end()


def quoted(text: str) -> str:
    return f'"{text}"'


def parse_schema(text: str) -> Any:
    """The Arrow schema of columns such as ``id BIGINT NOT NULL, tags ARRAY<STRING>``. Raises ``SchemaRefused``."""
    tokens = _Tokens(text)
    try:
        schema = pa.schema(_fields(tokens, "", 0))
    except SchemaRefused as error:
        raise SchemaRefused(f"the schema is not a list of columns: {error}") from None
    refuse_names(schema)
    return schema


def parse_type(text: str) -> Any:
    """The Arrow type of a text such as ``ARRAY<STRING>``. Raises ``SchemaRefused``."""
    tokens = _Tokens(text)
    kind = _type(tokens, "the type", 0)
    if tokens.peek():
        raise SchemaRefused(f"{text} is not a type: {quoted(tokens.peek())} is too much")
    return kind


def _fields(tokens: _Tokens, end: str, depth: int) -> list[Any]:
    """The fields before the sign ``end``, which is left."""
    fields = []
    while True:
        name = tokens.take()
        if not name or name[0] in "<>(),:'\"":
            raise SchemaRefused(f"expected the name of a column, but found {quoted(name) if name else 'the end'}")
        if name[0] == "`":
            name = name[1:-1].replace("``", "`")
        tokens.take_if(":")
        kind = _type(tokens, name, depth)
        required = tokens.take_if("NOT", "NULL")
        if tokens.take_if("COMMENT") and tokens.take()[:1] not in ("'", '"'):
            raise SchemaRefused(f"expected a text in quotes after COMMENT of {name}")
        fields.append(pa.field(name, kind, nullable=not required))
        if tokens.peek() == end:
            return fields
        tokens.expect(",", name)


def _type(tokens: _Tokens, name: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise SchemaRefused(f"{name} has more than {DEPTH_MAX} types within each other")
    given = tokens.take()
    word = given.upper()
    word = _SYNONYMS.get(word, word)
    if word in _NAMED:
        return _NAMED[word]
    if word in _DECIMALS:
        return _decimal(tokens, name)
    if word not in ("ARRAY", "MAP", "STRUCT"):
        known = ", ".join([*_NAMED, "DECIMAL(p, s)", "ARRAY<…>", "MAP<…, …>", "STRUCT<…>"])
        raise SchemaRefused(f"{quoted(given) if given else 'nothing'} is not a type, for {name}; the types are {known}")
    tokens.expect("<", word)
    if word == "ARRAY":
        kind = pa.list_(pa.field("element", _type(tokens, name, depth + 1)))
    elif word == "MAP":
        key = _type(tokens, name, depth + 1)
        tokens.expect(",", f"the key of {name}")
        kind = pa.map_(key, _type(tokens, name, depth + 1))
    else:
        kind = pa.struct(_fields(tokens, ">", depth + 1))
    tokens.expect(">", f"the type of {name}")
    return kind


def _decimal(tokens: _Tokens, name: str) -> Any:
    precision, scale = 10, 0
    if tokens.take_if("("):
        precision = tokens.integer("DECIMAL(")
        scale = tokens.integer(",") if tokens.take_if(",") else 0
        tokens.expect(")", f"the digits of {name}")
    if not 1 <= precision <= _DECIMAL_DIGITS_MAX or scale > precision:
        raise SchemaRefused(
            f"DECIMAL({precision}, {scale}) of {name} is impossible: a decimal has 1 to {_DECIMAL_DIGITS_MAX} digits, "
            "and no more of them after the point than in all"
        )
    return pa.decimal128(precision, scale)


def refuse_names(schema: Any) -> None:
    """Check that no column has a reserved name, or one that another has in another case. Raises ``SchemaRefused``."""
    for name in schema.names:
        if name.lower() in MESSAGE_FIELDS.names:
            raise SchemaRefused(f"the column name {name} is reserved: it says which message a row comes from")
        if name.lower() in RESERVED:
            raise SchemaRefused(f"the column name {name} is reserved by Iceberg, Delta or Spark")
    _refuse_similar_names(schema, "the schema")


def _refuse_similar_names(fields: Sequence[Any], place: str) -> None:
    known: dict[str, str] = {}
    for field in fields:
        if not field.name:
            raise SchemaRefused(f"{place} has a column without a name")
        other = known.get(field.name.lower())
        if other is not None:
            same = "twice" if other == field.name else f"and {field.name}, which differ only in case"
            raise SchemaRefused(f"{place} has the column {other} {same}")
        known[field.name.lower()] = field.name
    for field in fields:
        for inner in structs_of(field.type):
            _refuse_similar_names(list(inner), field.name)


def structs_of(kind: Any) -> Iterator[Any]:
    """The struct that a type is, or that its elements or values are."""
    if pa.types.is_struct(kind):
        yield kind
    elif pa.types.is_list(kind):
        yield from structs_of(kind.value_type)
    elif pa.types.is_map(kind):
        yield from structs_of(kind.item_type)


def as_optional(kind: Any) -> Any:
    """A type whose fields may all be missing."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, as_optional(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", as_optional(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, as_optional(kind.item_type))
    return kind


def as_plain(kind: Any) -> Any:
    """A type of a table as schemas have it: tables give long texts, and lists whose elements have another name."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", as_plain(kind.value_type), nullable=kind.value_field.nullable))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, as_plain(field.type), nullable=field.nullable) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(as_plain(kind.key_type), as_plain(kind.item_type))
    return kind


# --- to text ------------------------------------------------------------------------------------------


def type_text(kind: Any) -> str:
    """A type as ``parse_type`` reads it. Raises ``SchemaRefused`` for types that no topic has."""
    if kind in _NAME_BY_TYPE:
        return _NAME_BY_TYPE[kind]
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(_field_text(field, ': ') for field in kind)}>"
    raise SchemaRefused(f"{kind} is not a type of a table's column")


def schema_text(schema: Any) -> str:
    """A schema as ``parse_schema`` reads it."""
    return ", ".join(_field_text(field, " ") for field in schema)


def _field_text(field: Any, separator: str) -> str:
    name = field.name if re.fullmatch(r"[A-Za-z_]\w*", field.name, re.ASCII) else f"`{field.name.replace('`', '``')}`"
    return f"{name}{separator}{type_text(field.type)}{'' if field.nullable else ' NOT NULL'}"


def schema_to_json(schema: Any) -> str:
    """A schema as one line of JSON, for the position that a table keeps."""
    fields = [{"name": field.name, "type": type_text(field.type), "required": not field.nullable} for field in schema]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def schema_from_json(text: str) -> Any:
    """The schema that ``schema_to_json`` wrote. Raises ``SchemaRefused``."""
    try:
        rows = json.loads(text)
        if not isinstance(rows, list):
            raise ValueError("it is not a list")
        return pa.schema([pa.field(row["name"], parse_type(row["type"]), nullable=not row["required"]) for row in rows])
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaRefused(f"{text[:80]} is not a schema as JSON: {error!r}") from error
