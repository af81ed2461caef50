"""The processes that put load on the server: producers that are paced, and members of a group that are killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.producing import STOP
from tests.soak.reading import Partition, Readings

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 120.0
"""Seconds within which a process ends that was asked to."""
GROUP = "readers"
_STEP = 1.0
"""Seconds after which is looked again, whether anybody has reported something or not."""

Latencies = Callable[[float, Sequence[int]], None]
"""Takes a moment and the latencies of the second before it, in microseconds."""


class Child:
    """A Python process whose lines are taken as they come."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], take: Callable[[str], None]) -> None:
        self.name = name
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("COURSER_", "IGGY_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._take = take
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._read_output, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        """The exit code, after everything that it said was taken."""
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    @property
    def last_words(self) -> str:
        return self._errors[-1].strip() if self._errors else "it said nothing"

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # Whoever is killed may leave half a line.
            if line.endswith("\n"):
                self._take(line)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)


@dataclass
class Book:
    """What all children have reported."""

    readings: Readings = field(default_factory=Readings)
    acknowledged: dict[Partition, int] = field(default_factory=dict)
    """Messages of each partition."""
    violations: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Event = field(default_factory=threading.Event)
    """Set whenever somebody reports something."""

    def counts(self) -> tuple[int, int]:
        """How many messages were acknowledged, and up to where they were read."""
        with self.lock:
            sent = sum(self.acknowledged.values())
            return sent, sum(map(self.readings.read_count, self.acknowledged))


class Crew:
    """Everybody who works on some topics."""

    def __init__(self, url: str, topics: Sequence[str], partition_count: int, latencies: Latencies) -> None:
        self.book = Book()
        self._url = url
        self._topics = topics
        self._partition_count = partition_count
        self._latencies = latencies
        self._producers: list[Child] = []
        self._members: list[Child] = []
        self._member_count = 0

    def start(self, member_count: int) -> None:
        for _ in range(member_count):
            self._add_member()
        for topic in self._topics:
            arguments = [self._url, topic, str(self._partition_count)]
            self._producers.append(
                Child(f"producer of {topic}", "tests.soak.producing", arguments, self._producer_line(topic))
            )

    def set_rate(self, rate: float) -> None:
        """Requests per second of all producers together; 0: as many as possible."""
        for producer in self._producers:
            producer.tell(str(rate / len(self._producers)))

    def replace_member(self, number: int) -> None:
        """Kill a member without notice, and add a new one."""
        victim = self._members.pop(number)
        victim.kill()
        self._add_member()

    @property
    def member_count(self) -> int:
        return len(self._members)

    def check(self) -> None:
        """Complain about children that ended by themselves."""
        for child in (*self._producers, *self._members):
            if child.process.poll() is not None:
                self._complain(f"{child.name} ended by itself: {child.last_words}")

    def stop_producers(self) -> None:
        for producer in self._producers:
            if producer.process.poll() is None:
                producer.tell(STOP)
        for producer in self._producers:
            if producer.wait():
                self._complain(f"{producer.name} failed: {producer.last_words}")
        self._producers.clear()

    def stop_members(self) -> None:
        for member in self._members:
            member.process.send_signal(signal.SIGTERM)
        for member in self._members:
            if member.wait():
                self._complain(f"{member.name} failed: {member.last_words}")
        self._members.clear()

    def dismiss(self) -> None:
        """Whoever is still there."""
        for child in (*self._producers, *self._members):
            child.kill()

    def wait_until_read(self) -> None:
        """Everything that was acknowledged; as long as anybody reads at all."""
        sent, read = self.book.counts()
        before, deadline = read, time.monotonic() + PATIENCE
        while read < sent and time.monotonic() < deadline:
            self.book.changed.wait(_STEP)
            self.book.changed.clear()
            sent, read = self.book.counts()
            if read > before:
                before, deadline = read, time.monotonic() + PATIENCE
        if read < sent:
            self._complain(f"members read {read:,} of {sent:,} messages and then nothing for {PATIENCE:.0f} s")

    # --- what children say ----------------------------------------------------------------------------

    def _add_member(self) -> None:
        self._member_count += 1
        name = f"member {self._member_count}"
        arguments = [self._url, GROUP, *self._topics]
        self._members.append(Child(name, "tests.soak.consuming", arguments, self._member_line(name)))

    def _producer_line(self, topic: str) -> Callable[[str], None]:
        def take(line: str) -> None:
            said = json.loads(line)
            with self.book.lock:
                for number, count in enumerate(said["counts"]):
                    self.book.acknowledged[topic, number] = count
            self.book.changed.set()
            self._latencies(said["moment"], said["latencies"])

        return take

    def _member_line(self, name: str) -> Callable[[str], None]:
        def take(line: str) -> None:
            what, *words = line.split()
            with self.book.lock:
                match what:
                    case "assigned":
                        self.book.readings.assigned(name, (words[0], int(words[1])), float(words[2]))
                    case "read":
                        self.book.readings.read(name, (words[0], int(words[1])), int(words[2]), int(words[3]))
                    case "committed":
                        self.book.readings.committed((words[0], int(words[1])), int(words[2]), float(words[3]))
                    case _:
                        self.book.violations.append(f"{name}: {line.strip()}")
            self.book.changed.set()

        return take

    def _complain(self, text: str) -> None:
        with self.book.lock:
            if text not in self.book.violations:
                self.book.violations.append(text)
