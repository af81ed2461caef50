"""A server of two processes beside one of a single process.

Each connection has a topic of its own, as in the load generators of Iggy. The generator shares the processors with the
server: CPU time says more than speed on a small machine. A connection that works with one topic moves to its owner; one
that works with two topics of different owners in turn stays, and half of its requests are forwarded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.generating import WARM_UP_COUNT, Load, generate, make_topics, place_of
from benchmarks.harness import MIB, Bench, Bound, Row, Target, Weight, cpu_seconds
from benchmarks.samples import SampleBatch, Shape, sample
from benchmarks.wires.requests import SendRequest
from benchmarks.wires.vsr_wire import VsrWire
from courser.bench.private_server import private_server
from courser.client.targets import Target as ServerTarget
from courser.processes.router import STREAK_COUNT

CONNECTION_COUNT = 8
_PSS_MAX = 45
"""MiB of a further process."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server and its processes."""

    target: ServerTarget
    process_ids: Sequence[int]

    def cpu_seconds(self) -> float:
        """CPU time of all processes."""
        return cpu_seconds(self.process_ids)

    def memory(self) -> list[float]:
        """The proportional share of memory of each process, in MiB."""
        found = []
        for number in self.process_ids:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            size = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            found.append(size * 1024 / MIB)
        return found


@contextmanager
def serving(path: Path, process_count: int) -> Iterator[Running]:
    """A server of so many processes."""
    with private_server(path, settings=(f"server.processes={process_count}",)) as server:
        children = Path(f"/proc/{server.process_id}/task/{server.process_id}/children").read_text().split()
        yield Running(server.target, (server.process_id, *map(int, children)))


# --- CPU time -----------------------------------------------------------------------------------------


def _cpu_of_sends(bench: Bench, batch: SampleBatch, count: int, process_count: int, *, in_turn: bool) -> float:
    """CPU time of the server for each send, in microseconds. ``in_turn``: each connection uses two topics in turn."""
    with bench.fresh_directory() as path, serving(path, process_count) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(VsrWire(server.target))) for _ in range(CONNECTION_COUNT)]
        make_topics(server.target, CONNECTION_COUNT + 1)
        sends: list[Callable[[], None]] = []
        for number, client in enumerate(clients):
            requests = [client.make_send(place_of(number + step), 0, batch) for step in range(2)]
            sends.append(_sender(client, requests if in_turn else requests[:1]))
        _rounds(sends, WARM_UP_COUNT)
        before = server.cpu_seconds()
        each = max(count // len(sends), 1)
        _rounds(sends, each)
        return (server.cpu_seconds() - before) * 1e6 / (each * len(sends))


def _sender(client: VsrWire, requests: Sequence[SendRequest]) -> Callable[[], None]:
    """Sends the requests in turn, each too few times in a row for the connection to move."""
    number = 0

    def send() -> None:
        nonlocal number
        client.send(requests[number // (STREAK_COUNT - 1) % len(requests)])
        number += 1

    return send


def _rounds(sends: Sequence[Callable[[], None]], count: int) -> None:
    # One connection after the other: processes that take turns would find the caches of the processor cold.
    for send in sends:
        for _ in range(count):
            send()


def _cpu(bench: Bench) -> Iterator[Row]:
    single, large = sample(Shape.SAME, 1), sample(Shape.SAME, bench.scale.message_count)
    single_count = bench.scale.single_count
    large_count = max(bench.scale.append_size // large.stored_size, 1)
    for name, batch, count, forwarded_max in (
        ("single message", single, single_count, 1.8),
        (f"batch of {large.stored_size / MIB:.1f} MiB", large, large_count, 2.0),
    ):
        rounds = [
            (
                _cpu_of_sends(bench, batch, count, 1, in_turn=False),
                _cpu_of_sends(bench, batch, count, 2, in_turn=False),
                _cpu_of_sends(bench, batch, count, 2, in_turn=True),
            )
            for _ in range(bench.scale.rounds)
        ]
        alone = [found[0] for found in rounds]
        for what, engine, target in (
            ("moved connection", [found[1] for found in rounds], 1.05),
            # The other half is not forwarded.
            ("forwarded", [2 * found[2] - found[1] for found in rounds], forwarded_max),
        ):
            yield Row(
                measure=f"{name}, {what}: CPU of the server for each send",
                unit="us",
                engine=engine,
                bare=alone,
                bare_name="one process",
                target=Target(Bound.RATIO_AT_MOST, target),
            )


# --- speed --------------------------------------------------------------------------------------------


def _speed(bench: Bench, load: Load, process_count: int) -> float:
    """MB/s of all connections, each in a process of its own."""
    count = bench.scale.generator_count
    with bench.fresh_directory() as path, serving(path, process_count) as server:
        make_topics(server.target, count)
        return generate(server.target, load, count, count).megabytes


def _speeds(bench: Bench) -> Iterator[Row]:
    for name, count, polls, target in (
        ("producers of batches", bench.scale.message_count, False, 1.15),
        ("consumers of batches", bench.scale.message_count, True, 1.25),
        ("producers of single messages", 1, False, 1.2),
    ):
        seconds = 4 * bench.scale.sync_seconds
        load = Load(polls=polls, message_count=count, warm_up_count=WARM_UP_COUNT, seconds=seconds)
        rounds = [(_speed(bench, load, 1), _speed(bench, load, 2)) for _ in range(bench.scale.rounds)]
        yield Row(
            measure=f"{bench.scale.generator_count} {name}, two processes",
            unit="MB/s",
            engine=[found[1] for found in rounds],
            bare=[found[0] for found in rounds],
            bare_name="one process",
            target=Target(Bound.RATIO_AT_LEAST, target, Weight.AIM),
        )


def _memory(bench: Bench) -> Iterator[Row]:
    first: list[float] = []
    further: list[float] = []
    for _ in range(bench.scale.rounds):
        with bench.fresh_directory() as path, serving(path, 2) as server:
            one, other = server.memory()
            first.append(one)
            further.append(other)
    yield Row(
        measure="idle, a further process: proportional share of memory",
        unit="MiB",
        engine=further,
        target=Target(Bound.AT_MOST, _PSS_MAX),
        note=f"the first process {median(first):.0f} MiB",
    )


def run(bench: Bench) -> Iterator[Row]:
    yield from _cpu(bench)
    yield from _speeds(bench)
    yield from _memory(bench)
