"""The test's end of a child that uses the SDK: ask it to do something, wait for the answer, collect its events."""

import itertools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.sdk.environments import ROOT, python_of

PATIENCE = 240.0
"""Seconds that an answer or an event may take before the test gives up: more than the child gives a scenario, and less
than pytest gives a test."""


class Refused(Exception):
    """The act failed inside the child."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(trace)
        self.text = text
        """What the SDK said."""


class Conversation:
    """A running ``tests.sdk.programs.child`` of one release. May be used from several threads."""

    def __init__(self, release: str, address: str, token: str = "") -> None:
        self.release = release
        self.events: list[dict[str, Any]] = []
        """All events so far, in their order."""
        self.given: list[str] = []
        """The payloads that its consumers were given, in their order."""
        self.ack_counts: Counter[str] = Counter()
        """How many sends of each of its producers were acknowledged."""
        self.latest_number: dict[str, int] = {}
        """The last message of each of its producers that was acknowledged."""
        self._given: set[str] = set()
        self._producers: set[str] = set()
        self._answers: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [str(python_of(release)), "-m", "tests.sdk.programs.child", release, address, token],
            cwd=ROOT,
            # A panic inside the SDK is told by its message; forty frames of Rust in the output help nobody.
            env=os.environ | {"RUST_BACKTRACE": "0", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._has_ended = False
        self._is_deaf = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # --- talking ---

    def ask(self, what: str, **arguments: Any) -> Any:
        """Have it do something and wait for the result. Raises ``Refused`` if it failed there."""
        return self.answer(self.begin(what, **arguments))

    def begin(self, what: str, **arguments: Any) -> int:
        """Have it do something; ``answer`` waits for the result."""
        number = next(self._numbers)
        if what == "produce":
            self._producers.add(arguments["name"])
        assert self._process.stdin is not None
        with self._changed:
            self._process.stdin.write(json.dumps({"id": number, "do": what, "with": arguments}).encode() + b"\n")
            self._process.stdin.flush()
        return number

    def answer(self, number: int) -> Any:
        """The result of what was begun under this number."""
        self._wait(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise Refused(answer["text"], f"SDK {self.release}: {answer['error']}")
        return answer["result"]

    def wait_until_given(self, payloads: set[str]) -> None:
        """Until its consumers have been given all of these."""
        self._wait(lambda: payloads <= self._given, lambda: f"without {sorted(payloads - self._given)[:3]}")

    def is_given(self, payloads: set[str], within: float) -> bool:
        """Whether its consumers are given all of these before so many seconds have passed."""
        with self._changed:
            return self._changed.wait_for(lambda: payloads <= self._given, within)

    def wait_until_given_count(self, count: int, of: set[str]) -> None:
        """Until its consumers have been given so many of these."""
        self._wait(lambda: len(self._given & of) >= count)

    def wait_for_acks(self, count: int) -> None:
        """Until each of its producers has been acknowledged so many more sends."""
        goals = {name: self.ack_counts[name] + count for name in self._producers}
        self._wait(lambda: all(self.ack_counts[name] >= goal for name, goal in goals.items()))

    # --- its life ---

    def kill(self) -> None:
        """End it without notice: its connections break. What it had reported until then is in the events."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def freeze(self) -> None:
        """Stop it in its tracks: its connections stay, and nothing comes over them any more."""
        self._process.send_signal(signal.SIGSTOP)

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._changed:
                if "event" in told:
                    self._note(told)
                else:
                    self._answers[told["id"]] = told
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _story_of_silence(self, what: str) -> str:
        last = [str(event)[:100] for event in self.events[-3:]]
        return f"SDK {self.release} fell silent {what} after {len(self.events)} events, the last {last}: {self.errors}"

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] == "ack":
            self.ack_counts[event["by"]] += 1
            self.latest_number[event["by"]] = event["numbers"][-1]
        if event["event"] == "message":
            self.given.append(event["payload"])
            self._given.add(event["payload"])

    def _wait(self, condition: Callable[[], bool], describe: Callable[[], str] = str) -> None:
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not condition():
                assert not self._has_ended, f"SDK {self.release}: the child ended: {self.errors}"
                left = deadline - time.monotonic()
                # Who was silent once is not waited for again: its event loop hangs, and all later tests would wait too.
                self._is_deaf |= left <= 0
                assert not self._is_deaf, self._story_of_silence(describe())
                self._changed.wait(left)
