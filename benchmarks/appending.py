"""Appends at ``written``, compared with bare positional writes of the same bytes to a preallocated file.

One appender sends one batch after another. Before each send, the bytes are copied into one receive buffer, as a socket
would do; this is the same on both sides and is not timed. Between two sends, the event loop runs once, as in a server,
so that upkeep (allocation, write-back, index, reservations) runs alongside; this counts as time of the engine. The bare
file is allocated before the measurement.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from benchmarks.engine import new_engine
from benchmarks.harness import Bench, Bound, Row, Target, Weight, percentile
from benchmarks.samples import Shape, wire_batches
from courser.records.batch import parse_batch
from courser.storage.settings import LogSettings

CLAIMED_APPEND = 601_000
"""Messages per second claimed for another system."""
CLAIMED_LATENCY = 0.01
"""The latency in milliseconds claimed for it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of sends."""

    seconds: float
    latencies: Sequence[int]
    """Duration of each send in nanoseconds."""
    size: int
    processor_seconds: float = 0.0
    """Processor time of the sending thread, which other programs on the machine hardly affect."""

    @property
    def speed(self) -> float:
        """MB/s."""
        return self.size / self.seconds / 1e6

    @property
    def processor_speed(self) -> float:
        """MB per second of processor time."""
        return self.size / max(self.processor_seconds, 1e-9) / 1e6

    def latency(self, share: float) -> float:
        """Milliseconds."""
        return percentile(self.latencies, share) / 1e6


class Watch:
    """Measures the sends, without the time between them."""

    def __init__(self) -> None:
        self._latencies: list[int] = []
        self._spent = self._processor_spent = 0
        self._begin = self._processor_begin = 0

    def start(self) -> None:
        self._processor_begin = time.thread_time_ns()
        self._begin = time.perf_counter_ns()

    def sent(self) -> None:
        """Note that the send is acknowledged."""
        self._latencies.append(time.perf_counter_ns() - self._begin)

    def stop(self) -> None:
        """Note that the work of the send is complete."""
        self._spent += time.perf_counter_ns() - self._begin
        self._processor_spent += time.thread_time_ns() - self._processor_begin

    def timing(self, size: int) -> Timing:
        return Timing(self._spent / 1e9, self._latencies, size, self._processor_spent / 1e9)


def received(wires: Sequence[bytes], count: int) -> Iterator[memoryview]:
    """Batches in a receive buffer. Each is valid until the next one."""
    buffer = memoryview(bytearray(max(map(len, wires))))
    for wire in islice(cycle(wires), count):
        buffer[: len(wire)] = wire
        yield buffer[: len(wire)]


def bare_appends(path: Path, wires: Sequence[bytes], count: int) -> Timing:
    """``os.pwrite`` of every batch into a file allocated in the engine's chunks."""
    descriptor = os.open(path / "bare.log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        allocate_like_the_engine(descriptor, sum(map(len, islice(cycle(wires), count))))
        watch = Watch()
        position = 0
        for data in received(wires, count):
            watch.start()
            position += os.pwrite(descriptor, data, position)
            watch.sent()
            watch.stop()
        return watch.timing(position)
    finally:
        os.close(descriptor)


def allocate_like_the_engine(descriptor: int, size: int) -> None:
    settings = LogSettings()
    position = 0
    while position < size:
        chunk = min(max(position, settings.allocation_min), settings.allocation_max)
        os.posix_fallocate(descriptor, position, chunk)
        position += chunk


async def engine_appends(path: Path, wires: Sequence[bytes], count: int, *, parses: bool = True) -> Timing:
    """``Partition.append`` of every batch, with or without the time for ``parse_batch``."""
    async with new_engine(path) as engine:
        partition = engine.create(LogSettings())
        watch = Watch()
        for data in received(wires, count):
            batch = None if parses else parse_batch(data)
            watch.start()
            await partition.append(batch or parse_batch(data))
            watch.sent()
            await asyncio.sleep(0)
            watch.stop()
        return watch.timing(partition.log.size)


def run(bench: Bench) -> Iterator[Row]:
    scale = bench.scale
    for shape, share in ((Shape.SAME, 0.7), (Shape.MIXED, 0.5)):
        wires = wire_batches(shape, scale.message_count)
        count = max(scale.append_size // len(wires[0]), 8)
        yield from _rows(bench, wires, count, scale.message_count, f"{scale.message_count:,} x {shape.value}", share)
    wires = wire_batches(Shape.SAME, 1)
    yield from _rows(bench, wires, scale.single_count, 1, "single 1,000 B", None)


def _rows(
    bench: Bench, wires: Sequence[bytes], count: int, message_count: int, label: str, share: float | None
) -> Iterator[Row]:
    bare, whole, parsed = [], [], []
    size = count * len(wires[0])
    for _ in range(bench.scale.rounds):
        with bench.fresh_directory(size) as path:
            bare.append(bare_appends(path, wires, count))
        with bench.fresh_directory(size) as path:
            whole.append(bench.run(engine_appends(path, wires, count)))
        with bench.fresh_directory(size) as path:
            parsed.append(bench.run(engine_appends(path, wires, count, parses=False)))
    target = Target(Bound.RATIO_AT_LEAST, share) if share is not None else None
    bare_speeds = [timing.speed for timing in bare]
    for timings, text, row_target in ((whole, "parse and append", target), (parsed, "append alone", None)):
        yield Row(
            measure=f"{text}, {label}",
            unit="MB/s",
            engine=[timing.speed for timing in timings],
            bare=bare_speeds,
            bare_name="pwrite",
            target=row_target,
        )
        yield Row(
            measure=f"{text}, {label}, by processor time",
            unit="MB/s",
            engine=[timing.processor_speed for timing in timings],
            bare=[timing.processor_speed for timing in bare],
            bare_name="pwrite",
            note="the sending thread alone: less noise, no tails",
        )
    is_large = share is not None
    yield Row(
        measure=f"messages sent, {label}",
        unit="msg/s",
        engine=[count * message_count / timing.seconds for timing in whole],
        bare=[count * message_count / timing.seconds for timing in bare],
        bare_name="pwrite",
        target=Target(Bound.AT_LEAST, CLAIMED_APPEND, Weight.CLAIM) if is_large else None,
    )
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        yield Row(
            measure=f"send {name}, {label}",
            unit="ms",
            engine=[timing.latency(part) for timing in whole],
            bare=[timing.latency(part) for timing in bare],
            bare_name="pwrite",
            target=None if is_large else Target(Bound.AT_MOST, CLAIMED_LATENCY, Weight.CLAIM),
        )
