"""Appends at ``written``, beside bare positional writes of the same bytes to a file that was preallocated likewise.

One appender sends batch after batch. Between two sends the loop turns once, as it does in a server, so that upkeep
(allocation ahead, write-back, index, reservations) really runs beside the sends; that turn is part of the engine's
time. The bare file is allocated before the clock starts.
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
"""Seed 004: messages a second, ..."""
CLAIMED_LATENCY = 0.01
"""... in so many milliseconds."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of sends."""

    seconds: float
    latencies: Sequence[int]
    """Nanoseconds of each send."""
    size: int

    @property
    def speed(self) -> float:
        """MB/s."""
        return self.size / self.seconds / 1e6

    def latency(self, share: float) -> float:
        """Milliseconds."""
        return percentile(self.latencies, share) / 1e6


def bare_appends(path: Path, wires: Sequence[bytes], count: int) -> Timing:
    """``os.pwrite`` of every batch into a file allocated in the engine's chunks."""
    total = sum(map(len, islice(cycle(wires), count)))
    descriptor = os.open(path / "bare.log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        allocate_like_the_engine(descriptor, total)
        latencies = []
        position = 0
        begin = time.perf_counter_ns()
        for wire in islice(cycle(wires), count):
            start = time.perf_counter_ns()
            position += os.pwrite(descriptor, wire, position)
            latencies.append(time.perf_counter_ns() - start)
        return Timing((time.perf_counter_ns() - begin) / 1e9, latencies, total)
    finally:
        os.close(descriptor)


def allocate_like_the_engine(descriptor: int, size: int) -> None:
    settings = LogSettings()
    position = 0
    while position < size:
        chunk = min(max(position, settings.allocation_min), settings.allocation_max)
        os.posix_fallocate(descriptor, position, chunk)
        position += chunk


async def engine_appends(
    path: Path, wires: Sequence[bytes], count: int, *, settings: LogSettings | None = None, parses: bool = True
) -> Timing:
    """``Partition.append`` of every batch, with or without ``parse_batch`` of the bytes received."""
    async with new_engine(path) as engine:
        partition = engine.create(settings or LogSettings())
        batches = [parse_batch(wire) for wire in wires]
        latencies = []
        begin = time.perf_counter_ns()
        for wire, batch in islice(cycle(zip(wires, batches, strict=True)), count):
            start = time.perf_counter_ns()
            await partition.append(parse_batch(wire) if parses else batch)
            latencies.append(time.perf_counter_ns() - start)
            await asyncio.sleep(0)
        seconds = (time.perf_counter_ns() - begin) / 1e9
        return Timing(seconds, latencies, partition.log.size)


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
    for _ in range(bench.scale.rounds):
        with bench.fresh_directory() as path:
            bare.append(bare_appends(path, wires, count))
        with bench.fresh_directory() as path:
            whole.append(bench.run(engine_appends(path, wires, count)))
        with bench.fresh_directory() as path:
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
