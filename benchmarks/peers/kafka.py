"""Kafka, with the tools that come with it: one broker in KRaft mode, one producer or consumer.

Several producers would be several Java machines, which a small machine cannot run side by side: loads with more than
one connection are left out. A request holds what its batch size allows, and one request is in flight.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.generator import run_generator
from benchmarks.peers.loads import Load, Measure
from benchmarks.peers.servers import PeerFailed, Running, clean_environment, free_port, serving

ACKNOWLEDGED = "the write call has returned (`acks=all`, one replica)"
_TOPIC = "bench"
_SENT = re.compile(r"^\d+ records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), .* 99\.9th\.$", re.MULTILINE)
_MIB = 1024 * 1024
_SHORT_COUNT = 2_000
"""Records of a short run. Java compiles the code that it runs meanwhile."""


def java_command(home: Path, main: str, *arguments: str) -> list[str]:
    """Run a class of Kafka's libraries."""
    java = os.environ.get("JAVA_HOME")
    program = f"{java}/bin/java" if java else "java"
    return [program, "-Xmx1g", "-cp", f"{home}/libs/*", main, *arguments]


@contextmanager
def kafka(home: Path, directory: Path) -> Iterator[Running]:
    """A broker that is its own controller, with default settings."""
    port, controller = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    file = directory / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    form = java_command(home, "kafka.tools.StorageTool", "format", "-t", "Q291cnNlckJlbmNobWFyaw", "-c", str(file))
    subprocess.run(form, check=True, capture_output=True, env=clean_environment())
    command = java_command(home, "kafka.Kafka", str(file))
    with serving(command, clean_environment(), directory, port) as server:
        yield server


@dataclass(frozen=True, slots=True)
class KafkaGenerator:
    """ProducerPerformance and ConsumerPerformance."""

    home: Path

    def covers(self, load: Load) -> bool:
        """Whether the load can be put on it."""
        return load.connection_count == 1 and load.message_sizes[0] == load.message_sizes[1]

    def measure(self, load: Load, server: Running) -> dict[Measure, float]:
        """Send, and read again if the load says so, on a server without data."""
        found: dict[Measure, float] = {}
        count = load.request_count * load.message_count
        short_cpu, _ = self._send(load, server, _SHORT_COUNT)
        cpu, speed = self._send(load, server, count)
        found[load.sent] = speed if load.is_single else speed * int(load.mean_size) / 1e6
        if load.cpu is not None:
            found[load.cpu] = (cpu - short_cpu) * 1e6 / (count - _SHORT_COUNT)
        if load.polled is not None and not load.is_single:
            found[load.polled] = self._poll(server, count)
        return found

    def _send(self, load: Load, server: Running, count: int) -> tuple[float, float]:
        """The CPU time of the server in seconds, and records per second."""
        size = int(load.mean_size)
        properties = [
            f"bootstrap.servers={server.address}",
            "acks=all",
            f"batch.size={1 if load.is_single else load.message_count * (size + 20)}",
            "linger.ms=0" if load.is_single else "linger.ms=5",
            "max.in.flight.requests.per.connection=1",
            "max.request.size=4000000",
        ]
        arguments = ["--topic", _TOPIC, "--num-records", str(count), "--record-size", str(size), "--throughput", "-1"]
        tool = "org.apache.kafka.tools.ProducerPerformance"
        before = server.cpu_seconds()
        output = run_generator(java_command(self.home, tool, *arguments, "--producer-props", *properties))
        return server.cpu_seconds() - before, parse_sent(output)

    def _poll(self, server: Running, count: int) -> float:
        """MB/s."""
        tool = "org.apache.kafka.tools.ConsumerPerformance"
        arguments = ["--bootstrap-server", server.address, "--topic", _TOPIC, "--messages", str(count)]
        # The first group takes seconds to form.
        arguments += ["--timeout", "120000", "--hide-header"]
        return parse_polled(run_generator(java_command(self.home, tool, *arguments)))


def parse_sent(output: str) -> float:
    """Read records per second of the whole run, which come last.

    Raises:
        PeerFailed: there are none.
    """
    found = _SENT.findall(output)
    if not found:
        raise PeerFailed(f"ProducerPerformance reported no result: {output.strip()[-200:]}")
    return float(found[-1][0])


def parse_polled(output: str) -> float:
    """Read MB/s without the time that the group took to form.

    Raises:
        PeerFailed: there are none.
    """
    # start, end, MB, MB/s, messages, messages/s, rebalance, fetch, MB/s while fetching, messages/s while fetching
    for line in reversed(output.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 10 and float(cells[8]):
            return float(cells[8]) * _MIB / 1e6
    raise PeerFailed(f"ConsumerPerformance reported no result: {output.strip()[-200:]}")
