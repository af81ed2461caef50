"""Running ``courser`` in tests: in this process, as a child, or as a child at a terminal."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from courser.cli.main import run

COMMAND = [sys.executable, "-c", "from courser.cli.main import main; main()"]
COMMAND_WITH_INTERRUPTS = [
    sys.executable,
    "-c",
    # A shell that starts the tests in the background lets them, and so their children, ignore interrupts.
    """if True:
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from courser.cli.main import main
    main()
    """,
]
COMMAND_AT_TERMINAL = [
    sys.executable,
    "-c",
    # The terminal that Ctrl-C is pressed at. The workers of xdist are deaf to it, and so would their children be.
    """if True:
    import fcntl, signal, termios
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from courser.cli.main import main
    main()
    """,
]
PATIENCE = 280.0
"""Seconds until a command must have ended: some of them start Spark, and the machine may be busy with other things."""
_OF_TERMINALS = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM")


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


def in_this_process(capsys: pytest.CaptureFixture[str], *first: str) -> Cli:
    """What runs commands here. ``first`` is what all of them begin with."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = run([*first, *map(str, arguments)])
        captured = capsys.readouterr()
        return Result(int(code), captured.out, captured.err)

    return call


def forget_settings_of_others(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Neither variables nor contexts of whoever runs the tests count."""
    for name in os.environ:
        if name.startswith(("COURSER_", "IGGY_")) and name != "COURSER_SEED":
            monkeypatch.delenv(name)
    monkeypatch.setenv("COURSER_CONFIG_HOME", str(directory / "config"))


def courser(*arguments: object, stdin: str | bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a child and wait for it; nothing is a terminal."""
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    result = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        check=False,
        input=data,
        env={**os.environ, **environment},
        timeout=PATIENCE,
    )
    return subprocess.CompletedProcess(
        result.args, result.returncode, result.stdout.decode(), result.stderr.decode(errors="replace")
    )


def start(*arguments: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Begin a command as a child, with pipes."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@dataclass
class Terminal:
    """A command that runs at a terminal."""

    process: subprocess.Popen[bytes]
    _ours: int
    text: str = ""

    def read_until(self, word: str) -> None:
        """Wait until it has written this."""
        while word not in self.text:
            piece = self._read()
            assert piece, f"it ended without {word!r}: {self.text}"

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C until it ends: just before Python waits for a key, the first one is noticed with the second."""
        while self.process.poll() is None:
            self.type("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)

    def end(self) -> int:
        """Read the rest; return the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(PATIENCE)

    def _read(self) -> str:
        try:
            piece = os.read(self._ours, 65536).decode()
        except OSError:  # the other end is closed
            return ""
        self.text += piece
        return piece


def at_terminal(
    arguments: Sequence[str], *, columns: int = 100, environment: Mapping[str, str] | None = None
) -> Terminal:
    """Begin a command whose stdin, stdout and stderr are a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in _OF_TERMINALS}
    process = subprocess.Popen(
        [*COMMAND_AT_TERMINAL, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm", **(environment or {})},
        start_new_session=True,
    )
    os.close(theirs)
    return Terminal(process, ours)


def on_a_terminal(
    arguments: Sequence[str], *, columns: int, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command at a terminal; return its exit code and everything that it wrote."""
    terminal = at_terminal(arguments, columns=columns, environment=environment)
    return terminal.end(), terminal.text
