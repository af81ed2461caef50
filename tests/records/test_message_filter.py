"""Filters: which conditions a message satisfies."""

import re

import pytest

from courser.records.message_filter import FILTER_COUNT_MAX, FILTER_SIZE_MAX, MessageFilter
from courser.records.message_keys import key_header
from courser.records.user_headers import HeaderKind, UserHeader, build_user_headers
from tests.records.walks import NO_WALK

pytestmark = NO_WALK

ORDER = b'{"id": 7, "total": 99.5, "paid": true, "note": null, "customer": {"name": "Ann"}, "items": [{"n": 1}, "x=y"]}'
HEADERS = build_user_headers(
    [
        UserHeader.of_text("source", "shop"),
        UserHeader(b"retries", (3).to_bytes(4, "little"), value_kind=HeaderKind.UINT32),
        UserHeader(b"ok", b"\1", value_kind=HeaderKind.BOOL),
        UserHeader(b"raw", b"\xbe\xef", value_kind=HeaderKind.RAW),
        UserHeader.of_text("at", "2026-01-31T12:00"),
        key_header(b"customer-7"),
    ]
)


def matches(*conditions: str, payload: bytes = ORDER, headers: bytes = HEADERS) -> bool:
    return MessageFilter(conditions).matches(payload, headers)


@pytest.mark.parametrize(
    "condition",
    [
        "Ann",
        '"total": 99.5',
        "text~Ann",
        "text !~ Bob",
        "text!=Ann",
        "key=customer-7",
        "key~customer",
        "key!=customer-8",
        "header.source=shop",
        "header.source ~ ho",
        "header.retries=3",
        "header.retries>2",
        "header.retries<=3.0",
        "header.ok=true",
        "header.raw=beef",
        "header.at>=2026-01-31",
        "header.absent!=x",
        ".id=7",
        ".id == 7.0",
        "$.id=7",
        ".id!=8",
        ".id<10",
        ".total > 99",
        ".paid=true",
        ".note=null",
        ".customer.name=Ann",
        '.["customer"]["name"]=Ann',
        ".customer.name~nn",
        ".customer.name<B",
        ".items[0].n=1",
        ".items[1]=x=y",
        ".items~x=y",
        ".absent!=x",
        ".~Ann",
    ],
)
def test_what_an_order_satisfies(condition: str) -> None:
    assert matches(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "Bob",
        "text=Ann",
        "text~ann",
        "key=customer",
        "key!~customer",
        "header.source=shopping",
        "header.absent=",
        "header.absent~",
        "header.courser.key=customer-7",
        "header.retries<3",
        "header.source>zoo",
        ".id=8",
        ".id=7x",
        ".id>7",
        ".paid=1",
        ".paid>0",
        ".customer>0",
        ".absent=null",
        ".absent<5",
        ".items[2]=x",
        ".items.n=1",
        ".customer[0]=Ann",
    ],
)
def test_what_it_does_not_satisfy(condition: str) -> None:
    assert not matches(condition)


def test_all_conditions_must_be_satisfied() -> None:
    assert matches("Ann", "key=customer-7", ".total>50")
    assert not matches("Ann", "key=customer-8", ".total>50")
    assert matches()


@pytest.mark.parametrize("payload", [b"", b"hello", b"\xff\xfe", b"[" * 100_000, b'{"id": NaN}'])
def test_a_payload_that_is_not_json_has_no_values(payload: bytes) -> None:
    assert not matches(".id=7", payload=payload)
    assert matches(".id!=7", payload=payload)


def test_bytes_are_searched_without_decoding() -> None:
    assert matches("ü", payload=b"\xff" + "grün".encode() + b"\xfe")
    assert matches(".[0]=1", payload=b"[1, 2]")


def test_without_headers_or_with_encrypted_ones() -> None:
    for headers in (b"", b"encrypted"):
        assert not matches("key~", headers=headers)
        assert not matches("header.source~", headers=headers)
        assert matches("header.source!=shop", headers=headers)


def test_a_key_that_is_no_text_is_hexadecimal_digits() -> None:
    assert matches("key=ff00", headers=build_user_headers([key_header(b"\xff\0")]))


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("", "must not be empty"),
        (".a..b=1", '".a..b" is not a JSON path such as .customer.name or .items[0].price'),
        (".a[x]=1", "is not a JSON path"),
        ("x" * (FILTER_SIZE_MAX + 1), "characters is longer than the limit of 4096"),
        ("\udcff", "surrogates"),
    ],
)
def test_what_is_no_condition(condition: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        MessageFilter([condition])


def test_there_is_a_limit_to_conditions() -> None:
    with pytest.raises(ValueError, match="17 conditions are more than the limit of 16"):
        MessageFilter(["x"] * (FILTER_COUNT_MAX + 1))


# --- what can be ruled out without decoding ---

VALUES = [
    "7",
    "99.5",
    "true",
    "null",
    "Ann",
    "nn",
    "shop",
    "beef",
    "3",
    "1000",
    "x=y",
    "ü",
    "[1]",
    "a/b",
    "99999",
    "-5",
]
PAYLOADS = [
    ORDER,
    b'{"id": 7.0, "a": 1e3, "b": "A\\u006en", "c": "a\\/b", "d": [ 1 ]}',
    b'{"id": 6.99999999999999999999, "a": 1000, "b": "\\u00fc", "c": "a/b", "d": [1]}',
    '{"id": "7", "a": "1000", "b": "ü", "c": -5, "d": -5.0}'.encode(),
    b'{"id": 99999999999999999999, "a":1e400, "b" : -5, "c": 99.500000000000001, "d": true}',
    b'{"\\u0069d": 5, "x": {"a": 1000}, "a": null, "b":\n7, "c": {"a": 3}, "d": "\\u0041nn"}',
    b"7",
    b"1e3",
    b"no JSON: Ann 7",
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("sign", ["=", "~", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("part", [".id", ".a", ".b", ".c", ".d", "$", "text", "key", "header.source", "header.raw"])
def test_what_is_ruled_out_does_not_match(part: str, sign: str, value: str) -> None:
    wanted = MessageFilter([part + sign + value])
    for payload in PAYLOADS:
        if wanted.matches(payload, HEADERS):
            assert wanted.may_match(b"\x01\x02" + payload + HEADERS), payload


@pytest.mark.parametrize(
    "condition",
    [
        "Bob",
        "text=Ann2",
        ".customer.name=Bob",
        ".id=8123",
        "key=customer-8",
        ".total>99.5",
        ".total<-1",
        ".id>=8",
        ".customer.id<0",
        ".customer > 1",
    ],
)
def test_bytes_without_the_value_are_ruled_out(condition: str) -> None:
    wanted = MessageFilter(["Ann", condition])
    assert not wanted.may_match(ORDER + HEADERS)
    assert MessageFilter(["Ann"]).may_match(ORDER + HEADERS)
