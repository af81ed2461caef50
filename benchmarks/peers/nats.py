"""NATS with JetStream, with the benchmark of its command line.

All clients use one stream with one subject, and consumers share one durable consumer. A batch is as many messages that
are sent before their acknowledgements are awaited: each has one of its own.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.generator import EqualSizesGenerator, run_generator
from benchmarks.peers.loads import Load
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
class NatsGenerator(EqualSizesGenerator):
    """``nats bench js``."""

    program: Path

    def send(self, load: Load, server: Running, request_count: int) -> float:
        """As in ``EqualSizesGenerator``."""
        way = ["sync"] if load.is_single else ["async", "--batch", str(load.message_count)]
        # The server reserves so much; with its own headers, a small message takes twice its size.
        room = f"{2 + 3 * load.total_size // 10**9}GB"
        words = ["pub", *way, "bench", "--create", "--maxbytes", room, "--size", str(int(load.mean_size))]
        return self._run(load, server, request_count, words)

    def poll(self, load: Load, server: Running) -> float:
        """As in ``EqualSizesGenerator``."""
        words = ["fetch", "--batch", str(load.message_count), "--acks", "none"]
        return self._run(load, server, load.request_count, words)

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
