"""The server over TCP, compared with a bare server that does the same I/O and nothing else.

Servers run as separate processes on loopback. The load generator waits for each reply before the next request.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.bare_client import BareClient
from benchmarks.flushes import flush_count
from benchmarks.harness import MIB, Bench, Bound, Row, Target, cpu_seconds
from benchmarks.samples import SampleBatch, Shape, sample
from benchmarks.wires.classic_wire import ClassicWire
from benchmarks.wires.requests import OFFSET, TopicName
from benchmarks.wires.vsr_wire import VsrWire
from courser.bench.private_server import private_server
from courser.client.targets import Target as ServerTarget

PLACE = TopicName("bench", "topic")
_PAGE = os.sysconf("SC_PAGE_SIZE")
CONNECTION_COUNT = 64
_SINGLE_FACTOR = 3
"""Factor for the number of single messages: in a short run, the CPU time of the start would dominate."""
SYNC_CONNECTION_COUNT = 16
IDLE_MEMORY_MAX = 90
"""MiB."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server process."""

    port: int
    process_id: int

    def cpu_seconds(self) -> float:
        """CPU time of the process."""
        return cpu_seconds([self.process_id])

    def memory(self) -> float:
        """Resident memory in MiB."""
        return int(Path(f"/proc/{self.process_id}/statm").read_text().split()[1]) * _PAGE / MIB


@contextmanager
def courser(directory: Path) -> Iterator[tuple[Running, ServerTarget]]:
    """A server with default settings, and how to log in."""
    with private_server(directory) as server:
        yield Running(server.target.port, server.process_id), server.target


@contextmanager
def bare(directory: Path, *, syncs: bool = False) -> Iterator[Running]:
    """The server that only does the I/O."""
    command = [sys.executable, "-m", "benchmarks.bare_server", str(directory), *(["--sync"] if syncs else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Running(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


# --- large batches ------------------------------------------------------------------------------------


def _send_speed(send: Callable[[], None], batch: SampleBatch, size: int) -> float:
    """MB/s of stored bytes."""
    count = max(size // batch.stored_size, 1)
    begin = time.perf_counter()
    for _ in range(count):
        send()
    return count * batch.stored_size / 1e6 / (time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class Transfer:
    """MB/s in and out."""

    sent: float
    polled: float


def _courser_transfer(bench: Bench, wire: type[VsrWire] | type[ClassicWire], batch: SampleBatch) -> Transfer:
    size = bench.scale.append_size
    with bench.fresh_directory(size) as path, courser(path) as (_, login), closing(wire(login)) as client:
        client.create_stream(PLACE.stream)
        client.create_topic(PLACE, 1)
        request = client.make_send(PLACE, 0, batch)
        sent = _send_speed(lambda: client.send(request), batch, size)
        total = max(size // batch.stored_size, 1) * batch.count
        poll = client.make_poll(PLACE, 0)
        received, offset, begin = 0, 0, time.perf_counter()
        while offset < total:
            polled = client.poll(poll, OFFSET, offset, batch.count)
            offset += polled.message_count
            received += polled.size
        return Transfer(sent, received / 1e6 / (time.perf_counter() - begin))


def _bare_transfer(bench: Bench, batch: SampleBatch) -> Transfer:
    size = bench.scale.append_size
    with bench.fresh_directory(size) as path, bare(path) as server, closing(BareClient(server.port)) as client:
        request = client.make_send(batch)
        sent = _send_speed(lambda: client.send(request), batch, size)
        begin = time.perf_counter()
        received = sum(client.poll(batch.stored_size) for _ in range(max(size // batch.stored_size, 1)))
        return Transfer(sent, received / 1e6 / (time.perf_counter() - begin))


def _large_batches(bench: Bench) -> Iterator[Row]:
    for shape, send_target in ((Shape.SAME, 0.7), (Shape.MIXED, 0.5)):
        batch = sample(shape, bench.scale.message_count)
        rounds = [
            (_bare_transfer(bench, batch), _courser_transfer(bench, VsrWire, batch), _classic(bench, batch))
            for _ in range(bench.scale.rounds)
        ]
        bares, moderns, classics = zip(*rounds, strict=True)
        name = f"{batch.count:,} x {shape.value}"
        for verb, field, target in (("send", "sent", send_target), ("poll", "polled", 0.7)):
            modern = [getattr(transfer, field) for transfer in moderns]
            yield Row(
                measure=f"{verb} {name}, one connection",
                unit="MB/s",
                engine=modern,
                bare=[getattr(transfer, field) for transfer in bares],
                bare_name="bare server",
                target=Target(Bound.RATIO_AT_LEAST, target),
            )
            yield Row(
                measure=f"{verb} {name}, classic wire",
                unit="MB/s",
                engine=[getattr(transfer, field) for transfer in classics],
                bare=modern,
                bare_name="wire of 0.9",
                target=Target(Bound.RATIO_AT_LEAST, 0.5),
            )


def _classic(bench: Bench, batch: SampleBatch) -> Transfer:
    return _courser_transfer(bench, ClassicWire, batch)


# --- single messages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Singles:
    """The cost of many small requests."""

    speed: float
    """Requests a second."""
    cpu: float
    """CPU time of the server per request, in microseconds."""
    flush_count: int
    """Cache flushes of the disk; 0 if the kernel does not count them. A sync is one flush."""
    count: int


def _run_singles(path: Path, server: Running, sends: Sequence[Callable[[], None]], count: int) -> Singles:
    """Send ``count`` requests, divided among the senders."""
    for send in sends:
        send()
    each = max(count // len(sends), 1)

    def work(send: Callable[[], None]) -> None:
        for _ in range(each):
            send()

    threads = [threading.Thread(target=work, args=(send,)) for send in sends]
    total = each * len(sends)
    flushes, cpu, begin = flush_count(path), server.cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu, flushes_after = time.perf_counter() - begin, server.cpu_seconds() - cpu, flush_count(path)
    return Singles(total / seconds, cpu * 1e6 / total, flushes_after - flushes, total)


def courser_singles(bench: Bench, batch: SampleBatch, connections: int, count: int, *, is_synced: bool) -> Singles:
    """Single messages to the server with default settings, from so many connections."""
    with bench.fresh_directory() as path, courser(path) as (server, login), ExitStack() as stack:
        clients = [stack.enter_context(closing(VsrWire(login))) for _ in range(connections)]
        clients[0].create_stream(PLACE.stream)
        clients[0].create_topic(PLACE, 1, is_synced=is_synced)
        return _run_singles(path, server, [_sender(client, batch) for client in clients], count)


def _bare_singles(bench: Bench, batch: SampleBatch, connections: int, count: int, *, is_synced: bool) -> Singles:
    with bench.fresh_directory() as path, bare(path, syncs=is_synced) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(BareClient(server.port))) for _ in range(connections)]
        request = clients[0].make_send(batch)
        return _run_singles(path, server, [_bare_sender(client, request) for client in clients], count)


def _sender(client: VsrWire, batch: SampleBatch) -> Callable[[], None]:
    request = client.make_send(PLACE, 0, batch)
    return lambda: client.send(request)


def _bare_sender(client: BareClient, request: bytes) -> Callable[[], None]:
    return lambda: client.send(request)


def _single_messages(bench: Bench) -> Iterator[Row]:
    batch = sample(Shape.SAME, 1)
    count = _SINGLE_FACTOR * bench.scale.single_count
    for connections in (1, CONNECTION_COUNT):
        rounds = [
            (
                _bare_singles(bench, batch, connections, count, is_synced=False),
                courser_singles(bench, batch, connections, count, is_synced=False),
            )
            for _ in range(bench.scale.rounds)
        ]
        yield Row(
            measure=f"single messages, {connections} connections: CPU of the server for each",
            unit="us",
            engine=[round_[1].cpu for round_ in rounds],
            bare=[round_[0].cpu for round_ in rounds],
            bare_name="bare server",
            target=Target(Bound.RATIO_AT_MOST, 2),
            note=f"{median(round_[1].speed for round_ in rounds):,.0f} requests/s",
        )


def _synced(bench: Bench) -> Iterator[Row]:
    batch = sample(Shape.SAME, 1)
    count = max(bench.scale.single_count // 4, 1)

    def gain(run: Callable[..., Singles]) -> tuple[float, Singles]:
        alone = run(bench, batch, 1, max(count // 4, 1), is_synced=True)
        many = run(bench, batch, SYNC_CONNECTION_COUNT, count, is_synced=True)
        return many.speed / alone.speed, many

    round_count = bench.scale.rounds * bench.scale.sync_round_factor
    rounds = [(gain(_bare_singles), gain(courser_singles)) for _ in range(round_count)]
    acks = f"{median(ours.speed for _, (_, ours) in rounds):,.0f} acks/s"
    theirs, ours = _acks_per_sync(many for (_, many), _ in rounds), _acks_per_sync(many for _, (_, many) in rounds)
    yield Row(
        measure=f"`synced`: gain of {SYNC_CONNECTION_COUNT} connections over one",
        unit="times",
        engine=[gained for _, (gained, _) in rounds],
        bare=[gained for (gained, _), _ in rounds],
        bare_name="bare server with group commit",
        target=Target(Bound.RATIO_AT_LEAST, 0.8),
        note=f"{acks}, {ours} per sync; bare {theirs}",
    )


def _acks_per_sync(runs: Iterable[Singles]) -> str:
    counts = [run.count / run.flush_count for run in runs if run.flush_count]
    return f"{median(counts):.1f}" if counts else "unknown"


def _idle_memory(bench: Bench) -> Iterator[Row]:
    figures = []
    for _ in range(bench.scale.rounds):
        with bench.fresh_directory() as path, courser(path) as (server, login):
            VsrWire(login).close()
            figures.append(server.memory())
    yield Row(
        measure="idle server: resident memory",
        unit="MiB",
        engine=figures,
        target=Target(Bound.AT_MOST, IDLE_MEMORY_MAX),
    )


def run(bench: Bench) -> Iterator[Row]:
    yield from _large_batches(bench)
    yield from _single_messages(bench)
    yield from _synced(bench)
    yield from _idle_memory(bench)
