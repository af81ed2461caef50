"""A partition that is offline is shown as that, and hides nothing else: neither its topic nor its neighbours."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Cli, in_this_process
from tests.servers import RunningServer


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """A server on which the directories of partition 1 of two topics were swapped while it was down."""
    cli = in_this_process(capsys)
    server = RunningServer(tmp_path / "server")
    with server:
        monkeypatch.setenv("COURSER_URL", f"iggy://iggy:iggy@{server.address}")
        for command in (
            ("stream", "create", "s"),
            ("topic", "create", "s/t", "3"),
            ("topic", "create", "s/u", "3"),
            ("consumer-group", "create", "s/t", "g"),
            ("send", "s/t", "-p", "0", "a", "b"),
            ("send", "s/t", "-p", "1", "c"),
            ("send", "s/u", "-p", "1", "d"),
        ):
            assert cli(*command).code == 0, command
    one, two = (next(server.data.glob(f"streams/0/topics/{topic}/partitions/1-*")) for topic in (0, 1))
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    with server:
        yield cli


def test_one_that_is_offline_does_not_hide_the_others(cli: Cli) -> None:
    found = cli("ls", "-o", "json")
    assert [(record["topic"], record["message_count"]) for record in json.loads(found.out)] == [("t", 2), ("u", 0)]
    assert json.loads(found.out)[0]["max_lag"] == 2
    for command in (("ls", "s/t"), ("topic", "get", "s/t")):
        partitions = json.loads(cli(*command, "-o", "json").out)["partitions"]
        rows = [(row["is_offline"], row["first_offset"], row["next_offset"]) for row in partitions]
        assert rows == [(False, 0, 2), (True, None, None), (False, 0, 0)]
        assert "offline" in cli(*command).out
    assert "offline" in cli("partition", "list", "s/t").out
    lags = json.loads(cli("consumer-group", "get", "s/t", "g", "-o", "json").out)["partitions"]
    assert [row["lag"] for row in lags] == [2, None, 0]


def test_readers_of_the_whole_topic_are_told(cli: Cli) -> None:
    found = cli("tail", "s/t")
    assert found.code != 0
    assert "offline" in found.err
