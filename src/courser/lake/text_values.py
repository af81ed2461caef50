"""What a text says as a value of a type: for times, dates, decimals and bytes in JSON, and for every column of CSV.

Each rule is there twice: for a column, which is fast and does not say which value is wrong, and for one value. What the
first takes, the second takes too, with the same result (a test compares them). The second decides.
"""

import base64
import binascii
import decimal
import re
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.compute as pc  # type: ignore[import-untyped]

_FINE = r"(\.[0-9]{6})[0-9]{1,3}"
"""Digits of nanoseconds, as Go and Java write them. Tables hold microseconds; the rest is cut."""
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Times of the years 1 to 9999, since 1970. Most tools cannot read others."""
_DAYS = (-719_162, 2_932_896)
_COMMON_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.(?:[0-9]{3}|[0-9]{6}))?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]+", re.ASCII)
_INTEGER_DIGITS_MAX = 19
"""Digits of the largest whole number that a column holds."""
_DIGITS_MAX = 1_000
"""Digits of a decimal that are looked at. A longer text is no number that somebody wants in a table."""


INSTANT, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
"""The types of a time with a zone, and without."""


class Unsure(Exception):
    """A column or a batch has a value that may be wrong: each has to be looked at."""


class NotThatType(ValueError):
    """A text is no value of the type."""


def expected(kind: Any) -> str:
    """What a value of a type has to be, for the sentence about one that is not."""
    types = pa.types
    if types.is_integer(kind):
        limit = 2 ** (kind.bit_width - 1)
        return f"a whole number from {-limit} to {limit - 1}"
    if types.is_decimal(kind):
        whole = kind.precision - kind.scale
        return f"a number with at most {whole} digits before and {kind.scale} after the point"
    if types.is_timestamp(kind):
        if kind.tz is None:
            return 'a time without a zone, such as "2026-11-17T10:00:00"'
        return 'a time with a zone, such as "2026-11-17T10:00:00Z"'
    for test, words in (
        (types.is_float32, "a number up to 3.4e38"),
        (types.is_float64, "a number up to 1.7e308"),
        (types.is_boolean, "true or false"),
        (types.is_date, 'a date such as "2026-11-17"'),
        (types.is_binary, "bytes as text in base64"),
        (types.is_list, "a list"),
        (types.is_string, "text"),
    ):
        if test(kind):
            return words
    return "an object"


# --- columns ------------------------------------------------------------------------------------------


def column_of_texts(texts: Any, kind: Any) -> Any:
    """An array of strings as an array of the type. Nulls stay. Raises ``Unsure``."""
    types = pa.types
    try:
        if types.is_timestamp(kind):
            return _in_known_years(_instants(texts, kind), kind)
        if types.is_date(kind):
            return _in_known_years(texts.cast(kind), kind)
        if types.is_binary(kind):
            return pa.array([None if text is None else value_of_text(text, kind) for text in texts.to_pylist()], kind)
        if types.is_string(kind):
            return texts
        if types.is_boolean(kind):
            return pc.equal(_all_match(texts, "^(true|false)$"), "true")
        # Arrow itself would take 0x1F as a whole number, and NaN as any other.
        whole = types.is_integer(kind)
        found = _all_match(texts, "^-?[0-9]+$" if whole else r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$")
        if types.is_decimal(kind):
            return narrowed(found.cast(wide_decimal(kind)), kind)
        return all_finite(found.cast(kind)) if types.is_floating(kind) else found.cast(kind)
    except (pa.ArrowException, NotThatType) as error:
        raise Unsure from error


def _instants(texts: Any, kind: Any) -> Any:
    """Arrow refuses a time without a zone where one is needed, and the other way round."""
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        return pc.replace_substring_regex(texts, _FINE, r"\1").cast(kind)


def _in_known_years(values: Any, kind: Any) -> Any:
    is_date = pa.types.is_date(kind)
    numbers, (least, most) = values.view("int32" if is_date else "int64"), _DAYS if is_date else _MICROSECONDS
    if pc.any(pc.or_(pc.less(numbers, least), pc.greater(numbers, most))).as_py():
        raise Unsure
    return values


def _all_match(texts: Any, pattern: str) -> Any:
    if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False:
        raise Unsure
    return texts


def wide_decimal(kind: Any) -> Any:
    """The type to read decimals of this type with.

    Read with their own type, numbers with an exponent overflow: 9e37 as DECIMAL(38, 2) becomes another number, and
    99999.9 as DECIMAL(6, 2) a number with seven digits, without a word.
    """
    return pa.decimal256(76, kind.scale)


def narrowed(values: Any, kind: Any) -> Any:
    """Wide decimals as decimals of the type. Raises ``Unsure``."""
    try:
        return values.cast(kind)
    except pa.ArrowException as error:
        raise Unsure from error


def all_finite(values: Any) -> Any:
    """The values, none of which is infinite or not a number. Raises ``Unsure``."""
    if pc.all(pc.is_finite(values)).as_py() is False:
        raise Unsure
    return values


# --- one value ----------------------------------------------------------------------------------------


def value_of_text(text: str, kind: Any) -> Any:
    """The value that one text says. Raises ``NotThatType``."""
    types = pa.types
    if types.is_string(kind):
        return text
    if types.is_integer(kind):
        return _integer(text, kind)
    if types.is_decimal(kind):
        return _decimal(text, kind)
    if types.is_boolean(kind) and text in ("true", "false"):
        return text == "true"
    if types.is_floating(kind) and _NUMBER.fullmatch(text):
        # Through the parser of columns: to a double first and then to a float would round twice.
        return _by_column(text, kind) if types.is_float32(kind) else _finite(float(text))
    if types.is_timestamp(kind) or types.is_date(kind):
        return _instant(text) if kind.equals(INSTANT) and _COMMON_INSTANT.fullmatch(text) else _by_column(text, kind)
    if types.is_binary(kind):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise NotThatType(text) from error
    raise NotThatType(text)


def _instant(text: str) -> datetime:
    """A time in the form that almost all have, much faster than by a column."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise NotThatType(text) from error


def _by_column(text: str, kind: Any) -> Any:
    try:
        value: date | datetime | float = column_of_texts(pa.array([text], pa.string()), kind)[0].as_py()
    except Unsure as error:
        raise NotThatType(text) from error
    return value


def _finite(value: float) -> float:
    if value in (float("inf"), -float("inf")):
        raise NotThatType(str(value))
    return value


def _integer(text: str, kind: Any) -> int:
    if not _WHOLE.fullmatch(text) or len(text.lstrip("-0")) > _INTEGER_DIGITS_MAX:
        raise NotThatType(text)
    value = int(text)
    limit = 2 ** (kind.bit_width - 1)
    if not -limit <= value < limit:
        raise NotThatType(text)
    return value


def _decimal(text: str, kind: Any) -> decimal.Decimal:
    """Exactly the number of the text: one with more digits than the type has is not rounded, it is wrong."""
    if len(text) > _DIGITS_MAX or not _NUMBER.fullmatch(text):
        raise NotThatType(text)
    try:
        sign, digits, exponent = decimal.Decimal(text).as_tuple()
    except decimal.InvalidOperation as error:
        raise NotThatType(text) from error
    assert isinstance(exponent, int), "the pattern knows no NaN"
    unscaled = int("".join(map(str, digits)))
    shift = exponent + kind.scale
    if unscaled == 0:
        return decimal.Decimal((0, (0,), -kind.scale))
    if shift > kind.precision or -shift > len(digits):
        raise NotThatType(text)
    unscaled, rest = (unscaled * 10**shift, 0) if shift >= 0 else divmod(unscaled, 10**-shift)
    if rest or unscaled >= 10**kind.precision:
        raise NotThatType(text)
    return decimal.Decimal((sign, tuple(map(int, str(unscaled))), -kind.scale))
