"""``courser tail --filter``: the server searches, and only what matches is printed."""

import json

import pytest

from courser.client.client import Client
from tests.cli.commands import Cli, courser, start


@pytest.fixture
def topic(stream: str, cli: Cli) -> str:
    """Two partitions with orders of three customers."""
    place = f"{stream}/wide"
    assert cli("topic", "create", place, 2).code == 0
    lines = [
        {"payload": {"n": number, "name": name}, "key": name, "headers": {"source": source, "retries": number}}
        for number, (name, source) in enumerate([("ann", "shop"), ("bob", "app"), ("ann", "app"), ("cid", "shop")])
    ]
    for line in lines:
        assert cli("send", place, "-i", "jsonl", json.dumps(line)).code == 0
    return place


def numbers(cli: Cli, topic: str, *conditions: str, options: tuple[str, ...] = ("--from", "earliest")) -> list[int]:
    filters = [word for condition in conditions for word in ("--filter", condition)]
    result = cli("tail", topic, *options, *filters, "-o", "jsonl")
    assert result.code == 0, result.err
    return [json.loads(line)["payload"]["n"] for line in result.out.splitlines()]


def test_by_text_key_header_and_json(topic: str, cli: Cli) -> None:
    assert numbers(cli, topic, "ann") == [0, 2]
    assert numbers(cli, topic, "key=bob") == [1]
    assert numbers(cli, topic, "header.source=app") == [1, 2]
    assert numbers(cli, topic, "header.retries>=2") == [2, 3]
    assert numbers(cli, topic, ".n > 0", ".name!=bob") == [2, 3]
    assert numbers(cli, topic, "nobody") == []


def test_last_and_limit_count_what_matches(topic: str, cli: Cli) -> None:
    assert numbers(cli, topic, "key=ann", options=()) == [0, 2]
    assert numbers(cli, topic, "key=ann", options=("--last", "1")) == [2]
    assert numbers(cli, topic, "key!=bob", options=("--from", "earliest", "--limit", "2")) == [0, 2]
    assert numbers(cli, topic, "key=ann", options=("--from", "1h")) == [0, 2]


def test_where_nothing_matches_it_says_so(topic: str, cli: Cli) -> None:
    assert cli("tail", topic, "--filter", "nobody").err == f"no matching messages in {topic}\n"
    note = 'no payload contains the text "n > 0", a JSON path is ".n > 0"'
    assert cli("tail", topic, "--filter", "n > 0").err == f"no matching messages in {topic}; {note}\n"


def test_the_server_searches(stream: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two needles in 10,000 messages: hardly anything but them is transferred."""
    lines = "\n".join("needle" if number in (3333, 7777) else f"hay {number}" for number in range(10_000))
    assert courser("send", f"{stream}/orders", stdin=lines).returncode == 0
    polled: list[int] = []
    poll = Client.poll_messages

    async def counted(*arguments: object, **options: object) -> object:
        messages = await poll(*arguments, **options)  # type: ignore[arg-type]
        polled.append(len(messages))
        return messages

    monkeypatch.setattr(Client, "poll_messages", counted)
    out = cli("tail", f"{stream}/orders", "--from", "earliest", "--filter", "needle", "--format", "{offset}").out
    assert (out, polled) == ("3333\n7777\n", [1, 1])


def test_what_arrives_is_filtered(stream: str, cli: Cli) -> None:
    place = f"{stream}/orders"
    with start("tail", place, "--follow", "--from", "earliest", "--filter", ".n>=2", "--raw") as process:
        assert process.stdout is not None
        for number in range(4):
            assert cli("send", place, f'{{"n":{number}}}').code == 0
        assert [process.stdout.readline() for _ in range(2)] == ['{"n":2}\n', '{"n":3}\n']
        process.terminate()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--filter", ".a..b=1"], "is not a JSON path such as .customer.name"),
        (["--filter", ""], "a condition must not be empty"),
        (["--filter", "x", "--group", "g"], "--group and --filter cannot be combined"),
    ],
)
def test_wrong_filters(options: list[str], problem: str, cli: Cli) -> None:
    result = cli("tail", "a/b", *options)
    assert (result.code, problem in result.err) == (2, True), result.err
