"""``courser ls``: what is there, and how far behind groups are."""

import json

from tests.cli.commands import Cli


def test_topics_of_a_stream_with_the_lag_of_the_slowest_group(stream: str, cli: Cli) -> None:
    place = f"{stream}/orders"
    cli("send", place, *"abcde")
    cli("consumer-group", "create", place, "slow")
    cli("consumer-group", "create", place, "quick")
    cli("consumer-offset", "set", "quick", place, 0, 3, "-k", "consumer-group")
    (record,) = json.loads(cli("ls", stream, "-o", "json").out)
    assert record["size"] > 5 * 48
    del record["size"]
    assert record == {
        "stream": stream,
        "topic": "orders",
        "partition_count": 1,
        "message_count": 5,
        "group_count": 2,
        "max_lag": 5,
    }
    heads, line = cli("ls", stream).out.splitlines()
    assert heads.split() == ["STREAM", "TOPIC", "PARTS", "MESSAGES", "SIZE", "GROUPS", "MAX", "LAG"]
    assert line.split()[-2:] == ["2", "5"]


def test_one_topic_with_partitions_and_groups(stream: str, cli: Cli) -> None:
    place = f"{stream}/orders"
    cli("send", place, *"abc")
    cli("consumer-group", "create", place, "readers")
    record = json.loads(cli("ls", place, "-o", "json").out)
    assert [(part["first_offset"], part["next_offset"]) for part in record["partitions"]] == [(0, 3)]
    assert record["groups"][0].pop("lag_seconds") >= 0
    assert record["groups"] == [
        {"group": "readers", "members": 0, "partition_id": 0, "stored_offset": None, "next_offset": 3, "lag": 3}
    ]
    out = cli("ls", place).out
    assert "PARTITION" in out
    assert "readers" in out


def test_names_for_scripts(stream: str, cli: Cli) -> None:
    assert f"{stream}/orders" in cli("ls", "--names").out.splitlines()
    assert cli("ls", stream, "--names").out == f"{stream}/orders\n"
    assert cli("ls", stream, "--names", "-o", "csv").out == f"name\n{stream}/orders\n"


def test_a_stream_without_topics_is_shown(stream: str, cli: Cli) -> None:
    cli("topic", "delete", f"{stream}/orders", "--yes")
    assert [line.split()[:2] for line in cli("ls").out.splitlines() if line.startswith(stream)] == [[stream, "-"]]
    empty = cli("ls", stream)
    assert (empty.out, "no topics yet" in empty.err) == ("", True)


def test_names_of_digits_are_ids(stream: str, cli: Cli) -> None:
    number = json.loads(cli("stream", "get", stream, "-o", "json").out)["stream_id"]
    assert json.loads(cli("ls", f"{number}/0", "-o", "json").out)["topic"] == "orders"
    cli("stream", "create", "20260131")
    result = cli("stream", "get", "20260131")
    assert result.code == 5
    assert 'numbers are ids; the stream named "20260131" has id' in result.err
