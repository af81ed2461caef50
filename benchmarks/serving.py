"""The server over TCP, beside a bare server that does the same I/O and nothing else.

Servers are processes of their own on loopback; the load generator waits for each answer before the next request.
"""

import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import MIB, Bench, Bound, Row, Target
from benchmarks.samples import ORIGIN, Shape
from benchmarks.wire_client import BareClient, ClassicClient, SampleBatch, VsrClient
from courser.records.batch import NewMessage, build_batch, encode_batch

_PAGE = os.sysconf("SC_PAGE_SIZE")
CONNECTION_COUNT = 64
SYNC_CONNECTION_COUNT = 16
IDLE_MEMORY_MAX = 90
"""MiB."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server process."""

    port: int
    process_id: int

    def cpu_seconds(self) -> float:
        """Of all threads that live now, to the nanosecond: the usual counters know only ticks."""
        tasks = Path(f"/proc/{self.process_id}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def memory(self) -> float:
        """MiB that are resident."""
        return int(Path(f"/proc/{self.process_id}/statm").read_text().split()[1]) * _PAGE / MIB


@contextmanager
def courser(directory: Path) -> Iterator[Running]:
    """A server on embedded defaults."""
    data = directory / "data"
    command = [str(Path(sys.executable).with_name("courser")), "serve", "--with-default-root-credentials"]
    settings = {"COURSER_SYSTEM_PATH": str(data), "COURSER_TCP_ADDRESS": "127.0.0.1:0", "COURSER_LOG": "warning"}
    process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)
    try:
        yield Running(_port_of(data, process), process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _port_of(data: Path, process: "subprocess.Popen[bytes]") -> int:
    path = data / "runtime" / "current_config.toml"
    while process.poll() is None:
        if path.exists():
            address = tomllib.loads(path.read_text()).get("tcp", {}).get("address", "")
            if address:
                return int(address.rpartition(":")[2])
        time.sleep(0.01)
    raise RuntimeError(f"the server ended with code {process.returncode}")


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


def sample(shape: Shape, count: int) -> SampleBatch:
    """Messages in the forms of both wires."""
    source = random.Random(7)
    payloads = [source.randbytes(size) for size in shape.payload_sizes(count, source)]
    messages = [
        NewMessage(payload, message_id=source.getrandbits(128), origin_timestamp=ORIGIN + number)
        for number, payload in enumerate(payloads)
    ]
    classic = [
        struct.pack("<Q16sQQQIIQ", 0, message.message_id.to_bytes(16, "little"), 0, 0, ORIGIN, 0, len(payload), 0)
        + payload
        for message, payload in zip(messages, payloads, strict=True)
    ]
    index, end = [], 0
    for message in classic:
        end += len(message)
        index.append(struct.pack("<IIQ", 0, end, 0))
    return SampleBatch(count, encode_batch(build_batch(messages)), b"".join(index), b"".join(classic))


# --- large batches ------------------------------------------------------------------------------------


def _send_speed(send: Callable[[], None], batch: SampleBatch, size: int) -> float:
    """MB/s of stored bytes."""
    count = max(size // len(batch.vsr), 1)
    begin = time.perf_counter()
    for _ in range(count):
        send()
    return count * len(batch.vsr) / 1e6 / (time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class Transfer:
    """MB/s in and out."""

    sent: float
    polled: float


def _courser_transfer(bench: Bench, wire: type[VsrClient] | type[ClassicClient], batch: SampleBatch) -> Transfer:
    size = bench.scale.append_size
    with bench.fresh_directory(size) as path, courser(path) as server, closing(wire(server.port)) as client:
        client.create_topic("topic", 1)
        request = client.make_send("topic", 0, batch)
        sent = _send_speed(lambda: client.send(request), batch, size)
        total = max(size // len(batch.vsr), 1) * batch.count
        received, offset, begin = 0, 0, time.perf_counter()
        while offset < total:
            polled = client.poll("topic", 0, offset, batch.count)
            offset += polled.message_count
            received += polled.size
        return Transfer(sent, received / 1e6 / (time.perf_counter() - begin))


def _bare_transfer(bench: Bench, batch: SampleBatch) -> Transfer:
    size = bench.scale.append_size
    with bench.fresh_directory(size) as path, bare(path) as server, closing(BareClient(server.port)) as client:
        request = client.make_send(batch)
        sent = _send_speed(lambda: client.send(request), batch, size)
        begin = time.perf_counter()
        received = sum(client.poll(len(batch.vsr)) for _ in range(max(size // len(batch.vsr), 1)))
        return Transfer(sent, received / 1e6 / (time.perf_counter() - begin))


def _large_batches(bench: Bench) -> Iterator[Row]:
    for shape, send_target in ((Shape.SAME, 0.7), (Shape.MIXED, 0.5)):
        batch = sample(shape, bench.scale.message_count)
        rounds = [
            (_bare_transfer(bench, batch), _courser_transfer(bench, VsrClient, batch), _classic(bench, batch))
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
    return _courser_transfer(bench, ClassicClient, batch)


# --- single messages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Singles:
    """What many small requests cost."""

    speed: float
    """Requests a second."""
    cpu: float
    """Microseconds of the server's CPU for each."""


def _run_singles(server: Running, sends: Sequence[Callable[[], None]], count: int) -> Singles:
    """``count`` requests, shared among the senders."""
    for send in sends:
        send()
    each = max(count // len(sends), 1)

    def work(send: Callable[[], None]) -> None:
        for _ in range(each):
            send()

    threads = [threading.Thread(target=work, args=(send,)) for send in sends]
    cpu, begin = server.cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu = time.perf_counter() - begin, server.cpu_seconds() - cpu
    return Singles(each * len(sends) / seconds, cpu * 1e6 / (each * len(sends)))


def _courser_singles(bench: Bench, batch: SampleBatch, connections: int, count: int, *, is_synced: bool) -> Singles:
    with bench.fresh_directory() as path, courser(path) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(VsrClient(server.port))) for _ in range(connections)]
        clients[0].create_topic("topic", 1, is_synced=is_synced)
        request = clients[0].make_send("topic", 0, batch)
        return _run_singles(server, [_sender(client, request) for client in clients], count)


def _bare_singles(bench: Bench, batch: SampleBatch, connections: int, count: int, *, is_synced: bool) -> Singles:
    with bench.fresh_directory() as path, bare(path, syncs=is_synced) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(BareClient(server.port))) for _ in range(connections)]
        request = clients[0].make_send(batch)
        return _run_singles(server, [_sender(client, request) for client in clients], count)


def _sender(client: VsrClient | BareClient, request: bytes) -> Callable[[], None]:
    return lambda: client.send(request)


def _single_messages(bench: Bench) -> Iterator[Row]:
    batch = sample(Shape.SAME, 1)
    for connections in (1, CONNECTION_COUNT):
        rounds = [
            (
                _bare_singles(bench, batch, connections, bench.scale.single_count, is_synced=False),
                _courser_singles(bench, batch, connections, bench.scale.single_count, is_synced=False),
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
    count = max(bench.scale.single_count // 10, 1)

    def gain(run: Callable[..., Singles]) -> tuple[float, float]:
        alone = run(bench, batch, 1, max(count // 4, 1), is_synced=True).speed
        many = run(bench, batch, SYNC_CONNECTION_COUNT, count, is_synced=True).speed
        return many / alone, many

    rounds = [(gain(_bare_singles), gain(_courser_singles)) for _ in range(bench.scale.rounds)]
    yield Row(
        measure=f"`synced`: gain of {SYNC_CONNECTION_COUNT} connections over one",
        unit="times",
        engine=[ours[0] for _, ours in rounds],
        bare=[theirs[0] for theirs, _ in rounds],
        bare_name="bare server with group commit",
        target=Target(Bound.RATIO_AT_LEAST, 0.8),
        note=f"{median(ours[1] for _, ours in rounds):,.0f} acks/s",
    )


def _idle_memory(bench: Bench) -> Iterator[Row]:
    figures = []
    for _ in range(bench.scale.rounds):
        with bench.fresh_directory() as path, courser(path) as server:
            VsrClient(server.port).close()
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
