"""Commands that talk to a server, at terminals and in pipes: narrow ones, closed ones, none; Ctrl-C."""

import json
import re
import signal
import subprocess

import pytest

from tests.cli.commands import Cli, at_terminal, courser, on_a_terminal, start
from tests.cli.scenes import make_scene
from tests.servers import RunningServer

SHOWN = [
    "ls",
    "stream list",
    "stream get {s}",
    "topic get {t}",
    "tail {t}",
    "consumer-group get {t} {g}",
    "stats",
    "ping",
]


@pytest.fixture
def names(cli: Cli, server: RunningServer) -> dict[str, str]:
    return make_scene(server.address).names


@pytest.mark.parametrize(
    ("line", "columns"), [(line, (20, 1, 20, 80)[number % 4]) for number, line in enumerate(SHOWN)]
)
def test_terminals_of_any_width(line: str, columns: int, names: dict[str, str]) -> None:
    code, text = on_a_terminal(line.format_map(names).split(), columns=columns)
    assert (code, "Traceback" in text) == (0, False)
    assert re.sub(r"\s", "", text)


def test_twenty_columns_lose_nothing(names: dict[str, str]) -> None:
    _, text = on_a_terminal(["stream", "list"], columns=20)
    assert f"name: {names['s']}" in text.replace("\r", "")


def test_a_terminal_gets_a_drawn_table_and_a_pipe_does_not(names: dict[str, str]) -> None:
    assert "\x1b[1m" in on_a_terminal(["stream", "list"], columns=100)[1]
    assert "\x1b[3" not in on_a_terminal(["stream", "list"], columns=100, environment={"NO_COLOR": "1"})[1]
    assert "\x1b" not in courser("stream", "list").stdout


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_a_reader_that_goes_away_is_no_error(output: str, names: dict[str, str], cli: Cli) -> None:
    for _ in range(3):
        assert courser("send", names["t"], stdin="x" * 100_000 + "\n").returncode == 0
    with start("tail", names["t"], "--from", "earliest", "--follow", "-o", output) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        # Whatever comes next finds nobody.
        assert cli("send", names["t"], "one more").code == 0
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_interrupted(output: str, names: dict[str, str]) -> None:
    with start("tail", names["t"], "--follow", "-o", output) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (130, "interrupted")
    if output == "json":
        # What was written before is a whole document.
        assert rest.endswith("]\n")


def test_interrupted_while_reading_stdin(names: dict[str, str]) -> None:
    with start("send", names["t"], "-o", "jsonl", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("x\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["message_count"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_typing_messages(names: dict[str, str]) -> None:
    terminal = at_terminal(["send", names["t"]])
    terminal.read_until(f"type one message per line for {names['t']}; press Ctrl-D to finish")
    terminal.type("hello\n\x04")
    terminal.read_until("sent 1 message")
    assert terminal.end() == 0


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 130)], ids=["yes", "no", "enter", "ctrl-c"]
)
def test_who_deletes_is_asked_at_a_terminal(answer: str, code: int, names: dict[str, str], cli: Cli) -> None:
    terminal = at_terminal(["topic", "delete", names["t"]])
    terminal.read_until("[y/N]")
    if answer:
        terminal.type(answer)
    else:
        terminal.interrupt()
    assert terminal.end() == code
    assert cli("topic", "get", names["t"]).code == (5 if code == 0 else 0)


@pytest.mark.parametrize("line", ["stream delete {s}", "topic purge {t}", "partition delete {t} 1", "context delete x"])
def test_without_a_terminal_nobody_is_asked(line: str, names: dict[str, str], cli: Cli) -> None:
    cli("context", "create", "x", "h:1")
    result = courser(*line.format_map(names).split(), stdin="y\n")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--yes" in result.stderr.splitlines()[-1]
    assert cli("topic", "get", names["t"]).code == 0


def test_names_and_payloads_do_not_steer_a_terminal(cli: Cli) -> None:
    name = "evil\x1b[31m"
    assert cli("stream", "create", name).code == 0
    assert cli("send", f"{name}/t\x1b]0;x\x07", "\x1b[2J", "--create").code == 0
    for arguments in (["ls"], ["tail", f"{name}/t\x1b]0;x\x07"], ["stream", "list", "-o", "csv"]):
        _, text = on_a_terminal(arguments, columns=200)
        assert "\x1b[31m" not in text
        assert "\x1b]0;" not in text
        assert "\x1b[2J" not in text
    assert "\x1b" not in cli("stream", "get", f"{name}x").err
    assert cli("stream", "delete", name, "--yes").code == 0
