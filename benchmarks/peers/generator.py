"""Load generators: what they have in common, and those for servers that speak Iggy's protocols."""

import os
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks import generating
from benchmarks.generating import Speed
from benchmarks.peers.loads import Load, Measure
from benchmarks.peers.servers import PASSWORD, USERNAME, PeerFailed, Running, clean_environment
from courser.client.targets import Target

_PATIENCE = 300.0
"""Maximum duration of one run in seconds."""
SHORT_COUNT = 50
"""Requests of each connection in a short run, of which the speed does not matter."""
_RESULT = re.compile(r"Results: Total throughput: ([\d.]+) MB/s, ([\d.]+) messages/s")


def parse(output: str) -> Speed:
    """Read the summary.

    Raises:
        PeerFailed: there is none.
    """
    found = _RESULT.findall(output)
    if len(found) != 1:
        lines = output.strip().splitlines()
        raise PeerFailed("the load generator reported no result" + (f": {lines[-1].strip()}" if lines else ""))
    return Speed(*map(float, found[0]))


class Kind(Enum):
    """What a run of the generator does."""

    CREATE = "send to new streams"
    SEND = "send to the streams that are there"
    POLL = "read them"


class StreamGenerator(ABC):
    """A generator that is told how many connections send or poll, each with a stream of its own."""

    def covers(self, load: Load) -> bool:
        """Whether the load can be put on a server: every load can."""
        del load
        return True

    def measure(self, load: Load, server: Running) -> dict[Measure, float]:
        """Send, and read again if the load says so, on a server without data."""
        found: dict[Measure, float] = {}
        short_cpu = 0.0
        if load.cpu is not None:
            # Connections and logins cost CPU time, too: a short run with the same connections is subtracted.
            self.run(load, server, Kind.CREATE, SHORT_COUNT)
            short_cpu, _ = self._timed(load, server, SHORT_COUNT)
        cpu, sent = self._timed(load, server, load.request_count)
        found[load.sent] = _figure(load, sent)
        if load.cpu is not None:
            send_count = (load.request_count - SHORT_COUNT) * load.connection_count
            found[load.cpu] = (cpu - short_cpu) * 1e6 / send_count
        if load.polled is not None:
            found[load.polled] = _figure(load, self.run(load, server, Kind.POLL, load.request_count))
        return found

    def _timed(self, load: Load, server: Running, request_count: int) -> tuple[float, Speed]:
        """The CPU time of the server during a run, in seconds, and the speed."""
        before = server.cpu_seconds()
        speed = self.run(load, server, Kind.CREATE if load.cpu is None else Kind.SEND, request_count)
        return server.cpu_seconds() - before, speed

    @abstractmethod
    def run(self, load: Load, server: Running, kind: Kind, request_count: int) -> Speed:
        """So many requests of each connection."""


class EqualSizesGenerator(ABC):
    """A generator of other servers. All its messages have one size, and it reports how many there are per second."""

    def covers(self, load: Load) -> bool:
        """Whether the load can be put on a server."""
        return load.message_sizes[0] == load.message_sizes[1]

    def measure(self, load: Load, server: Running) -> dict[Measure, float]:
        """Send, and read again if the load says so, on a server without data."""
        found: dict[Measure, float] = {}
        # A short run with the same connections is subtracted: what they cost, and what is created first.
        short_cpu, _ = self._timed(load, server, SHORT_COUNT)
        cpu, sent = self._timed(load, server, load.request_count)
        found[load.sent] = _figure(load, _speed(load, sent))
        if load.cpu is not None:
            send_count = (load.request_count - SHORT_COUNT) * load.connection_count
            found[load.cpu] = (cpu - short_cpu) * 1e6 / send_count
        if load.polled is not None:
            found[load.polled] = _figure(load, _speed(load, self.poll(load, server)))
        return found

    def _timed(self, load: Load, server: Running, request_count: int) -> tuple[float, float]:
        """The CPU time of the server in seconds, and messages per second."""
        before = server.cpu_seconds()
        messages = self.send(load, server, request_count)
        return server.cpu_seconds() - before, messages

    @abstractmethod
    def send(self, load: Load, server: Running, request_count: int) -> float:
        """So many requests of each connection. Returns messages per second."""

    @abstractmethod
    def poll(self, load: Load, server: Running) -> float:
        """Read what was sent. Returns messages per second."""


@dataclass(frozen=True, slots=True)
class IggyGenerator(StreamGenerator):
    """``iggy-bench`` of one release."""

    program: Path

    def run(self, load: Load, server: Running, kind: Kind, request_count: int) -> Speed:
        """As in ``StreamGenerator``."""
        actors = ["pinned-consumer", "-c"] if kind is Kind.POLL else ["pinned-producer", "-p"]
        command = [
            str(self.program),
            *("--message-size", size_text(load)),
            *("--messages-per-batch", str(load.message_count)),
            *("--message-batches", str(request_count)),
            *("--username", USERNAME),
            *("--password", PASSWORD),
            *(["--reuse-streams"] if kind is Kind.SEND else []),
            # Without a single sample, it fails at the end.
            *(["--sampling-time", "100us"] if request_count <= SHORT_COUNT else []),
            *actors,
            str(load.connection_count),
            *("tcp", "--server-address", server.address),
        ]
        return parse(run_generator(command))


@dataclass(frozen=True, slots=True)
class OwnGenerator(StreamGenerator):
    """The generator of the benchmarks, where ``iggy-bench`` is not at hand. It needs more processor time itself."""

    release: generating.Release

    def run(self, load: Load, server: Running, kind: Kind, request_count: int) -> Speed:
        """As in ``StreamGenerator``."""
        login = Target(host="127.0.0.1", port=server.port, username=USERNAME, password=PASSWORD)
        if kind is Kind.CREATE:
            generating.make_topics(login, load.connection_count, self.release)
        work = generating.Load(
            release=self.release.value,
            polls=kind is Kind.POLL,
            message_count=load.message_count,
            message_sizes=load.message_sizes,
            request_count=request_count,
        )
        processes = min(load.connection_count, len(os.sched_getaffinity(0)))
        return generating.generate(login, work, load.connection_count, processes)


def size_text(load: Load) -> str:
    """The sizes of messages, as both generators are told."""
    low, high = load.message_sizes
    return str(low) if low == high else f"{low}..{high}"


def run_generator(command: Sequence[str]) -> str:
    """Run a load generator to its end, and return what it printed.

    Raises:
        PeerFailed: it failed, or took too long.
    """
    try:
        run = subprocess.run(
            command,
            env=clean_environment(NO_COLOR="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as timeout:
        raise PeerFailed(f"the load generator did not end within {timeout.timeout:.0f} s") from None
    if run.returncode != 0:
        lines = run.stdout.strip().splitlines()
        raise PeerFailed(f"the load generator failed with code {run.returncode}: {lines[-1] if lines else ''}")
    return run.stdout


def _figure(load: Load, speed: Speed) -> float:
    return speed.messages if load.is_single else speed.megabytes


def _speed(load: Load, messages: float) -> Speed:
    """The speed of so many messages per second, which all have one size."""
    return Speed(messages * int(load.mean_size) / 1e6, messages)
