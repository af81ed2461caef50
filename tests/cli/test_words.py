"""What words of the command line mean: names, times, sizes, permissions, headers."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from courser.cli.naming import identifier
from courser.cli.permission_words import parse_permissions, permission_rows, permissions_record
from courser.cli.quantity_words import expiry_of, parse_time
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.quantities import NEVER

NOW = 1_800_000_000_000_000
"""2027-01-15T08:00:00Z"""
MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("demo", "demo"),
        ("7", 7),
        ("007", 7),
        ("-1", "-1"),
        ("1e3", "1e3"),
        ("\u0661", "\u0661"),
        ("99999999999", "99999999999"),
    ],
)
def test_numbers_are_ids_and_the_rest_are_names(word: str, meaning: int | str) -> None:
    assert identifier(word) == meaning


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15T09:00:00.5+01:00", NOW + 500_000),
        ("2027-01-15 08:00+00:00", NOW),
        ("10m", NOW - 10 * MINUTE),
        ("10m ago", NOW - 10 * MINUTE),
        ("1h 30m", NOW - 90 * MINUTE),
        ("100 years", 0),
        ("yesterday", None),
        ("", None),
        ("25:00", None),
        ("2027-13-01", None),
    ],
)
def test_points_in_time(text: str, moment: int | None) -> None:
    assert parse_time(text, NOW) == moment


def test_times_without_a_zone_are_those_of_this_place() -> None:
    local = datetime.fromtimestamp(NOW / 1_000_000, UTC).astimezone()
    assert parse_time(f"{local:%Y-%m-%dT%H:%M}", NOW) == NOW
    assert parse_time(f"{local:%H:%M}", NOW) == NOW
    later = local + timedelta(minutes=1)
    if later.date() == local.date():
        assert parse_time(f"{later:%H:%M:%S}", NOW) == NOW + MINUTE


def test_expiries_may_be_several_words() -> None:
    assert expiry_of(("7", "days")) == expiry_of(("7days",)) == 7 * 24 * 60 * MINUTE
    assert expiry_of(("1day", "1hour")) == 25 * 60 * MINUTE
    assert expiry_of(("none",)) == NEVER
    assert expiry_of(()) is expiry_of(("server_default",)) is None
    with pytest.raises(click.UsageError, match="EXPIRY"):
        expiry_of(("soon",))


def test_permissions_as_the_iggy_cli_writes_them() -> None:
    assert parse_permissions(None, []) is None
    assert parse_permissions("p_msg,send_messages", []) == Permissions(
        GlobalPermissions(poll_messages=True, send_messages=True)
    )
    permissions = parse_permissions(None, ["4:manage_stream,r_top#1:s_msg,p_msg#2:manage_topic", "5"])
    assert permissions == Permissions(
        GlobalPermissions(),
        {
            4: StreamPermissions(
                manage_stream=True,
                read_topics=True,
                topics={
                    1: TopicPermissions(send_messages=True, poll_messages=True),
                    2: TopicPermissions(manage_topic=True),
                },
            ),
            5: StreamPermissions(),
        },
    )
    assert permissions_record(permissions) == {
        "global": [],
        "streams": {
            "4": {
                "permissions": ["manage_stream", "read_topics"],
                "topics": {"1": ["poll_messages", "send_messages"], "2": ["manage_topic"]},
            },
            "5": {"permissions": [], "topics": {}},
        },
    }
    assert [row["where"] for row in permission_rows(permissions, {(4, None): "shop", (4, 1): "shop/orders"})] == [
        "shop",
        "shop/orders",
        "stream 4, topic 2",
    ]


@pytest.mark.parametrize(
    ("everywhere", "streams", "words"),
    [
        ("p_mgs", [], 'did you mean "p_msg"'),
        ("everything", [], "known are manage_servers"),
        (None, ["demo:p_msg"], "number"),
        (None, ["1:m_srv"], "unknown permission"),
        (None, ["1#x:p_msg"], "topic"),
    ],
)
def test_words_that_are_no_permissions(everywhere: str | None, streams: list[str], words: str) -> None:
    with pytest.raises(click.UsageError, match=words):
        parse_permissions(everywhere, streams)
