"""Where documents are tried out: a directory, a development server, and a terminal to type into."""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import free_port

PATIENCE = 60.0
"""Seconds that a start may take."""
_COMMAND_TIMEOUT = 280
_COLUMNS = 120
_BINARIES = Path(sys.executable).parent
_SHELL = shutil.which("bash") or "sh"

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?"), "<date>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "<time>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"login=[0-9a-f]{48}"), "login=<token>"),
    (re.compile(r'"timestamp": \d+'), '"timestamp": <number>'),
    (re.compile(r'"origin_timestamp": \d+'), '"origin_timestamp": <number>'),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"^process id +\d+", re.MULTILINE), "process id <number>"),
    (re.compile(r"\bin \d+\.\d+s\b"), "in <seconds>"),
    (re.compile(r"[\d.]+ \w?B in [\d.]+ s \([\d.]+ \w?B/s\)"), "<size> in <seconds>"),
)


def steady(text: str) -> list[str]:
    """Lines without what differs from run to run: times, ports, ids, blanks at the end."""
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def agrees(expected: str, actual: str) -> bool:
    """Whether an output is as a document says. A line ``...`` stands for any lines."""
    wanted = "\n".join(steady(expected)) + "\n"
    pattern = ".*".join(map(re.escape, re.split(r"^\.\.\.\n", wanted, flags=re.MULTILINE)))
    return re.fullmatch(pattern, "\n".join(steady(actual)) + "\n", re.DOTALL) is not None


class Stage:
    """One directory with one ``courser dev``. As a context manager it ends the server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("IGGY_", "COURSER_"))}
        self.environment = inherited | {
            "PATH": f"{_BINARIES}{os.pathsep}{os.environ['PATH']}",
            "COURSER_CONFIG_HOME": str(directory / "contexts"),
            "HOME": str(directory),
            # Sessions of Spark live for seconds here: classes come from the archive if there is one, and the best
            # machine code would be ready when they end.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "NO_COLOR": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TERM": "dumb",
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> str:
        """Start the server, if it does not run, and return what it prints."""
        output = self.directory / "dev.txt"
        if self._process is None or self._process.poll() is not None:
            with output.open("wb") as target:
                self._process = subprocess.Popen(
                    [_BINARIES / "courser", "dev", "--port", str(self.port)],
                    cwd=self.directory,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=target,
                    stderr=subprocess.STDOUT,
                )
        deadline = time.monotonic() + PATIENCE
        while "Ctrl-C" not in (text := output.read_text()):
            assert time.monotonic() < deadline, f"the server does not get ready:\n{text}"
            try:
                code = self._process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"the server ended with {code}:\n{text}")
        return text

    def kill(self) -> None:
        """End it without notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def type(self, command: str) -> str:
        """Run a command at a terminal and return what it shows, whatever its exit code."""
        if command == "courser dev":
            return self.start()
        if command.startswith("kill -9 "):
            self.kill()
            return ""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, _COLUMNS, 0, 0))
        child = subprocess.Popen(
            [_SHELL, "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := _read(ours):
                shown += piece
        finally:
            os.close(ours)
            child.wait(_COMMAND_TIMEOUT)
        return _ESCAPES.sub("", shown.decode(errors="replace")).replace("\r\n", "\n")

    def run_python(self, program: str) -> str:
        """Run a program and return what it prints. It must not fail."""
        ran = subprocess.run(
            [sys.executable, "-"],
            cwd=self.directory,
            env=self.environment,
            input=program,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_TIMEOUT,
        )
        assert ran.returncode == 0, f"{program}\n{ran.stdout}{ran.stderr}"
        return ran.stdout


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""
