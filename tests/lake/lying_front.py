"""A front for a catalog or a store whose answers to commits are wrong: what was done, and what is said, differ.

It is a process of its own: some libraries keep Python waiting while they wait for an answer.
"""

import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.archive.faulty_front import FaultyFront, FrontHandler

LIES = ("lost before", "lost after", "500 before", "500 after", "503 after", "409 after", "412 after", "twice")
_ERROR = b'{"error": {"message": "a lie", "type": "CommitFailedException", "code": 409}}'


class _LyingFront(FaultyFront):
    """Lies about half of the requests that change something and whose path matches: who tries again is to succeed."""

    def __init__(self, address: str, commits: str, seed: int) -> None:
        super().__init__(address, _LyingHandler)
        self._commits, self._dice, self._lock = re.compile(commits), random.Random(seed), threading.Lock()

    def lie(self, path: str) -> str:
        """What to do with a request; empty: nothing but to pass it on."""
        if not self._commits.search(path):
            return ""
        with self._lock:
            lie = self._dice.choice([*LIES, *[""] * len(LIES)])
            print(lie or "true", flush=True)
            return lie


class _LyingHandler(FrontHandler):
    server: _LyingFront

    def _write(self) -> None:
        lie = self.server.lie(self.path)
        body = self._body()
        what, _, when = lie.partition(" ")
        if when == "after" or lie == "twice":
            self._ask(body)
        if what == "lost":
            self._close()
        elif what.isdigit():
            self._answer(int(what), {"Content-Type": "application/json"}, _ERROR)
        else:
            self._pass_on(body)


class Front:
    """The running front, as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.address = process.stdout.readline().strip()
        self.told: list[str] = []
        """What was done with each commit; known after the end."""


@contextmanager
def lying_front(address: str, commits: str, seed: int) -> Iterator[Front]:
    """A front of the server at an address, which lies about requests whose path matches ``commits``."""
    command = [sys.executable, "-m", "tests.lake.lying_front", address, commits, str(seed)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        front = Front(process)
        yield front
    finally:
        output, _ = process.communicate()
    front.told += [line for line in output.split("\n") if line not in ("", "true")]


def main() -> None:
    address, commits, seed = sys.argv[1:]
    front = _LyingFront(address, commits, int(seed))
    threading.Thread(target=front.serve_forever, daemon=True).start()
    print(front.address, flush=True)
    # Until the test closes the pipe, or ends.
    sys.stdin.read()


if __name__ == "__main__":
    main()
