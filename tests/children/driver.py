"""The other end of a child's pipe: start it, read its lines, stop it dead."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.children.evidence import Evidence
from tests.children.plan import Plan

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 60.0
"""Seconds that any single thing may take before the test gives up."""


class Child:
    """A running ``tests.children.appender``. Each of its lines goes into the evidence."""

    def __init__(self, plan: Plan, evidence: Evidence, *, prefix: Sequence[str] = ()) -> None:
        self.lines: list[list[str]] = []
        self.ack_count = 0
        self._evidence = evidence
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        command = [*prefix, sys.executable, "-m", "tests.children.appender", plan.to_json()]
        # Without buffers: what could not be written to a dead child must not be tried again when the pipe is closed.
        self._process = subprocess.Popen(
            command, cwd=ROOT, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self.has_ended = False

    # --- what it says ---

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Read until the condition holds. A child that ends before is a failure."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert not self.has_ended, f"the child ended: {self.errors}"
            assert time.monotonic() < deadline, f"the child fell silent after {self.lines[-3:]}: {self.errors}"
            self._read(deadline - time.monotonic())

    def wait_for_line(self, word: str) -> list[str]:
        """The first line from now on that begins with this word."""
        seen = len(self.lines)
        self.wait_for(lambda: any(line[0] == word for line in self.lines[seen:]))
        return next(line for line in self.lines[seen:] if line[0] == word)

    def wait_until_ready(self) -> None:
        """Recovery is over and the session has begun."""
        self.wait_for(lambda: ["ready"] in self.lines)

    def wait_for_acks(self, count: int) -> None:
        """So many acknowledgements since it was started."""
        self.wait_for(lambda: self.ack_count >= count)

    def read_for(self, seconds: float) -> None:
        """Take whatever comes in this time."""
        deadline = time.monotonic() + seconds
        while not self.has_ended and (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def tell(self, *words: object) -> list[list[str]]:
        """Give a command and return its answers, without the final one."""
        seen = len(self.lines)
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.wait_for(lambda: any(line[0] in ("done", "closed") for line in self.lines[seen:]))
        return [line for line in self.lines[seen:] if line[0] != "done"]

    def attempt(self, *words: object) -> None:
        """Give a command to a child that may die of it."""
        assert self._process.stdin is not None
        seen = len(self.lines)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.wait_for(lambda: self.has_ended or any(line[0] in ("done", "closed") for line in self.lines[seen:]))

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def _read(self, timeout: float) -> bool:
        """Take what is there; say whether something was."""
        if not self._selector.select(max(timeout, 0)):
            return False
        data = os.read(self._output, 1 << 20)
        self.has_ended = not data
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            words = line.decode().split()
            self.lines.append(words)
            self.ack_count += words[0] == "ack"
            self._evidence.take(words)
        return bool(data)

    def _drain(self) -> None:
        while self._read(0):
            pass

    # --- stopping it ---

    def freeze(self) -> None:
        """Stop it in its tracks and close the evidence: what it acknowledged was acknowledged before now."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        self._drain()

    def kill(self) -> None:
        """SIGKILL, and take what it had said until then."""
        assert self._process.poll() is None, f"the child ended by itself: {self.errors}"
        self._process.kill()
        self.wait_for_end()

    def wait_for_end(self) -> int:
        """Wait for it to end by itself; return its exit code."""
        code = self._process.wait(PATIENCE)
        while not self.has_ended:
            self._read(PATIENCE)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE)
        self._selector.close()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
