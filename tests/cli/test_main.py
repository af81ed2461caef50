"""The command itself: help, usage, exit codes, pipes, terminals, Ctrl-C."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from courser import __version__
from courser.cli.main import root, run
from tests.inspect.partitions import Partition, flip, full_partition

COMMAND = [sys.executable, "-c", "from courser.cli.main import main; main()"]
COMMANDS = [
    ["demonstrate"],
    *(["inspect", name] for name in ("log", "index", "ledger", "offsets", "session", "verify")),
    *(["inspect", name] for name in ("journal", "snapshot", "descriptor")),
]


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return full_partition(tmp_path / "data")


def courser(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["inspect", "--help"], []])
def test_help_imports_neither_numpy_nor_rich(arguments: list[str]) -> None:
    program = (
        "import sys; from courser.cli.main import run; code = run(sys.argv[1:]);"
        "print(sorted({'numpy', 'rich', 'xxhash'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"courser {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert "Exit codes" in text
    assert "[table|json|jsonl]" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["inspekt"], 'did you mean "inspect"?'),
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
    assert "Commands:" in capsys.readouterr().err


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


def on_a_terminal(arguments: list[str], *, columns: int, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command whose stdout and stderr are a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm", **(environment or {})},
    )
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    return process.wait(), b"".join(pieces).decode()


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


def test_the_lazy_commands_are_all_there() -> None:
    context = root.make_context("courser", ["inspect", "verify", "x"])
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        assert command.name == name
