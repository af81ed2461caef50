"""Completion: what Tab offers, with names from the server."""

import asyncio

import pytest

from courser.client.client import connect
from tests.cli.commands import Cli, courser
from tests.cli.scenes import make_sink
from tests.servers import RunningServer


def complete(line: str, **environment: str) -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    result = courser(_COURSER_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), **environment)
    assert result.stderr == ""
    return [text.partition(",")[2] for text in result.stdout.splitlines() if text]


def test_commands_and_options() -> None:
    assert complete("courser str") == ["stream"]
    assert complete("courser stream l") == ["list"]
    assert "--from" in complete("courser tail --f")
    assert complete("courser config example p") == ["production"]
    assert complete("courser ls -o j") == ["json", "jsonl"]


def test_names_from_the_server(stream: str, server: RunningServer) -> None:
    assert complete(f"courser stream get {stream[:8]}") == [stream]
    assert complete(f"courser tail {stream[:8]}") == [f"{stream}/orders"]
    assert complete(f"courser tail {stream}/o") == [f"{stream}/orders"]
    assert complete(f"courser topic get {stream} ") == ["orders"]
    assert complete(f"courser topic get {stream} orders ") == []
    assert complete(f"courser ls {stream}/") == [f"{stream}/orders"]
    assert complete("courser user get ig") == ["iggy"]
    make_sink(server.address, f"{stream}-sink", f"{stream}/orders")
    assert complete(f"courser sink get {stream}") == [f"{stream}-sink"]


def test_topics_are_found_among_many_streams(stream: str) -> None:
    """The topics of 50 streams are fetched at most: of those that start with what was typed."""

    async def create_many() -> None:
        async with connect() as client:
            await asyncio.gather(*(client.create_stream(f"{stream}-{number}") for number in range(51)))

    asyncio.run(create_many())
    assert complete(f"courser tail {stream}-50") == [f"{stream}-50/"]


def test_groups_of_a_topic(stream: str, cli: Cli) -> None:
    assert cli("group", "create", f"{stream}/orders", "readers").code == 0
    assert complete(f"courser group reset {stream}/orders r") == ["readers"]
    assert complete(f"courser consumer-group get {stream} orders ") == ["readers"]
    assert complete(f"courser tail {stream}/orders --group ") == ["readers"]
    assert complete("courser tail --group ") == []
    assert complete(f"courser segment list {stream}/orders ") == []


def test_topics_for_jobs(stream: str) -> None:
    assert complete(f"courser export {stream}/") == [f"{stream}/orders"]
    assert complete(f"courser compact {stream}/orders --into {stream}/o") == [f"{stream}/orders"]


def test_commands_to_get_help_for() -> None:
    assert complete("courser help str") == ["stream"]
    assert complete("courser help stream l") == ["list"]
    assert complete("courser help send ") == []
    assert complete("courser help nonsense ") == []


def test_contexts(cli: Cli) -> None:
    cli("context", "create", "prod", "h:1")
    assert complete("courser context use p") == ["prod"]
    assert complete("courser --context p") == ["prod"]


@pytest.mark.parametrize("url", ["127.0.0.1:1", "nonsense://", "iggy://nobody:wrong@{address}"])
def test_no_server_no_names_and_no_noise(url: str, stream: str, server: RunningServer) -> None:
    assert complete("courser stream get s", COURSER_URL=url.format(address=server.address)) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(shell: str) -> None:
    result = courser("completion", shell)
    assert result.returncode == 0
    assert "_COURSER_COMPLETE" in result.stdout
    assert courser("completion", shell, "-o", "json").stdout.startswith("{")
    assert courser("completion", "tcsh").returncode == 2
