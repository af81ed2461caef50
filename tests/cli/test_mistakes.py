"""Mistakes that everybody makes once: the hint says what to do about this one."""

from pathlib import Path

import pytest

from tests.cli.commands import Result, courser, in_this_process
from tests.servers import RunningServer


def hint_of(*arguments: object, **environment: str) -> tuple[int, str]:
    result = courser(*arguments, **environment)
    return result.returncode, result.stderr.partition("\nhint:  ")[2].strip()


@pytest.mark.parametrize("option", ["-o", "--output"])
def test_the_output_option_before_the_command(option: str) -> None:
    assert hint_of(option, "json", "ls") == (2, "put it after the command: courser ls -o json")


@pytest.mark.parametrize(
    ("command", "option", "hint"),
    [
        ("tail demo/orders", "--since", 'did you mean "--from"?'),
        ("ls", "--since", "for usage, run courser ls --help"),
        ("tail demo/orders", "--folow", 'did you mean "--follow"?'),
        ("user list", "--usr", 'did you mean "--user"?'),
    ],
)
def test_an_option_that_does_not_exist(
    command: str, option: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = in_this_process(capsys)(*command.split(), option, "10m")
    assert result == Result(2, "", f'error: no such option "{option}"\nhint:  {hint}\n')


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("group reset demo/orders app", "missing --to"),
        ("completion", "missing SHELL: one of bash, zsh, fish"),
        ("completion csh", 'SHELL: "csh" is not one of "bash", "zsh", "fish"'),
        ("tail demo/orders --limit x", '--limit: "x" is not a valid integer'),
        ("tail demo/orders --limit", 'option "--limit" requires an argument'),
        ("dev extra", "got unexpected extra argument (extra)"),
    ],
)
def test_what_click_finds_reads_like_other_errors(command: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = in_this_process(capsys)(*command.split())
    assert (result.code, result.err.splitlines()[0]) == (2, f"error: {error}")


@pytest.mark.parametrize("arguments", [("serve", "--config"), ("config", "show", "--config")])
def test_a_configuration_file_that_is_not_there(arguments: tuple[str, ...], tmp_path: Path) -> None:
    code, hint = hint_of(*arguments, tmp_path / "none.toml")
    assert (code, hint) == (1, "courser config example production prints a file to start from")


def test_a_data_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, hint = hint_of("dev", "--port", 0, "--data", tmp_path / "file" / "data")
    assert code == 1
    assert "--data for courser dev" in hint


def test_a_topic_without_partitions(server: RunningServer) -> None:
    url = f"iggy://iggy:iggy@{server.address}"
    assert courser("stream", "create", "bare", COURSER_URL=url).returncode == 0
    assert courser("topic", "create", "bare/topic", 0, COURSER_URL=url).returncode == 0
    for command in (("send", "bare/topic", "x"), ("send", "bare/topic", "x", "--create"), ("tail", "bare/topic")):
        assert hint_of(*command, COURSER_URL=url) == (5, "courser partition create bare/topic 1 adds one")


def test_a_pipeline_whose_server_does_not_run_or_has_no_such_topic(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(
        '[pipeline]\nname = "orders"\n[source]\nstream = "none"\ntopic = "none"\n[sink]\ntype = "console"\n'
    )
    check = ("pipeline", "check", file, "--without-spark")
    code, hint = hint_of(*check, COURSER_URL="127.0.0.1:1")
    assert (code, hint.partition(";")[0]) == (
        3,
        "check the server with courser ping, or set another one in [server] of the file",
    )
    code, hint = hint_of(*check, COURSER_URL=f"iggy://iggy:iggy@{server.address}")
    assert (code, hint.partition(";")[0]) == (5, "courser ls lists all streams and topics")
    code, hint = hint_of(*check, COURSER_URL=f"iggy://iggy:wrong@{server.address}")
    assert (code, hint.partition(";")[0]) == (4, "check [server] in the file")


def test_a_topic_where_a_stream_is_wanted() -> None:
    assert hint_of("stream", "create", "demo/orders") == (2, "courser topic create demo/orders creates it")


def test_a_name_that_is_too_long_and_a_number_that_is_too_large(server: RunningServer) -> None:
    url = f"iggy://iggy:iggy@{server.address}"
    for command in (("stream", "create", "x" * 256), ("consumer-offset", "get", "me", "0/0", 2**32)):
        result = courser(*command, COURSER_URL=url)
        assert result.returncode == 1
        assert result.stderr.splitlines()[-2].startswith("error: ")
        assert "a number is negative or too large, or a name" in result.stderr
