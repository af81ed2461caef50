"""Redis streams, with ``redis-benchmark``.

A batch is a pipeline of XADD commands: Redis has no command for several messages. A consumer reads the same first
messages of a stream again and again, which Redis keeps in memory.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.generator import EqualSizesGenerator, run_generator
from benchmarks.peers.loads import Load
from benchmarks.peers.servers import PeerFailed, Running, clean_environment, free_port, serving

ACKNOWLEDGED = "the write call has returned; Redis syncs once a second (`appendonly yes`)"


@contextmanager
def redis(program: Path, directory: Path) -> Iterator[Running]:
    """A server with an append-only file, and otherwise default settings."""
    port = free_port()
    settings = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--dir", str(directory))
    command = [str(program), "--bind", "127.0.0.1", "--port", str(port), *settings]
    with serving(command, clean_environment(), directory, port) as server:
        yield server


@dataclass(frozen=True, slots=True)
class RedisGenerator(EqualSizesGenerator):
    """``redis-benchmark``."""

    program: Path

    def send(self, load: Load, server: Running, request_count: int) -> float:
        """As in ``EqualSizesGenerator``."""
        count = request_count * load.connection_count * load.message_count
        add = ["XADD", "bench:__rand_int__", "*", "m", "x" * int(load.mean_size)]
        return self._run(load, server, count, load.message_count, add)

    def poll(self, load: Load, server: Running) -> float:
        """As in ``EqualSizesGenerator``."""
        read = ["XREAD", "COUNT", str(load.message_count), "STREAMS", _key(0), "0"]
        return self._run(load, server, load.request_count * load.connection_count, 1, read) * load.message_count

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
