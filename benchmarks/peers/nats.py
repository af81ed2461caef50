"""NATS with JetStream, with the benchmark of its command line.

All clients use one stream with one subject, and consumers share one durable consumer. A batch is as many messages that
are sent before their acknowledgements are awaited: each has one of its own.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.generator import SHORT_COUNT, run_generator
from benchmarks.peers.loads import Load, Measure
from benchmarks.peers.servers import PeerFailed, Running, clean_environment, free_port, serving

ACKNOWLEDGED = "the write call has returned; NATS syncs every two minutes"
_RATE = re.compile(r" (?:aggregated )?stats: ([\d,]+) msgs/sec")


@contextmanager
def nats(program: Path, directory: Path) -> Iterator[Running]:
    """A server with JetStream in files, and otherwise default settings."""
    port = free_port()
    command = [str(program), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory / "data")]
    with serving(command, clean_environment(), directory, port) as server:
        yield server


@dataclass(frozen=True, slots=True)
class NatsGenerator:
    """``nats bench js``."""

    program: Path

    def covers(self, load: Load) -> bool:
        """Whether the load can be put on a server. All messages of a run have one size."""
        return load.message_sizes[0] == load.message_sizes[1]

    def measure(self, load: Load, server: Running) -> dict[Measure, float]:
        """Send, and read again if the load says so, on a server without data."""
        found: dict[Measure, float] = {}
        short_cpu, _ = self._send(load, server, SHORT_COUNT)
        cpu, speed = self._send(load, server, load.request_count)
        found[load.sent] = _figure(load, speed)
        if load.cpu is not None:
            send_count = (load.request_count - SHORT_COUNT) * load.connection_count
            found[load.cpu] = (cpu - short_cpu) * 1e6 / send_count
        if load.polled is not None:
            fetch = ["fetch", "--batch", str(load.message_count), "--acks", "none"]
            found[load.polled] = _figure(load, self._run(load, server, load.request_count, fetch))
        return found

    def _send(self, load: Load, server: Running, request_count: int) -> tuple[float, float]:
        """The CPU time of the server in seconds, and messages per second."""
        way = ["sync"] if load.is_single else ["async", "--batch", str(load.message_count)]
        # The server reserves so much; with its own headers, a small message takes twice its size.
        room = f"{2 + 3 * load.total_size // 10**9}GB"
        send = ["pub", *way, "bench", "--create", "--maxbytes", room, "--size", str(int(load.mean_size))]
        before = server.cpu_seconds()
        speed = self._run(load, server, request_count, send)
        return server.cpu_seconds() - before, speed

    def _run(self, load: Load, server: Running, request_count: int, words: list[str]) -> float:
        """Messages per second."""
        count = request_count * load.connection_count * load.message_count
        clients = ["--clients", str(load.connection_count), "--msgs", str(count)]
        command = [str(self.program), "-s", server.address, "bench", "js", *words, *clients, "--no-progress"]
        return parse(run_generator(command))


def parse(output: str) -> float:
    """Read messages per second of all clients, which come first.

    Raises:
        PeerFailed: there are none.
    """
    found = _RATE.search(output)
    if found is None:
        raise PeerFailed(f"nats bench reported no result: {output.strip()[-200:]}")
    return float(found[1].replace(",", ""))


def _figure(load: Load, messages: float) -> float:
    return messages if load.is_single else messages * int(load.mean_size) / 1e6
