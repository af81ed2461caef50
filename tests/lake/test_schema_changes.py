"""Schemas that change: what the table does, and what happens to the rows before and after. One line for each case."""

from dataclasses import dataclass
from typing import Any

import pytest

from courser.lake.json_format import JsonFormat
from courser.lake.payloads import decode
from courser.lake.schema_changes import changes, fitted, follow
from courser.lake.schemas import parse_schema, schema_text
from courser.lake.table_mismatch import SchemaRefused
from tests.lake.payload_checks import binary


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table and a row of it, a new schema and a row of that, and both in the table after the change."""

    name: str
    old: str
    row: str
    new: str
    later: str
    table: str
    before: str
    after: str


COMPATIBLE = [
    Case(
        name="nothing changes",
        old="a INT", row='{"a":1}', new="a INT", later='{"a":2}',
        table="a INT", before="{'a': 1}", after="{'a': 2}",
    ),
    Case(
        name="an optional column is added",
        old="a INT", row='{"a":1}', new="a INT, b DATE", later='{"a":2,"b":"2026-11-17"}',
        table="a INT, b DATE", before="{'a': 1, 'b': None}", after="{'a': 2, 'b': datetime.date(2026, 11, 17)}",
    ),
    Case(
        name="an optional column is removed",
        old="a INT, b INT", row='{"a":1,"b":1}', new="a INT", later='{"a":2,"b":2}',
        table="a INT, b INT", before="{'a': 1, 'b': 1}", after="{'a': 2, 'b': None}",
    ),
    Case(
        name="a column is renamed: it is another one",
        old="a INT, b INT", row='{"a":1,"b":1}', new="a INT, c INT", later='{"a":2,"c":2}',
        table="a INT, b INT, c INT", before="{'a': 1, 'b': 1, 'c': None}", after="{'a': 2, 'b': None, 'c': 2}",
    ),
    Case(
        name="columns change their order",
        old="a INT, b INT", row='{"a":1,"b":2}', new="b INT, a INT", later='{"a":3,"b":4}',
        table="a INT, b INT", before="{'a': 1, 'b': 2}", after="{'a': 3, 'b': 4}",
    ),
    Case(
        name="a whole number is widened",
        old="a INT", row='{"a":1}', new="a BIGINT", later='{"a":3000000000}',
        table="a BIGINT", before="{'a': 1}", after="{'a': 3000000000}",
    ),
    Case(
        name="a whole number is narrowed: the table stays wide",
        old="a BIGINT", row='{"a":3000000000}', new="a INT", later='{"a":2}',
        table="a BIGINT", before="{'a': 3000000000}", after="{'a': 2}",
    ),
    Case(
        name="a floating number is widened",
        old="a FLOAT", row='{"a":0.5}', new="a DOUBLE", later='{"a":0.1}',
        table="a DOUBLE", before="{'a': 0.5}", after="{'a': 0.1}",
    ),
    Case(
        name="a floating number is narrowed: the table stays wide",
        old="a DOUBLE", row='{"a":0.1}', new="a FLOAT", later='{"a":0.5}',
        table="a DOUBLE", before="{'a': 0.1}", after="{'a': 0.5}",
    ),
    Case(
        name="a decimal gets more digits",
        old="a DECIMAL(4, 2)", row='{"a":1.5}', new="a DECIMAL(9, 2)", later='{"a":1234567.89}',
        table="a DECIMAL(9, 2)", before="{'a': Decimal('1.50')}", after="{'a': Decimal('1234567.89')}",
    ),
    Case(
        name="a decimal gets fewer digits: the table stays wide",
        old="a DECIMAL(9, 2)", row='{"a":1234567.89}', new="a DECIMAL(4, 2)", later='{"a":1.5}',
        table="a DECIMAL(9, 2)", before="{'a': Decimal('1234567.89')}", after="{'a': Decimal('1.50')}",
    ),
    Case(
        name="a required column becomes optional",
        old="a INT NOT NULL, b INT", row='{"a":1,"b":1}', new="a INT, b INT", later='{"b":2}',
        table="a INT, b INT", before="{'a': 1, 'b': 1}", after="{'a': None, 'b': 2}",
    ),
    Case(
        name="an optional column becomes required: the table stays as it is",
        old="a INT, b INT", row='{"b":1}', new="a INT NOT NULL, b INT", later='{"a":2}',
        table="a INT, b INT", before="{'a': None, 'b': 1}", after="{'a': 2, 'b': None}",
    ),
    Case(
        name="a value is null before and there after",
        old="a INT", row='{"a":null}', new="a BIGINT", later='{"a":1}',
        table="a BIGINT", before="{'a': None}", after="{'a': 1}",
    ),
    Case(
        name="a field is added to a struct",
        old="s STRUCT<x: INT>", row='{"s":{"x":1}}', new="s STRUCT<x: INT, y: STRING>", later='{"s":{"x":2,"y":"q"}}',
        table="s STRUCT<x: INT, y: STRING>", before="{'s': {'x': 1, 'y': None}}", after="{'s': {'x': 2, 'y': 'q'}}",
    ),
    Case(
        name="a field is removed from a struct",
        old="s STRUCT<x: INT, y: INT>", row='{"s":{"x":1,"y":1}}', new="s STRUCT<x: INT>", later='{"s":{"x":2}}',
        table="s STRUCT<x: INT, y: INT>", before="{'s': {'x': 1, 'y': 1}}", after="{'s': {'x': 2, 'y': None}}",
    ),
    Case(
        name="a field of a struct is widened, and the struct is null before",
        old="s STRUCT<x: INT>, a INT", row='{"s":null,"a":1}', new="s STRUCT<x: BIGINT>",
        later='{"s":{"x":3000000000}}',
        table="s STRUCT<x: BIGINT>, a INT", before="{'s': None, 'a': 1}", after="{'s': {'x': 3000000000}, 'a': None}",
    ),
    Case(
        name="a struct is added",
        old="a INT", row='{"a":1}', new="a INT, s STRUCT<x: INT NOT NULL>", later='{"s":{"x":1}}',
        table="a INT, s STRUCT<x: INT NOT NULL>", before="{'a': 1, 's': None}", after="{'a': None, 's': {'x': 1}}",
    ),
    Case(
        name="the elements of a list are widened",
        old="a ARRAY<INT>", row='{"a":[1,null]}', new="a ARRAY<BIGINT>", later='{"a":[3000000000]}',
        table="a ARRAY<BIGINT>", before="{'a': [1, None]}", after="{'a': [3000000000]}",
    ),
    Case(
        name="the structs in a list get a field",
        old="a ARRAY<STRUCT<x: INT>>", row='{"a":[{"x":1},null]}',
        new="a ARRAY<STRUCT<x: INT, y: INT>>", later='{"a":[{"y":2}]}',
        table="a ARRAY<STRUCT<x: INT, y: INT>>",
        before="{'a': [{'x': 1, 'y': None}, None]}", after="{'a': [{'x': None, 'y': 2}]}",
    ),
    Case(
        name="the values of a map are widened",
        old="a MAP<STRING, INT>", row='{"a":{"k":1}}', new="a MAP<STRING, BIGINT>", later='{"a":{"k":3000000000}}',
        table="a MAP<STRING, BIGINT>", before="{'a': [('k', 1)]}", after="{'a': [('k', 3000000000)]}",
    ),
    Case(
        name="an enum, which is text, gets a value",
        old="a STRING", row='{"a":"new"}', new="a STRING", later='{"a":"returned"}',
        table="a STRING", before="{'a': 'new'}", after="{'a': 'returned'}",
    ),
    Case(
        name="a field is there before anybody declares it",
        old="a INT", row='{"a":1,"b":1}', new="a INT, b INT", later='{"a":2,"b":2}',
        table="a INT, b INT", before="{'a': 1, 'b': None}", after="{'a': 2, 'b': 2}",
    ),
]  # fmt: skip

REFUSED = [
    ("a required column is added", "a INT", "a INT, b INT NOT NULL", "b is new and NOT NULL"),
    ("a required column is removed", "a INT, b INT NOT NULL", "a INT", "b is not in the schema, but the table"),
    ("a number becomes text", "a INT", "a STRING", "a is INT in the table, and cannot become STRING"),
    ("text becomes a number", "a STRING", "a INT", "a is STRING in the table, and cannot become INT"),
    ("a whole number becomes floating", "a BIGINT", "a DOUBLE", "a is BIGINT in the table, and cannot become DOUBLE"),
    ("a decimal gets another scale", "a DECIMAL(9, 2)", "a DECIMAL(9, 3)", "cannot become DECIMAL\\(9, 3\\)"),
    ("a time loses its zone", "a TIMESTAMP", "a TIMESTAMP_NTZ", "a is TIMESTAMP in the table, and cannot become"),
    ("a time gets a zone", "a TIMESTAMP_NTZ", "a TIMESTAMP", "a is TIMESTAMP_NTZ in the table, and cannot become"),
    ("a date becomes a time", "a DATE", "a TIMESTAMP", "a is DATE in the table, and cannot become TIMESTAMP"),
    ("a value becomes a list", "a INT", "a ARRAY<INT>", "a is INT in the table, and cannot become ARRAY<INT>"),
    ("a struct becomes text", "a STRUCT<x: INT>", "a STRING", "a is STRUCT<x: INT> in the table"),
    ("a field in a list becomes text", "a ARRAY<STRUCT<x: INT>>", "a ARRAY<STRUCT<x: STRING>>", "a\\[\\].x is INT"),
    ("the keys of a map change", "a MAP<STRING, INT>", "a MAP<INT, INT>", "cannot become MAP<INT, INT>"),
    ("a required field is added", "s STRUCT<x: INT>", "s STRUCT<x: INT, y: INT NOT NULL>", "s.y is new and NOT NULL"),
    ("a name differs in case", "a INT", "A INT", "A differs from a of the table only in case"),
]  # fmt: skip


def rows(schema: str, payload: str) -> Any:
    found = decode(JsonFormat(parse_schema(schema)), binary([payload.encode()]))
    assert not found.bad
    return found.rows


@pytest.mark.parametrize("case", COMPATIBLE, ids=lambda case: case.name)
def test_rows_before_and_after_a_change_that_a_table_can_follow(case: Case) -> None:
    table = follow(parse_schema(case.old), parse_schema(case.new))
    assert schema_text(table) == case.table
    assert [str(row) for row in fitted(rows(case.old, case.row), table).to_pylist()] == [case.before]
    assert [str(row) for row in fitted(rows(case.new, case.later), table).to_pylist()] == [case.after]
    # Whoever starts again with the old schema finds a table that fits.
    assert follow(table, parse_schema(case.old)).equals(table)
    assert follow(table, parse_schema(case.new)).equals(table)


@pytest.mark.parametrize(("old", "new", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_change_that_a_table_cannot_follow_is_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(SchemaRefused, match=reason):
        follow(parse_schema(old), parse_schema(new))


def test_every_change_is_a_sentence() -> None:
    old = parse_schema("a INT, b STRUCT<x: INT>, c STRING NOT NULL, d DECIMAL(9, 2)")
    new = parse_schema("a BIGINT, b STRUCT<x: INT, y: DATE>, c STRING, d DECIMAL(4, 2), e INT")
    assert [(change.column, change.text, change.is_compatible) for change in changes(old, new)] == [
        ("a", "a is widened from INT to BIGINT", True),
        ("b.y", "b.y is new: it is null in the rows that are in the table", True),
        ("c", "c becomes optional", True),
        ("d", "d is DECIMAL(4, 2) in the schema: the table keeps DECIMAL(9, 2), which holds it", True),
        ("e", "e is new: it is null in the rows that are in the table", True),
    ]


def test_a_slice_of_rows_is_fitted_as_the_whole() -> None:
    schema = "a ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>, s STRUCT<x: INT>"
    payloads = [b'{"a":[{"x":%d}],"m":{"k":%d},"s":{"x":%d}}' % (number, number, number) for number in range(4)]
    whole = decode(JsonFormat(parse_schema(schema)), binary([*payloads, b'{"a":null}'])).rows
    table = follow(whole.schema, parse_schema(schema.replace("INT", "BIGINT").replace("x:", "y: DATE, x:")))
    found = fitted(whole.slice(2), table)
    found.validate(full=True)
    assert found.to_pylist() == fitted(whole, table).to_pylist()[2:]
