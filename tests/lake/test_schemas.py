"""Schemas as text and as JSON, and the names that columns may not have."""

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.lake.schemas import parse_schema, schema_from_json, schema_text, schema_to_json, type_text
from courser.lake.table_mismatch import SchemaRefused


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("id BIGINT, at TIMESTAMP", "id BIGINT, at TIMESTAMP"),
        ("id long not null, `a b` string", "id BIGINT NOT NULL, `a b` STRING"),
        ("a: int, b SHORT COMMENT 'it''s', c byte", "a INT, b SMALLINT, c TINYINT"),
        ("a DECIMAL, b DEC(5), c NUMERIC(38,10)", "a DECIMAL(10, 0), b DECIMAL(5, 0), c DECIMAL(38, 10)"),
        ("a ARRAY<ARRAY<INTEGER>>", "a ARRAY<ARRAY<INT>>"),
        ("a MAP<STRING,STRUCT<b:INT,c DATE>>", "a MAP<STRING, STRUCT<b: INT, c: DATE>>"),
        (
            "a STRUCT<b: INT NOT NULL COMMENT 'x', `c``d`: TIMESTAMP_LTZ>",
            "a STRUCT<b: INT NOT NULL, `c``d`: TIMESTAMP>",
        ),
        (
            "a REAL, b DOUBLE, c BINARY, d BOOLEAN, e TIMESTAMP_NTZ",
            "a FLOAT, b DOUBLE, c BINARY, d BOOLEAN, e TIMESTAMP_NTZ",
        ),
    ],
)
def test_columns_are_parsed_as_sql_has_them(text: str, canonical: str) -> None:
    schema = parse_schema(text)
    assert schema_text(schema) == canonical
    assert parse_schema(canonical).equals(schema)
    assert schema_from_json(schema_to_json(schema)).equals(schema)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected the name of a column, but found the end"),
        ("BIGINT", "nothing is not a type, for BIGINT"),
        ("id BIGINTEGER", '"BIGINTEGER" is not a type, for id; the types are BOOLEAN'),
        ("id VARCHAR(10)", '"VARCHAR" is not a type'),
        ("id INT,", "expected the name of a column, but found the end"),
        ("id INT name STRING", 'expected "," after id, but found "name"'),
        ("id INT; x INT", 'did not understand "; x INT"'),
        ("a ARRAY<INT", 'expected ">" after the type of a, but found the end'),
        ("a ARRAY", 'expected "<" after ARRAY, but found the end'),
        ("a DECIMAL(39, 2)", "a decimal has 1 to 38 digits"),
        ("a DECIMAL(2, 3)", "no more of them after the point than in all"),
        ("a DECIMAL(x)", 'expected a number after DECIMAL\\(, but found "x"'),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, "more than 32 types within each other"),
        ("id INT, ID INT", "the column id and ID, which differ only in case"),
        ("a STRUCT<b: INT, b: INT>", "a has the column b twice"),
        ("_topic_offset BIGINT", "it says which message a row comes from"),
        ("_Partition INT", "reserved by Iceberg, Delta or Spark"),
    ],
)
def test_what_is_no_list_of_columns_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SchemaRefused, match=reason):
        parse_schema(text)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"name": "a"}]', '[{"name": "a", "type": "X", "required": true}]'])
def test_what_is_no_schema_as_json_is_refused(text: str) -> None:
    with pytest.raises(SchemaRefused):
        schema_from_json(text)


def test_types_that_no_topic_has_are_refused() -> None:
    with pytest.raises(SchemaRefused, match="is not a type of a table's column"):
        type_text(pa.time64("us"))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
SCALARS = st.sampled_from(
    ["BOOLEAN", "TINYINT", "INT", "BIGINT", "DOUBLE", "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"]
)


def nested(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quoted = NAMES.map(lambda name: "`" + name.replace("`", "``") + "`")
    return st.one_of(
        kinds.map(lambda kind: f"ARRAY<{kind}>"),
        kinds.map(lambda kind: f"MAP<STRING, {kind}>"),
        st.tuples(quoted, kinds).map(lambda field: f"STRUCT<{field[0]}: {field[1]} NOT NULL>"),
    )


@given(st.recursive(SCALARS, nested, max_leaves=6), NAMES.filter(lambda name: not name.startswith("_")))
def test_every_schema_survives_as_text_and_as_json(kind: str, name: str) -> None:
    schema = (
        parse_schema(f"`{name.replace('`', '``')}` {kind}, last DECIMAL(5, 2)")
        if name != "last"
        else parse_schema("a INT")
    )
    assert parse_schema(schema_text(schema)).equals(schema)
    assert schema_from_json(schema_to_json(schema)).equals(schema)
