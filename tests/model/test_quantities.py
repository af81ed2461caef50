"""Durations and sizes in the grammars of Iggy's files and clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.model.quantities import (
    EXPIRY_MAX,
    NEVER,
    SECOND,
    format_byte_size,
    format_duration,
    parse_byte_size,
    parse_duration,
    parse_expiry,
    parse_max_topic_size,
)

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
UNITS = {
    "seconds second secs sec s": SECOND,
    "minutes minute mins min m": MINUTE,
    "hours hour hrs hr h": HOUR,
    "days day d": DAY,
    "weeks week wks wk w": 7 * DAY,
    "months month": 2_630_016 * SECOND,
    "years year yrs yr y": 31_557_600 * SECOND,
    "millis msec ms": 1_000,
    "usec us \u00b5s \u03bcs": 1,
}


@pytest.mark.parametrize(("units", "microseconds"), UNITS.items())
def test_every_unit_of_time(units: str, microseconds: int) -> None:
    for unit in units.split():
        for text in (f"3{unit}", f"3 {unit}", f"  3   {unit} "):
            assert parse_duration(text) == 3 * microseconds
            assert parse_expiry(text) == 3 * microseconds


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("2 days 4 hours 15 minutes", 2 * DAY + 4 * HOUR + 15 * MINUTE),
        ("2days4hours", 2 * DAY + 4 * HOUR),
        ("1m 1m", 2 * MINUTE),
        ("1 M", MINUTE),
        ("30S", 30 * SECOND),
        ("1000 ns", 1),
        ("1 nsec", 1),
        ("0s", 0),
        *((word, 0) for word in ("0", "none", "None", "DISABLED", "unlimited")),
    ],
)
def test_durations(text: str, microseconds: int) -> None:
    assert parse_duration(text) == microseconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "30", "1.5s", "-1s", "s", "1 fortnight", "1s,2s", "1s x", "1e9s", "9" * 5000 + "s", "9" * 40 + "y"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r'^a duration such as "30s"'):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expiry"),
    [
        ("7 days", 7 * DAY),
        ("2 days 4 hours", 2 * DAY + 4 * HOUR),
        ("1 M", 2_630_016 * SECOND),
        ("1 m", MINUTE),
        ("4294967295s", EXPIRY_MAX),
        *((word, NEVER) for word in ("none", "None", "unlimited", "Unlimited", "never_expire")),
        *((word, None) for word in ("default", "Default", "server_default", "Server_default")),
    ],
)
def test_expiries(text: str, expiry: int | None) -> None:
    assert parse_expiry(text) == expiry


@pytest.mark.parametrize("text", ["", "0", "0s", "3600", "7 DAYS", "4294967296s", "disabled", "-1 day"])
def test_what_is_no_expiry(text: str) -> None:
    with pytest.raises(ValueError, match=r'^a duration such as "7 days", or "none"'):
        parse_expiry(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1_048_576),
        ("1 B", 1),
        ("1KB", 1_000),
        ("1 kb", 1_000),
        ("1 KiB", 1_024),
        ("512 MB", 512_000_000),
        ("1 MiB", 2**20),
        ("1 GB", 10**9),
        ("1 Gib", 2**30),
        ("1 TB", 10**12),
        ("1 TiB", 2**40),
        ("1PB", 10**15),
        ("1PiB", 2**50),
        ("1 EB", 10**18),
        ("1 EiB", 2**60),
        ("1.5 KiB", 1_536),
        ("0.0001 KB", 1),
        ("1.0001", 2),
        *((word, 0) for word in ("0", "0 B", "unlimited", "None")),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_byte_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "B", "-1", "1e9", "1 G", "1 GGB", "1 GiB 2", "1,5 MB", ".5 MB", "16 EiB", "9" * 5000, "x" * 5000]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r'^a size such as "1 GiB"') as refused:
        parse_byte_size(text)
    assert len(str(refused.value)) < 200


def test_sizes_of_topics() -> None:
    assert parse_max_topic_size("10 GB") == 10**10
    assert [parse_max_topic_size(text) for text in ("unlimited", "Unlimited", "none")] == [NEVER] * 3
    assert [parse_max_topic_size(text) for text in ("0", "server_default", "default", "0 GiB")] == [None] * 4
    with pytest.raises(ValueError, match=r'^a size such as "10 GiB", or "unlimited", not "big"'):
        parse_max_topic_size("big")


@given(st.integers(min_value=0, max_value=2**63))
def test_what_is_formatted_is_read_back(number: int) -> None:
    assert parse_duration(format_duration(number)) == number
    assert parse_byte_size(format_byte_size(number)) == number


def test_formats_are_short() -> None:
    assert [format_duration(value) for value in (0, 30 * SECOND, 90 * MINUTE, 1_500)] == [
        "0",
        "30s",
        "1h 30m",
        "1ms 500us",
    ]
    sizes = (0, 1000, 1024, 10**9, 2**30, 1536, 2_000_000)
    assert [format_byte_size(size) for size in sizes] == ["0 B", "1 KB", "1 KiB", "1 GB", "1 GiB", "1536 B", "2 MB"]


@given(st.text())
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    for parse in (parse_duration, parse_expiry, parse_byte_size, parse_max_topic_size):
        try:
            result = parse(text)
        except ValueError:
            continue
        assert result is None or 0 <= result < 2**64
