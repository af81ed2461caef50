"""What the command line shows where numbers are missing: after a power cut, and behind a restored backup."""

import json
from collections.abc import Iterator

import pytest

from courser.client.sync import connect_sync
from tests.cli.commands import Cli
from tests.servers import RunningServer

PLACE = "shop/orders"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One with three messages, restored as the guide says: without ``session`` a start leaves out numbers."""
    running = RunningServer(tmp_path_factory.mktemp("restored"))
    with running:
        with connect_sync(f"iggy://iggy:iggy@{running.address}") as client:
            client.create_stream("shop")
            client.create_topic(PLACE)
            client.create_consumer_group(PLACE, name="readers")
            client.send_messages(PLACE, partitioning=0, messages=["a", "b", "c"])
        running.stop()
        (running.data / "session").unlink()
        running.start()
        yield running


def lag_after(cli: Cli, offset: int) -> set[int]:
    """The lag of a group that has stored this offset, by every command that shows it."""
    group = ("readers", PLACE, 0)
    assert cli("consumer-offset", "set", *group, offset, "-k", "consumer-group").code == 0
    shown = [
        json.loads(cli("ls", "-o", "json").out)[0]["max_lag"],
        json.loads(cli("ls", PLACE, "-o", "json").out)["groups"][0]["lag"],
        json.loads(cli("consumer-group", "get", PLACE, "readers", "-o", "json").out)["partitions"][0]["lag"],
        json.loads(cli("consumer-offset", "get", *group, "-k", "consumer-group", "-o", "json").out)["lag"],
    ]
    return set(shown)


def test_numbers_that_no_message_has_are_neither_lag_nor_among_the_newest(cli: Cli) -> None:
    bounds = json.loads(cli("ls", PLACE, "-o", "json").out)["partitions"][0]
    assert bounds["message_count"] == 3
    assert bounds["next_offset"] > 1000
    assert lag_after(cli, 0) == {2}
    assert lag_after(cli, 2) == {0}
    assert cli("tail", PLACE, "--raw").out == "a\nb\nc\n"
    assert cli("tail", PLACE, "--raw", "--last", 2).out == "b\nc\n"

    assert cli("send", PLACE, "d").code == 0
    assert lag_after(cli, 1) == {2}
    assert lag_after(cli, 2) == {1}
    assert cli("tail", PLACE, "--raw", "--last", 3).out == "b\nc\nd\n"
