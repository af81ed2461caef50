"""CSV payloads: what is good and what is bad, and that the fast and the slow way agree on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.lake.csv_format import CsvFormat
from courser.lake.payloads import decode
from courser.lake.schemas import parse_schema
from courser.lake.table_mismatch import SchemaRefused
from tests.lake.payload_checks import binary, check_both_ways

THREE = CsvFormat(parse_schema("id INT NOT NULL, name STRING, price DECIMAL(4, 1)"))


@pytest.mark.parametrize(
    ("payload", "row"),
    [
        (b"1,x,2.5", (1, "x", "2.5")),
        (b"007,,\r\n", (7, None, "None")),
        (b'1,"",.5', (1, "", "0.5")),
        (b'1,"a ""b"", c",+5.', (1, 'a "b", c', "5.0")),
        (b'1,"two\nlines",5', (1, "two\nlines", "5.0")),
        (b"1,\xc3\xa4,1e1", (1, "ä", "10.0")),
    ],
)
def test_a_record_is_a_row(payload: bytes, row: tuple[int, str | None, str]) -> None:
    found = check_both_ways(THREE, [payload])
    assert [(one["id"], one["name"], str(one["price"])) for one in found.rows.to_pylist()] == [row]


WHOLE = "a whole number from -2147483648 to 2147483647"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "the payload is empty"),
        (b"\n", "the payload is empty"),
        (b"\xff", "the payload is not UTF-8 text: byte 1 of 1 is wrong"),
        (b"1,x", "the payload has 2 values, but the schema has 3 columns"),
        (b"1,x,1,2", "the payload has 4 values, but the schema has 3 columns"),
        (b"1,x,1\n2,x,1", "the payload is not one CSV record with 3 values: 1,x,1\n2,x,1"),
        (b'1,"x,1', 'the payload is not one CSV record with 3 values: 1,"x,1'),
        (b",x,1", "the field id is empty, but the schema requires it"),
        (b"2.0,x,1", f'the field id is "2.0", but must be {WHOLE}'),
        (b"0x1F,x,1", f'the field id is "0x1F", but must be {WHOLE}'),
        (b" 1,x,1", f'the field id is " 1", but must be {WHOLE}'),
        (b"\xef\xbb\xbf1,x,1", f'the field id is "\ufeff1", but must be {WHOLE}'),
        (
            b"1,x,1234.5",
            'the field price is "1234.5", but must be a number with at most 3 digits before and 1 after the point',
        ),
    ],
)
def test_another_payload_is_bad_and_the_reason_says_why(payload: bytes, reason: str) -> None:
    assert [bad.reason for bad in check_both_ways(THREE, [payload]).bad] == [reason]


@pytest.mark.parametrize("payloads", [[b'1,"x', b'y",2'], [b'1,"x', b'y",2', b"1,x,1\n2,x,1"], [b'1,"x', b'"']])
def test_no_payload_becomes_a_part_of_another(payloads: list[bytes]) -> None:
    assert len(check_both_ways(THREE, payloads).bad) == len(payloads)


def test_a_batch_without_bad_payloads_is_never_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CsvFormat, "values")
    assert decode(THREE, binary([b"1,x,1", b'2,"a,b",2\n'])).good.to_pylist() == [0, 1]


def test_another_delimiter_is_taken() -> None:
    tabs = CsvFormat(parse_schema("a INT, at TIMESTAMP, ok BOOLEAN"), "\t")
    found = check_both_ways(tabs, [b"1\t2026-11-17T10:00:00Z\ttrue", b"1\t\tTRUE"])
    assert found.good.to_pylist() == [0]
    assert found.bad[0].reason == 'the field ok is "TRUE", but must be true or false'


@pytest.mark.parametrize(
    ("schema", "delimiter", "reason"),
    [("a ARRAY<INT>", ",", "which CSV does not have"), ("a INT", '"', "delimiter"), ("a INT", "ä", "delimiter")],
)
def test_what_csv_cannot_have_is_refused(schema: str, delimiter: str, reason: str) -> None:
    with pytest.raises(SchemaRefused, match=reason):
        CsvFormat(parse_schema(schema), delimiter)


WORDS = '1 -7 1.5 true 2026-11-17 2026-11-17T10:00:00Z "" "a,b" 1e5 nan inf'
VALUES = st.one_of(
    st.text(st.sampled_from('ab1-+.eE,"\n\r\t ä\ufeff'), max_size=6),
    st.sampled_from(["", *WORDS.split()]),
)
SCHEMAS = st.sampled_from(
    ["a INT, b STRING", "a STRING NOT NULL, b DOUBLE", "a STRING", "a DATE, b TIMESTAMP", "a BOOLEAN, b DECIMAL(3, 1)"]
)


@given(schema=SCHEMAS, batch=st.lists(st.lists(VALUES, min_size=1, max_size=3).map(",".join), max_size=4))
def test_many_at_once_and_one_by_one_give_the_same(schema: str, batch: list[str]) -> None:
    check_both_ways(CsvFormat(parse_schema(schema)), [payload.encode() for payload in batch])
