#!/usr/bin/env python3
"""Makes ``terminal.svg``, the picture in the README, out of a real session: ``python docs/images/terminal.py``.

Every command runs at a terminal of its own, in a temporary directory, against a server that this script starts, kills
with SIGKILL and starts again. What it prints is drawn by rich. Only the prompts are added.
"""

import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

OUTPUT = Path(__file__).with_name("terminal.svg")
COLUMNS = 80
PATIENCE = 60.0
"""Seconds that a start may take."""

START, KILL = "courser dev &", "kill -9 $!"
SESSION = (
    START,
    """echo '{"n":1}' | courser send demo/orders --create""",
    """seq -f '{"n":%g}' 2 5 | courser send demo/orders""",
    "courser tail demo/orders --last 3",
    "courser send demo/ordrs 'hello'",
    "courser consumer-group create demo/orders billing",
    KILL,
    START,
    "courser tail demo/orders --group billing",
    "courser ls",
)
THEME = TerminalTheme(
    (30, 32, 38),
    (214, 216, 222),
    [(90, 94, 104), (224, 108, 117), (152, 195, 121), (229, 192, 123)] + [(97, 175, 239)] * 4,
    [(130, 134, 144), (224, 108, 117), (152, 195, 121), (229, 192, 123)] + [(97, 175, 239)] * 4,
)


class Session:
    """A directory, a server, a shell."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        binaries = Path(sys.executable).parent
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("IGGY_", "COURSER_"))}
        self.environment = inherited | {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "COURSER_CONFIG_HOME": str(directory),
            "TERM": "xterm-256color",
            "TZ": "UTC",
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.server: subprocess.Popen[bytes] | None = None

    def run(self, command: str) -> str:
        """What one command shows."""
        if command == START:
            return self.start()
        if command == KILL:
            self.kill()
            return ""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        shell = ["/bin/sh", "-c", command]
        child = subprocess.Popen(
            shell, cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        while piece := read(ours):
            shown += piece
        os.close(ours)
        child.wait()
        return shown.decode()

    def start(self) -> str:
        """Start the server; return what it prints until it is ready."""
        output = self.directory / "output.txt"
        with output.open("wb") as target:
            self.server = subprocess.Popen(
                ["courser", "dev", "--port", str(self.port)], cwd=self.directory, env=self.environment, stdout=target
            )
        deadline = time.monotonic() + PATIENCE
        while "Ctrl-C" not in output.read_text():
            if time.monotonic() > deadline or self.server.poll() is not None:
                sys.exit("the server does not start")
            time.sleep(0.02)
        # The port that everybody sees who has no other server running.
        lines = output.read_text().replace(f":{self.port}", ":8090").splitlines(keepends=True)
        # The link to the console is another one each time, and wider than the picture.
        return "".join(line for line in lines if not line.startswith("console"))

    def kill(self) -> None:
        """End the server without notice."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()


def read(descriptor: int) -> bytes:
    """What the terminal shows next; nothing at its end."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def draw(session: Session) -> str:
    """Play all commands; return the picture."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), color_system="truecolor")
    starts = 0
    for command in SESSION:
        console.print(Text("$ ", "bold green").append(command, "bold white"))
        shown = session.run(command).replace("\r\n", "\n").rstrip("\n")
        starts += command == START
        if command == START and starts > 1:
            # The second time it says the same.
            shown = shown.partition("\n")[0] + "\n..."
        if shown:
            console.print(Text.from_ansi(shown), highlight=False)
    # No fonts from elsewhere: the picture is complete in itself.
    template = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    template = template.replace("font-family: Fira Code, monospace", "font-family: ui-monospace, monospace")
    return console.export_svg(title="courser", theme=THEME, code_format=template, unique_id="courser")


def main() -> None:
    """Make the file."""
    with tempfile.TemporaryDirectory() as directory:
        session = Session(Path(directory))
        try:
            OUTPUT.write_text(draw(session), encoding="utf-8")
        finally:
            session.kill()


if __name__ == "__main__":
    main()
