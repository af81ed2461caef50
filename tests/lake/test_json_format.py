"""JSON payloads: the table of what is good and what is bad, and that the fast and the slow way agree on it."""

import json
from base64 import b64encode
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.lake.json_format import JsonFormat
from courser.lake.payloads import decode
from courser.lake.schemas import parse_schema
from courser.lake.table_mismatch import SchemaRefused
from courser.lake.text_values import Unsure
from tests.lake.payload_checks import OneByOne, binary, check_both_ways

WHOLE = "a whole number from -2147483648 to 2147483647"
INSTANT = 'a time with a zone, such as "2026-11-17T10:00:00Z"'
LOCAL = 'a time without a zone, such as "2026-11-17T10:00:00"'
DECIMAL = "a number with at most 4 digits before and 2 after the point"
DAY = 'a date such as "2026-11-17"'
NONE = "the payload has none of the columns v"


def outcome(kind: str, payload: bytes) -> str:
    """The value of the column ``v``, or why the payload is bad."""
    found = check_both_ways(JsonFormat(parse_schema(f"v {kind}")), [payload])
    if found.bad:
        return found.bad[0].reason
    column = found.rows.column("v")
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    return str(column[0].as_py())


GOOD = [
    ("INT", "2147483647", "2147483647"),
    ("INT", "-0", "0"),
    ("INT", "null", "None"),
    ("BIGINT", "9223372036854775807", "9223372036854775807"),
    ("DOUBLE", "5", "5.0"),
    ("DOUBLE", "1E5", "100000.0"),
    ("DOUBLE", "1e-400", "0.0"),
    ("FLOAT", "0.1", "0.10000000149011612"),
    ("BOOLEAN", "true", "True"),
    ("STRING", '"a\\u0000\\ud83d\\ude00"', "a\0😀"),
    # A STRING takes anything, and keeps how it is written.
    ("STRING", "1.50", "1.50"),
    ("STRING", "true", "true"),
    ("STRING", '{ "a": [1, "ä", null] }', '{"a":[1,"ä",null]}'),
    ("DECIMAL(6, 2)", "12.5", "12.50"),
    ("DECIMAL(6, 2)", '"12.5"', "12.50"),
    ("DECIMAL(6, 2)", "12.50000", "12.50"),
    ("DECIMAL(6, 2)", "1e3", "1000.00"),
    ("DECIMAL(38, 0)", "99999999999999999999999999999999999999", "99999999999999999999999999999999999999"),
    ("DATE", '"2026-11-17"', "2026-11-17"),
    ("TIMESTAMP", '"2026-11-17T10:00:00+02:00"', "2026-11-17 08:00:00.000000Z"),
    ("TIMESTAMP", '"2026-11-17 10:00:00.5Z"', "2026-11-17 10:00:00.500000Z"),
    # Nanoseconds, as Go and Java write them, are cut.
    ("TIMESTAMP", '"2026-11-17T10:00:00.123456789Z"', "2026-11-17 10:00:00.123456Z"),
    ("TIMESTAMP", '"0001-01-01T00:00:00Z"', "0001-01-01 00:00:00.000000Z"),
    ("TIMESTAMP_NTZ", '"2026-11-17T10:00:00"', "2026-11-17 10:00:00.000000"),
    ("BINARY", '"aGk="', "b'hi'"),
    ("ARRAY<INT>", "[]", "[]"),
    ("ARRAY<INT>", "[1, null]", "[1, None]"),
    ("ARRAY<DATE>", "[]", "[]"),
    ("STRUCT<a: INT>", '{"b": 1}', "{'a': None}"),
    ("STRUCT<a: ARRAY<STRUCT<b: DECIMAL(3, 1)>>>", '{"a": [{"b": 1}, null]}', "{'a': [{'b': Decimal('1.0')}, None]}"),
    ("MAP<STRING, INT>", '{"a": 1, "b": null}', "[('a', 1), ('b', None)]"),
    ("STRUCT<a: INT NOT NULL>", "null", "None"),
]


@pytest.mark.parametrize(("kind", "value", "found"), GOOD)
def test_a_value_of_the_type_is_taken(kind: str, value: str, found: str) -> None:
    assert outcome(kind, f'{{"v": {value}}}'.encode()) == found


WRONG = [
    ("INT", "3000000000", WHOLE),
    ("INT", '"7"', WHOLE),
    ("INT", "2.0", WHOLE),
    ("INT", "1e2", WHOLE),
    ("INT", "true", WHOLE),
    ("INT", "[1]", WHOLE),
    ("TINYINT", "128", "a whole number from -128 to 127"),
    ("BIGINT", "9223372036854775808", "a whole number from -9223372036854775808 to 9223372036854775807"),
    ("DOUBLE", "1e400", "a number up to 1.7e308"),
    ("DOUBLE", '"1.5"', "a number up to 1.7e308"),
    ("DOUBLE", '"NaN"', "a number up to 1.7e308"),
    ("FLOAT", "1e39", "a number up to 3.4e38"),
    ("BOOLEAN", "1", "true or false"),
    ("BOOLEAN", '"true"', "true or false"),
    ("DECIMAL(6, 2)", "12.345", DECIMAL),
    # Arrow's parser takes it, as a number of seven digits.
    ("DECIMAL(6, 2)", "99999.9", DECIMAL),
    ("DECIMAL(6, 2)", '"NaN"', DECIMAL),
    ("DECIMAL(6, 2)", '""', DECIMAL),
    # Arrow's parser takes it, as another number.
    ("DECIMAL(38, 2)", "9e37", "a number with at most 36 digits before and 2 after the point"),
    ("DATE", '"2026-02-30"', DAY),
    ("DATE", "20000", DAY),
    ("DATE", '"2026-11-17T00:00:00"', DAY),
    ("DATE", '"0000-01-01"', DAY),
    ("TIMESTAMP", '"2026-11-17T10:00:00"', INSTANT),
    ("TIMESTAMP", '"2026-11-17"', INSTANT),
    ("TIMESTAMP", "1700000000", INSTANT),
    ("TIMESTAMP", '"9999-12-31T23:59:59-23:00"', INSTANT),
    ("TIMESTAMP_NTZ", '"2026-11-17T10:00:00Z"', LOCAL),
    ("BINARY", '"a"', "bytes as text in base64"),
    ("ARRAY<INT>", '{"a":1}', "a list"),
    ("STRUCT<a: INT>", "[1]", "an object"),
    ("MAP<STRING, INT>", "[1]", "an object"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), WRONG)
def test_another_value_is_bad_and_named(kind: str, value: str, expected: str) -> None:
    found = outcome(kind, f'{{"v": {value}}}'.encode())
    assert found == f"the field v is {value}, but must be {expected}"


BAD = [
    ("INT", b"", "the payload is empty"),
    ("INT", b" \n", "the payload is empty"),
    ("INT", b"null", "the payload is null, not a JSON object"),
    ("INT", b"[1]", "the payload is [1], not a JSON object"),
    ("INT", b"5", "the payload is 5, not a JSON object"),
    ("INT", b"{}", NONE),
    ("INT", b'{"other": 1}', NONE),
    ("INT", b'{"V": 1}', NONE),
    ("INT", b'{"v": 1, "other": "\xff"}', "the payload is not UTF-8 text: byte 20 of 22 is wrong"),
    ("INT", b'\xef\xbb\xbf{"v": 1}', "the payload is not JSON: Expecting value at character 1"),
    ("INT", b'{"v": 1}{"v": 2}', "the payload is not JSON: Extra data at character 9"),
    ("INT", b'{"v": 1}\n{"v": 2}', "the payload is not JSON: Extra data at character 10"),
    ("INT", b'{"v": 1} x', "the payload is not JSON: Extra data at character 10"),
    ("INT", b'{"v": 1, "other": NaN}', "the payload is not JSON: NaN is not a JSON value"),
    ("INT", b'{"v": 1, "v": 2}', "the field v appears twice"),
    ("INT", b'{"v": 1, "\\u0076": 2}', "the field v appears twice"),
    ("MAP<STRING, INT>", b'{"v": {"a": 1, "a": 2}}', "the field v.a appears twice"),
    ("STRUCT<a: INT>", b'{"v": {"a": 1, "a": 2}}', "the field v.a appears twice"),
    ("STRING", b'{"v": "\\ud800"}', 'the field v is "\\ud800", which has half of a surrogate pair: it is no text'),
    ("INT NOT NULL", b'{"v": null}', "the field v is null, but the schema requires it"),
    (
        "STRUCT<a: INT NOT NULL, b: INT>",
        b'{"v": {"b": 1}}',
        "the field v.a is missing, but the schema requires it",
    ),
    ("ARRAY<STRUCT<a: INT>>", b'{"v": [{"a": 1}, {"a": "x"}]}', f'the field v[1].a is "x", but must be {WHOLE}'),
]


@pytest.mark.parametrize(("kind", "payload", "reason"), BAD)
def test_what_is_no_row_is_bad(kind: str, payload: bytes, reason: str) -> None:
    assert outcome(kind, payload) == reason


@pytest.mark.parametrize(
    "payload",
    [
        b'{"v": 7, "v2": 1, "other": {"a": [1, {"b": "x"}], "a": 2}}',
        b'{\n  "v": 7,\r\n\t"other": "NaN"\n}\n',
        b' {"v":7,"other":"a: Info, b"} ',
        b'{"other": "\\ud800", "v": 7}',
        b'{"v": 7, "other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_other_fields_are_not_looked_at(payload: bytes) -> None:
    assert outcome("INT", payload) == "7"


def test_a_missing_column_is_null_and_a_required_one_bad() -> None:
    schema = parse_schema("id BIGINT NOT NULL, at TIMESTAMP")
    found = check_both_ways(JsonFormat(schema), [b'{"id": 1}', b'{"at": "2026-11-17T10:00:00Z"}'])
    assert found.rows.to_pylist() == [{"id": 1, "at": None}]
    assert [bad.reason for bad in found.bad] == ["the field id is missing, but the schema requires it"]
    assert found.rows.schema.equals(schema)


@pytest.mark.parametrize(
    "payloads",
    [
        # Each pair or triple has as many rows as payloads, if it is only read as one text.
        [b'{"v": [{}', b"{}]}", b'{"v": []}{"v": []}'],
        [b'{"v": [', b'{}]} {"v": []}'],
        [b'{"v": []', b'}{"v": []}'],
        [b'{"v": [], "o": "}', b'{"}', b'{"v": []}{"v": []}'],
        [b'{"v": []} {"v": []}', b" "],
    ],
)
def test_no_payload_becomes_a_part_of_another(payloads: list[bytes]) -> None:
    found = check_both_ways(JsonFormat(parse_schema("v ARRAY<STRUCT<a: INT>>")), payloads)
    assert len(found.bad) == len(payloads)


def test_all_good_payloads_of_a_large_batch_survive_bad_ones() -> None:
    payloads = [b'{"v": %d, "text": "%s"}' % (number, b"x" * 200) for number in range(30_000)]
    bad = {0: b"null", 9_999: b'{"v": "x"}', 29_999: b""}
    for place, payload in bad.items():
        payloads[place] = payload
    found = decode(JsonFormat(parse_schema("v INT, text STRING")), binary(payloads))
    assert [one.index for one in found.bad] == sorted(bad)
    good = [number for number in range(30_000) if number not in bad]
    assert found.good.to_pylist() == good
    assert found.rows.column("v").to_pylist() == good


def test_a_batch_without_bad_payloads_is_never_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = parse_schema(
        "id BIGINT NOT NULL, price DECIMAL(9, 2), at TIMESTAMP, day DATE, tags ARRAY<STRING>, place STRUCT<x: FLOAT>"
    )
    row = {"id": 1, "price": 1.5, "at": "2026-11-17T10:00:00Z", "day": "2026-11-17", "tags": ["a"], "place": {"x": 1}}
    monkeypatch.delattr(JsonFormat, "values")
    found = decode(JsonFormat(schema), binary([json.dumps(row).encode(), b'{"id": 2}', b'  {"id":3}\n']))
    assert found.good.to_pylist() == [0, 1, 2]


def test_a_slice_and_nulls_and_large_arrays_are_taken() -> None:
    payloads = pa.array([b"x", b'{"v": 1}', None, b'{"v": 2}'], pa.large_binary()).slice(1)
    found = decode(JsonFormat(parse_schema("v INT")), payloads)
    assert found.rows.to_pylist() == [{"v": 1}, {"v": 2}]
    assert [(bad.index, bad.reason) for bad in found.bad] == [(1, "the payload is empty")]
    assert decode(JsonFormat(parse_schema("v INT")), binary([])).rows.num_rows == 0


def test_keys_of_a_map_are_text() -> None:
    with pytest.raises(SchemaRefused, match="the keys of a MAP must be STRING"):
        JsonFormat(parse_schema("v MAP<INT, INT>"))


# --- both ways agree ----------------------------------------------------------------------------------

NAMES = "TINYINT INT BIGINT FLOAT DOUBLE BOOLEAN STRING DATE TIMESTAMP TIMESTAMP_NTZ BINARY"
KINDS = [*NAMES.split(), "DECIMAL(6, 2)", "DECIMAL(38, 10)"]
TRICKY = "-0 1e39 3.4028235e38 3.4028236e38 1e-50 NaN -Infinity Inf 01 1. 9e37"
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
    st.from_regex(r"-?[0-9]{1,42}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(TRICKY.split()),
)
CLOCK = r"[T ][0-2][0-9](:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?)?"
TIMES = st.one_of(
    st.datetimes().map(lambda time: time.isoformat()),
    st.dates().map(lambda day: day.isoformat()),
    st.from_regex(rf"[0-9]{{4}}-[01][0-9]-[0-3][0-9]({CLOCK})?", fullmatch=True),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=5),
    st.tuples(TIMES, st.sampled_from(["", "Z", "+02:00", "-0330", "+14", " Z"])).map("".join),
    st.binary(max_size=6).map(lambda data: b64encode(data).decode()),
    NUMBERS,
).map(json.dumps)
SCALARS = st.one_of(NUMBERS, TEXTS, st.sampled_from(["null", "true", "false", "[]", "{}"]))


def as_object(fields: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}": {value}' for name, value in fields) + "}"


def nested(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(values, max_size=3).map(lambda items: f"[{','.join(items)}]")
    objects = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), values), max_size=3)
    return st.one_of(lists, objects.map(as_object))


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    def kind(depth: int) -> str:
        if depth < 2 and draw(st.integers(0, 3)) == 0:
            inner = kind(depth + 1)
            required = draw(st.sampled_from(["", " NOT NULL"]))
            return draw(st.sampled_from([f"ARRAY<{inner}>", f"STRUCT<a: {inner}{required}, b: {inner}>"]))
        return draw(st.sampled_from(KINDS))

    columns = [f"{name} {kind(0)}{draw(st.sampled_from(['', '', ' NOT NULL']))}" for name in ("v", "w")]
    return parse_schema(", ".join(columns))


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.sampled_from(["v", "v", "w", "x", "\\u0076"]), min_size=1, max_size=3))
    value = st.recursive(SCALARS, nested, max_leaves=4)
    text = as_object([(name, draw(value)) for name in names])
    text = draw(st.sampled_from(["", " ", "\n", "\v"])) + text + draw(st.sampled_from(["", " "]))
    if draw(st.integers(0, 4)) == 0:
        place, cut = draw(st.integers(0, len(text))), draw(st.integers(0, 2))
        added = draw(st.sampled_from(["", "{", "}", "[", "]", ",", '"', "\\", "\n", "\0", "}{"]))
        text = text[:place] + added + text[place + cut :]
    return text.encode("utf-8", "surrogatepass")


@given(schema=schemas(), batch=st.lists(payloads(), max_size=4))
def test_many_at_once_and_one_by_one_give_the_same(schema: Any, batch: list[bytes]) -> None:
    check_both_ways(JsonFormat(schema), batch)


@given(schema=schemas(), payload=payloads())
def test_what_the_fast_way_accepts_the_slow_way_accepts_with_the_same_values(schema: Any, payload: bytes) -> None:
    json_format = JsonFormat(schema)
    try:
        columns = json_format.columns(binary([payload]))
    except Unsure:
        return
    slow = decode(OneByOne(json_format), binary([payload]))
    assert not slow.bad
    assert pa.Table.from_arrays(list(columns), schema=schema).equals(slow.rows)
