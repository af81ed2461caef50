"""Completion: what Tab offers, with names from the server."""

import asyncio

import pytest
from click.shell_completion import ShellComplete

from courser.cli.tree import root
from courser.client.client import connect
from tests.cli.commands import Cli, courser
from tests.cli.scenes import make_sink
from tests.servers import RunningServer

ATTEMPT_COUNT_MAX = 20


def complete(line: str) -> list[str]:
    """What Tab offers for the last word of a line."""
    words = line.split(" ")
    completion = ShellComplete(root, {}, "courser", "_COURSER_COMPLETE")
    return [item.value for item in completion.get_completions(words[1:-1], words[-1])]


def complete_name(line: str) -> list[str]:
    """What is offered with the help of the server. Completion gives up soon: a busy machine gets more attempts."""
    return next(filter(None, (complete(line) for _ in range(ATTEMPT_COUNT_MAX))), [])


def test_a_shell_asks_by_environment_variables() -> None:
    asked = {"_COURSER_COMPLETE": "bash_complete", "COMP_WORDS": "courser stream l", "COMP_CWORD": "2"}
    result = courser(**asked)
    assert (result.stdout, result.stderr) == ("plain,list\n", "")


def test_commands_and_options() -> None:
    assert complete("courser str") == ["stream"]
    assert complete("courser stream l") == ["list"]
    assert "--from" in complete("courser tail --f")
    assert complete("courser config example p") == ["production"]
    assert complete("courser ls -o j") == ["json", "jsonl"]


def test_names_from_the_server(stream: str, server: RunningServer) -> None:
    assert complete_name(f"courser stream get {stream[:-1]}") == [stream]
    assert complete_name(f"courser tail {stream[:-1]}") == [f"{stream}/orders"]
    assert complete_name(f"courser tail {stream}/o") == [f"{stream}/orders"]
    assert complete_name(f"courser topic get {stream} ") == ["orders"]
    assert complete(f"courser topic get {stream} orders ") == []
    assert complete_name(f"courser ls {stream}/") == [f"{stream}/orders"]
    assert complete_name("courser user get ig") == ["iggy"]
    make_sink(server.address, f"{stream}-sink", f"{stream}/orders")
    assert complete_name(f"courser sink get {stream}") == [f"{stream}-sink"]


def test_topics_are_found_among_many_streams(stream: str) -> None:
    """The topics of 50 streams are fetched at most: of those that start with what was typed."""

    async def create_many() -> None:
        async with connect() as client:
            await asyncio.gather(*(client.create_stream(f"{stream}-{number}") for number in range(51)))

    asyncio.run(create_many())
    assert complete_name(f"courser tail {stream}-50") == [f"{stream}-50/"]


def test_groups_of_a_topic(stream: str, cli: Cli) -> None:
    assert cli("group", "create", f"{stream}/orders", "readers").code == 0
    assert complete_name(f"courser group reset {stream}/orders r") == ["readers"]
    assert complete_name(f"courser consumer-group get {stream} orders ") == ["readers"]
    assert complete_name(f"courser tail {stream}/orders --group ") == ["readers"]
    assert complete("courser tail --group ") == []
    assert complete(f"courser segment list {stream}/orders ") == []


def test_topics_for_jobs(stream: str) -> None:
    assert complete_name(f"courser export {stream}/") == [f"{stream}/orders"]
    assert complete_name(f"courser compact {stream}/orders --into {stream}/o") == [f"{stream}/orders"]


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
def test_no_server_no_names_and_no_noise(
    url: str, server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COURSER_URL", url.format(address=server.address))
    assert complete("courser stream get s") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(shell: str, cli: Cli) -> None:
    result = cli("completion", shell)
    assert result.code == 0
    assert "_COURSER_COMPLETE" in result.out
    assert cli("completion", shell, "-o", "json").out.startswith("{")
    assert cli("completion", "tcsh").code == 2
