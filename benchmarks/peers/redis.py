"""Redis streams, with ``redis-benchmark``.

A batch is a pipeline of XADD commands: Redis has no command for several messages. A consumer reads the same first
messages of a stream again and again, which Redis keeps in memory.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.generator import run_generator
from benchmarks.peers.loads import Load, Measure
from benchmarks.peers.servers import PeerFailed, Running, clean_environment, free_port, serving

ACKNOWLEDGED = "the write call has returned; Redis syncs once a second (`appendonly yes`)"
SHORT_COUNT = 50
"""Requests of each connection in a short run."""


@contextmanager
def redis(program: Path, directory: Path) -> Iterator[Running]:
    """A server with an append-only file, and otherwise default settings."""
    port = free_port()
    settings = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--dir", str(directory))
    command = [str(program), "--bind", "127.0.0.1", "--port", str(port), *settings]
    with serving(command, clean_environment(), directory, port) as server:
        yield server


@dataclass(frozen=True, slots=True)
class RedisGenerator:
    """``redis-benchmark``."""

    program: Path

    def covers(self, load: Load) -> bool:
        """Whether the load can be put on a server. All messages of a run are the same: sizes cannot vary."""
        return load.message_sizes[0] == load.message_sizes[1]

    def measure(self, load: Load, server: Running) -> dict[Measure, float]:
        """Send, and read again if the load says so, on a server without data."""
        found: dict[Measure, float] = {}
        short_cpu = self._send(load, server, SHORT_COUNT)[0] if load.cpu is not None else 0.0
        cpu, speed = self._send(load, server, load.request_count)
        found[load.sent] = _figure(load, speed)
        if load.cpu is not None:
            send_count = (load.request_count - SHORT_COUNT) * load.connection_count
            found[load.cpu] = (cpu - short_cpu) * 1e6 / send_count
        if load.polled is not None:
            poll = ["XREAD", "COUNT", str(load.message_count), "STREAMS", _key(0), "0"]
            polls = self._run(load, server, load.request_count * load.connection_count, 1, poll)
            found[load.polled] = _figure(load, polls * load.message_count)
        return found

    def _send(self, load: Load, server: Running, request_count: int) -> tuple[float, float]:
        """The CPU time of the server in seconds, and messages per second."""
        count = request_count * load.connection_count * load.message_count
        add = ["XADD", "bench:__rand_int__", "*", "m", "x" * int(load.mean_size)]
        before = server.cpu_seconds()
        speed = self._run(load, server, count, load.message_count, add)
        return server.cpu_seconds() - before, speed

    def _run(self, load: Load, server: Running, count: int, pipeline: int, words: list[str]) -> float:
        """Commands per second."""
        command = [
            *(str(self.program), "-p", str(server.port), "--csv"),
            *("-c", str(load.connection_count), "-P", str(pipeline), "-n", str(count)),
            # The commands choose one of so many streams at random.
            *("-r", str(load.connection_count)),
            *words,
        ]
        return parse(run_generator(command))


def parse(output: str) -> float:
    """Read commands per second.

    Raises:
        PeerFailed: there is no result.
    """
    lines = [line for line in output.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if len(rows) != 1:
        raise PeerFailed(f"redis-benchmark reported no result: {output.strip()[-200:]}")
    return float(rows[0]["rps"])


def _key(number: int) -> str:
    return f"bench:{number:012}"


def _figure(load: Load, messages: float) -> float:
    return messages if load.is_single else messages * int(load.mean_size) / 1e6
