"""The command itself: help, usage, exit codes, pipes, terminals, Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from courser import __version__
from courser.cli.lazy import LazyGroup
from courser.cli.main import run
from courser.cli.tree import root
from tests.cli.commands import COMMAND, courser, on_a_terminal
from tests.inspect.partitions import Partition, flip, full_partition
from tools.command_pages import commands

COMMANDS = {" ".join(path): list(path) for path, _ in commands()}
GROUPS = list(dict.fromkeys(path[0] for path in COMMANDS.values() if len(path) > 1))
COMMANDS_OF = {group: {path[1] for path in COMMANDS.values() if path[0] == group} for group in GROUPS}
HEAVY = {"asyncio", "csv", "difflib", "json", "msgspec", "numpy", "rich", "socket", "ssl", "uvloop", "xxhash"}
"""What takes long to import, and must not be before it is needed."""


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return full_partition(tmp_path / "data")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["inspect", "--help"], ["stream", "--help"], ["config", "--help"], []]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        # A tool that measures coverage has imported some of them before.
        "import sys; before = set(sys.modules); from courser.cli.main import run; run(sys.argv[1:]);"
        f"print(sorted({HEAVY!r} & (set(sys.modules) - before)),"
        "sorted(name for name in sys.modules if name.startswith('courser.')))"
    )
    result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    ours = [
        f"courser.cli{name}" for name in ("", ".failures", ".lazy", ".main", ".options", ".server_options", ".tree")
    ]
    assert result.stdout.splitlines()[-1] == f"[] {ours}"


def test_completion_of_commands_imports_nothing_heavy() -> None:
    program = (
        "import os, sys; before = set(sys.modules); from courser.cli.main import run\n"
        "os.environ.update(_COURSER_COMPLETE='bash_complete', COMP_WORDS='courser str', COMP_CWORD='1')\n"
        "try: run([])\n"
        f"finally: print(sorted({HEAVY!r} & (set(sys.modules) - before)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == ["plain,stream", "[]"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"courser {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert "Exit codes" in text
    assert "[table|json|jsonl|csv]" in text
    assert max(map(len, text.splitlines())) <= 80


# --- finding a command ---


def test_help_groups_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    parts = re.split(r"^(\S.*):$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert "\n  tail " in sections["Messages"]
    assert "\n  consumer-group, group, g" in sections["Readers and writers"]
    listed = [name for names in root.sections.values() for name in names]
    assert sorted(listed) == sorted(root.summaries)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("group", [group for group in GROUPS if "list" in COMMANDS_OF[group]])
def test_ls_is_list_everywhere(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, "ls", "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: courser {group} list ")


@pytest.mark.parametrize("words", [[], ["send"], ["group"], ["group", "reset"], ["s", "ls"], ["config", "show"]])
def test_help_is_the_help_of_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    expected = capsys.readouterr().out
    assert run(["help", *words]) == 0
    assert capsys.readouterr().out == expected
    assert run(["help", *words, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == expected.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["straem"], 'error: unknown command "straem"\nhint:  did you mean "stream"?'),
        (["send", "it"], 'error: "courser send" has no commands, so "it" is not one'),
    ],
)
def test_help_of_what_does_not_exist(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", *words]) == 2
    assert capsys.readouterr().err.startswith(error)


# --- wrong usage ---


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["inspekt"], 'did you mean "inspect"?'),
        (["straem", "list"], 'did you mean "stream"?'),
        (["stream", "lits"], 'did you mean "list"?'),
        (["topic", "get"], "--help"),
        (["topic", "get", "demo"], "--help"),
        (["topic", "get", "demo/"], "--help"),
        (["topic", "get", "a/b", "c"], "--help"),
        (["partition", "create", "a/b", "many"], "--help"),
        (["segment", "list", "a/b"], "--help"),
        (["tail", "a/b", "--from", "whenever"], "--help"),
        (["tail", "a/b", "--follow", "--exit-at-end"], "--help"),
        (["tail", "a/b", "--from", "0", "--last", "1"], "--help"),
        (["tail", "a/b", "--group", "g", "--last", "1"], "--help"),
        (["tail", "a/b", "--format", "{offzet}"], "--help"),
        (["send", "a/b", "x", "--key", "k", "--partition", "0"], "--help"),
        (["message", "poll", "a/b", "0"], "--help"),
        (["message", "poll", "a/b", "0", "--first", "--last"], "--help"),
        (["topic", "update", "a/b"], "--help"),
        (["topic", "update", "a/b", "--segment-size", "2 MiB"], "--help"),
        (["topic", "create", "a/b", "1", "none", "soon"], "--help"),
        (["topic", "create", "a/b", "--max-topic-size", "huge"], "--help"),
        (["user", "permissions", "somebody", "-g", "p_mgs"], "--help"),
        (["user", "permissions", "somebody", "-s", "demo:p_msg"], "--help"),
        (["pat", "create", "name", "soon"], "--help"),
        (["config", "example", "fast"], "--help"),
        (["inspect", "verfy"], 'did you mean "verify"?'),
        (["x" * 100_000], "the commands are"),
        (["inspect", "log"], "--help"),
        (["inspect", "log", "a", "b"], "--help"),
        (["inspect", "log", "--limit", "many", "a"], "--help"),
        (["inspect", "log", "--limit", "0", "a"], "--help"),
        (["inspect", "log", "--colour", "a"], "--help"),
        (["inspect", "log", "a", "-o", "yaml"], "--help"),
        (["--colour"], "--help"),
    ],
)
def test_wrong_usage(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[-2].startswith("error: ")
    assert lines[-1].startswith("hint:")
    assert hint in lines[-1]
    assert len(captured.err) < 1000


@pytest.mark.parametrize("name", ["", "-", "a\nb", "*", "\u202egol", "x" * 5000])
def test_odd_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "log", "--", name]) == 1
    assert "hint:" in capsys.readouterr().err


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Messages:" in capsys.readouterr().err


ENDLESS = """
import sys
from courser.cli.main import run
code = 0
while not code:
    code = run(sys.argv[1:])
sys.exit(code)
"""


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_a_closed_pipe_is_no_error(partition: Partition, output: str) -> None:
    arguments = ["inspect", "log", str(partition.logs[0]), "--messages", "-o", output]
    command = [sys.executable, "-c", ENDLESS, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert "Traceback" not in errors
    assert "Exception" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_the_output_is_explained(partition: Partition) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "inspect", "log", str(partition.logs[0])]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert "cannot write the output" in result.stderr
    assert "Traceback" not in result.stderr


def test_letters_that_the_terminal_does_not_know(partition: Partition) -> None:
    name = partition.directory / "gr\u00fc\u00df.log"
    name.write_bytes(partition.logs[0].read_bytes())
    result = courser("inspect", "log", name, PYTHONIOENCODING="ascii")
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)
    json.loads(courser("inspect", "log", name, "-o", "json", PYTHONIOENCODING="ascii").stdout)


def test_closed_streams_are_no_traceback(partition: Partition) -> None:
    command = 'exec "$@" >&-'
    arguments = [*COMMAND, "inspect", "log", str(partition.logs[0])]
    result = subprocess.run(["/bin/sh", "-c", command, "sh", *arguments], capture_output=True, text=True, check=False)
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)


@pytest.mark.parametrize("columns", [1, 20, 60, 80, 200])
def test_terminals_of_any_width(partition: Partition, columns: int) -> None:
    flip(partition.logs[0], 300)
    for arguments in (["log", str(partition.logs[0]), "--messages"], ["index", str(partition.indexes[0])]):
        code, text = on_a_terminal(["inspect", *arguments], columns=columns)
        assert (code, "Traceback" in text) == (0, False)
    code, text = on_a_terminal(["inspect", "verify", str(partition.data_directory)], columns=columns)
    assert (code, "Traceback" in text) == (2, False)
    assert "damage" in re.sub(r"\s", "", text)


def test_a_narrow_terminal_loses_columns_not_rows(partition: Partition) -> None:
    code, text = on_a_terminal(["inspect", "log", str(partition.logs[0])], columns=80, environment={"NO_COLOR": "1"})
    rows = [line for line in text.splitlines() if line.startswith("batch ")]
    assert code == 0
    assert len(rows) == len(courser("inspect", "log", partition.logs[0]).stdout.splitlines()) - 1
    assert all(row.rstrip().endswith("ok") for row in rows)


def test_colours_on_a_terminal_only_and_only_if_wanted(partition: Partition) -> None:
    flip(partition.logs[0], 300)
    arguments = ["inspect", "log", str(partition.logs[0])]
    assert "\x1b[31m" in on_a_terminal(arguments, columns=200)[1]
    assert "\x1b[31m" not in on_a_terminal(arguments, columns=200, environment={"NO_COLOR": "1"})[1]
    assert "\x1b" not in courser(*arguments).stdout


def test_the_progress_bar_is_for_terminals_and_leaves_stdout_alone(partition: Partition) -> None:
    assert "verifying" in on_a_terminal(["inspect", "verify", str(partition.data_directory)], columns=100)[1]
    result = courser("inspect", "verify", partition.data_directory, "-o", "json")
    assert "verifying" not in result.stderr
    assert json.loads(result.stdout)["findings"] == []


def test_interrupted() -> None:
    program = (
        "import os, signal, sys; import courser.cli.main as main\n"
        "def interrupt(*_): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "from courser.cli import inspect_commands\n"
        "inspect_commands.LogInspection = interrupt\n"
        "sys.argv = ['courser', 'inspect', 'log', 'x']\n"
        "main.main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 128 + signal.SIGINT
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("group", [root, *(root.get_command(click.Context(root), name) for name in GROUPS)])
def test_the_lazy_commands_are_all_there(group: LazyGroup) -> None:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        # The list of a group, and the first sentence of its commands.
        assert group.summaries[name].endswith(".")
    for alias, name in group.aliases.items():
        assert alias not in group.summaries
        command = group.get_command(context, alias)
        assert command is not None
        assert command.name == name
