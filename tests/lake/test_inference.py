"""Schemas from samples: the rules, and that every good payload of a sample is a row of its schema."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.lake.inference import FIELDS_MAX, infer_schema
from courser.lake.json_format import JsonFormat
from courser.lake.payloads import decode
from courser.lake.schemas import schema_text
from courser.lake.table_mismatch import SchemaRefused
from tests.lake.payload_checks import binary


def inferred(*values: str) -> str:
    """The type of a field that has these values."""
    return schema_text(infer_schema(f'{{"v": {value}}}'.encode() for value in values)).removeprefix("v ")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1"], "BIGINT"),
        (["true", "null"], "BOOLEAN"),
        (["1", "1.5", "2"], "DOUBLE"),
        (['"x"'], "STRING"),
        # A later one may be no time and no number.
        (['"2026-11-17T10:00:00Z"'], "STRING"),
        (['"7"'], "STRING"),
        (["1", '"x"'], "STRING"),
        (["1", "true"], "STRING"),
        (["null"], "STRING"),
        (["9223372036854775807", "1"], "BIGINT"),
        (["9223372036854775808"], "STRING"),
        (["1e999"], "STRING"),
        # A double would round it.
        (["9007199254740993", "1.5"], "STRING"),
        (["9007199254740992", "1.5"], "DOUBLE"),
        (["[]"], "ARRAY<STRING>"),
        (["[1]", "[null, 2.5]", "null"], "ARRAY<DOUBLE>"),
        (["[1]", "1"], "STRING"),
        (['[[1], [], ["x"]]'], "ARRAY<ARRAY<STRING>>"),
        (["{}"], "STRING"),
        (['{"a": 1}', "{}", '{"b": null}', '{"a": 1.5}'], "STRUCT<a: DOUBLE, b: STRING>"),
        (['{"a": 1}', "[1]"], "STRING"),
        (['{"a": 1}', '{"A": 1}'], "STRING"),
        (['{"": 1}'], "STRING"),
        (["[" * 40 + "]" * 40], "ARRAY<" * 31 + "STRING" + ">" * 31),
    ],
)
def test_a_field_has_the_narrowest_type_that_is_not_a_guess(values: list[str], kind: str) -> None:
    assert inferred(*values) == kind
    assert inferred(*reversed(values)) == kind or "STRUCT" in kind


def test_an_object_with_ever_new_keys_is_text() -> None:
    assert inferred(*(f'{{"key{number}": 1}}' for number in range(FIELDS_MAX + 1))) == "STRING"


def test_what_is_no_object_is_left_out() -> None:
    assert schema_text(infer_schema([b"null", b'{"b": 1}', b"\xff", b"[1]", b'{"a": 1}'])) == "b BIGINT, a BIGINT"


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ([], "it is empty"),
        ([b"5", b"{}"], "none of the 2 payloads"),
        (
            [b"{" + b",".join(b'"f%d": 1' % number for number in range(FIELDS_MAX + 1)) + b"}"],
            "201 fields, more than 200",
        ),
        ([b'{"id": 1, "ID": 2}'], "differ only in case"),
        ([b'{"_partition": 1}'], "reserved"),
    ],
)
def test_a_sample_that_gives_no_schema_is_refused(sample: list[bytes], reason: str) -> None:
    with pytest.raises(SchemaRefused, match=reason):
        infer_schema(sample)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**65), 2**65),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "A", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from(["v", "w", "x"]), VALUES, min_size=1), min_size=1, max_size=5))
def test_every_object_of_the_sample_is_a_good_row_of_its_schema(rows: list[dict[str, object]]) -> None:
    sample = [json.dumps(row).encode() for row in rows]
    assert not decode(JsonFormat(infer_schema(sample)), binary(sample)).bad
