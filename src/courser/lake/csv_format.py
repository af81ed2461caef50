"""CSV payloads as rows: one record in each payload, with exactly the columns of the schema, in their order.

Texts may be in double quotes, which are doubled within (RFC 4180). A value without quotes that is empty is null. How a
text becomes a value is said in ``text_values``.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.csv as arrow_csv  # type: ignore[import-untyped]

from courser.lake.payloads import BadPayload, shown, text_of, texts_of
from courser.lake.table_mismatch import SchemaRefused
from courser.lake.text_values import NotThatType, Unsure, column_of_texts, expected, value_of_text

_LINE_ENDS = "\r\n"
_MARK = "\ufeff".encode()
"""The byte order mark."""


class CsvFormat:
    """Records with the columns of a schema."""

    def __init__(self, schema: Any, delimiter: str = ",") -> None:
        """Raises ``SchemaRefused`` if CSV has no such values."""
        for field in schema:
            if pa.types.is_nested(field.type):
                raise SchemaRefused(f"the column {field.name} is a list, map or struct, which CSV does not have")
        if not len(schema):
            raise SchemaRefused("the schema has no columns")
        if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
            raise SchemaRefused(f"the delimiter must be one ASCII character that is no quote, not {delimiter!r}")
        self.schema = schema
        self._delimiter = delimiter
        self._converting = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(schema.names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def columns(self, payloads: Any) -> Sequence[Any]:
        lines = pc.utf8_rtrim(texts_of(payloads), characters=_LINE_ENDS)
        # Without line ends in payloads, rows end only where payloads end: as many rows as payloads are one of each.
        if pc.any(pc.match_substring_regex(lines, "[\r\n]")).as_py() or pc.any(pc.equal(lines, "")).as_py():
            raise Unsure
        table = self._split("\n".join(lines.to_pylist()).encode())
        if table.num_rows != len(payloads):
            raise Unsure
        columns = []
        for field in self.schema:
            texts = pa.concat_arrays(table.column(field.name).chunks)
            if texts.null_count and not field.nullable:
                raise Unsure
            columns.append(column_of_texts(texts, field.type))
        return columns

    def _split(self, lines: bytes) -> Any:
        """Lines as columns of text. Raises ``Unsure``."""
        if lines.startswith(_MARK):
            # Arrow would drop it from the first line, and from no other.
            raise Unsure
        reading = arrow_csv.ReadOptions(column_names=self.schema.names, use_threads=False, block_size=len(lines) + 1)
        parsing = arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        try:
            return arrow_csv.read_csv(pa.BufferReader(lines), reading, parsing, self._converting)
        except (pa.ArrowException, UnicodeError) as error:
            raise Unsure from error

    def values(self, payload: bytes) -> Sequence[Any]:
        line = text_of(payload).rstrip(_LINE_ENDS)
        if not line:
            raise BadPayload("the payload is empty")
        texts = self._texts(line)
        return [_value(text, field) for text, field in zip(texts, self.schema, strict=True)]

    def _texts(self, line: str) -> Sequence[str | None]:
        if not any(sign in line for sign in '"\r\n'):
            texts = line.split(self._delimiter)
            if len(texts) != len(self.schema):
                raise BadPayload(f"the payload has {len(texts)} values, but the schema has {len(self.schema)} columns")
            return [text or None for text in texts]
        try:
            rows = self._split(line.encode()).to_pylist()
        except Unsure:
            rows = []
        if len(rows) != 1:
            raise BadPayload(f"the payload is not one CSV record with {len(self.schema)} values: {shown(line)}")
        return list(rows[0].values())


def _value(text: str | None, field: Any) -> Any:
    if text is None:
        if not field.nullable:
            raise BadPayload(f"the field {field.name} is empty, but the schema requires it")
        return None
    try:
        return value_of_text(text, field.type)
    except NotThatType:
        raise BadPayload(f'the field {field.name} is "{shown(text)}", but must be {expected(field.type)}') from None
