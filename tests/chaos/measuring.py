"""A healthy client's latency, with and without strangers: two programs of their own, so that nobody shares a thread."""

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.chaos.history import Violation
from tests.chaos.plan import Attack
from tests.servers import ROOT

SLOWDOWN_MAX = 20.0
"""How much slower a healthy client's slow requests may get while strangers attack."""
SAMPLE_COUNT_MIN = 200
"""Requests without strangers that a comparison takes. With them there may be few: that they are slow is the point."""
CALM_DOWN = 1.0
"""Seconds of a look whether a server is quiet again after an attack."""
CALM_DOWN_COUNT_MAX = 20
PATIENCE = 120.0
"""Seconds that a program gets to end."""


@dataclass
class Sample:
    """What a pulse has seen for some seconds."""

    latencies: list[float]
    """Seconds of each send and poll."""
    logins: list[float]
    """Seconds of each new connection with its login."""
    failures: list[str]


@dataclass
class Measurement:
    """All samples of a run, by attack; None is without any."""

    samples: dict[Attack | None, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def add(self, attack: Attack | None, sample: Sample) -> None:
        self.samples[attack].append(sample)

    def percentile(self, attack: Attack | None, share: float) -> float:
        """Of all latencies."""
        ordered = sorted(value for sample in self.samples[attack] for value in sample.latencies)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0

    def count(self, attack: Attack | None) -> int:
        return sum(len(sample.latencies) for sample in self.samples[attack])

    def lines(self) -> list[str]:
        """For the report."""
        found = []
        for attack in [None, *(attack for attack in Attack if attack in self.samples)]:
            if not self.count(attack):
                continue
            name = "no strangers" if attack is None else attack.value
            p50, p99 = self.percentile(attack, 0.5) * 1000, self.percentile(attack, 0.99) * 1000
            logins = [value for sample in self.samples[attack] for value in sample.logins]
            slowest = max(logins, default=0.0) * 1000
            found.append(
                f"{name}: {self.count(attack)} requests, median {p50:.2f} ms, p99 {p99:.2f} ms; "
                f"{len(logins)} logins, slowest {slowest:.0f} ms"
            )
        return found

    def violations(self) -> list[Violation]:
        """Healthy clients that were slowed down, or not served."""
        quiet = self.percentile(None, 0.99)
        found = []
        for attack in self.samples:
            name = "no strangers" if attack is None else attack.value
            failures = [failure for sample in self.samples[attack] for failure in sample.failures]
            found += [Violation("unserved", (), f"{name}: {failure}") for failure in dict.fromkeys(failures)]
            slow = self.percentile(attack, 0.99)
            is_comparable = attack is not None and self.count(None) >= SAMPLE_COUNT_MIN
            if is_comparable and slow > SLOWDOWN_MAX * quiet:
                text = f"{name}: p99 {slow * 1000:.1f} ms, {slow / quiet:.0f} times {quiet * 1000:.2f} ms"
                found.append(Violation("slow", (), text))
        return found


class _Program:
    """A child that is led by lines of JSON and ended by its own process id."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self._process.args!r} has ended"
        return json.loads(line)


class Pulse(_Program):
    """A client that sends and polls at a steady pace."""

    def __init__(self, port: int, stream: str) -> None:
        super().__init__("tests.chaos.pulse", str(port), stream)

    def measure(self, seconds: float = 3.0) -> Sample:
        """Work for so long, and tell how it went."""
        self._ask(str(seconds))
        return Sample(**self._answer())

    def wait_for_calm(self) -> None:
        """What an attack has left behind, such as logins that wait, is not part of a quiet server."""
        for _ in range(CALM_DOWN_COUNT_MAX):
            if not self.measure(CALM_DOWN).failures:
                return


class Strangers(_Program):
    """Those who mean harm."""

    def __init__(self, attack: Attack, port: int, seed: int, login: tuple[str, str]) -> None:
        super().__init__("tests.chaos.strangers", attack.name, str(port), str(seed), *login)

    def wait_until_at_work(self) -> None:
        """Until their connections are made, as far as the server lets them."""
        self._answer()
