"""Sequential reads with ``Partition.read``, including hash checks, compared with bare reads of the same ranges.

The cache is warm, because the log was just written. Both sides reuse their memory.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from benchmarks.engine import fill, new_engine
from benchmarks.harness import MIB, Bench, Bound, Row, Target, Weight
from benchmarks.samples import Shape, wire_batches
from courser.broker.partition.partition import Partition
from courser.storage.paths import log_path
from courser.storage.read_result import ReadBuffer
from courser.storage.settings import LogSettings

READ_SIZE_MAX = 8 * MIB
CLAIMED_READ = 500_000
"""Messages per second claimed for another system."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the whole log."""

    seconds: float
    processor_seconds: float
    size: int

    @property
    def speed(self) -> float:
        """MB/s."""
        return self.size / self.seconds / 1e6

    @property
    def processor_speed(self) -> float:
        """MB per second of processor time."""
        return self.size / max(self.processor_seconds, 1e-9) / 1e6


def bare_pass(partition: Partition, sizes: Sequence[int]) -> Pass:
    """``os.preadv`` of consecutive batches of these sizes."""
    descriptor = os.open(log_path(partition.log.directory, 0), os.O_RDONLY)
    try:
        buffer = memoryview(bytearray(max(sizes)))
        processor_begin, begin = time.thread_time(), time.perf_counter()
        position = 0
        for size in sizes:
            position += os.preadv(descriptor, (buffer[:size],), position)
        return Pass(time.perf_counter() - begin, time.thread_time() - processor_begin, position)
    finally:
        os.close(descriptor)


async def engine_pass(partition: Partition, count: int, end: int | None = None) -> Pass:
    """``Partition.read`` of the whole log, or up to offset ``end``, ``count`` messages at a time."""
    buffer = ReadBuffer()
    offset, end = 0, partition.log.next_offset if end is None else end
    processor_begin, begin = time.thread_time(), time.perf_counter()
    while offset < end:
        buffer.used = 0
        result = await partition.reader.read(offset, count=count, size_max=READ_SIZE_MAX, buffer=buffer)
        offset = result.next_offset
    return Pass(time.perf_counter() - begin, time.thread_time() - processor_begin, partition.log.size)


async def _measure(bench: Bench, wires: Sequence[bytes], read_count: int) -> tuple[list[Pass], list[Pass]]:
    """Passes of the bare loop and of the engine, alternately."""
    scale = bench.scale
    bare, passes = [], []
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            partition = engine.create(LogSettings())
            count = await fill(partition, wires, scale.read_size)
            sizes = list(islice(cycle(map(len, wires)), count))
            for _ in range(scale.rounds * scale.read_pass_count):
                bare.append(bare_pass(partition, sizes))
                passes.append(await engine_pass(partition, read_count))
    return bare, passes


def run(bench: Bench) -> Iterator[Row]:
    count = bench.scale.message_count
    for shape in (Shape.SAME, Shape.MIXED):
        wires = wire_batches(shape, count)
        bare, passes = bench.run(_measure(bench, wires, count))
        label = f"{count:,} x {shape.value}"
        yield Row(
            measure=f"sequential read, {label}",
            unit="MB/s",
            engine=[one.speed for one in passes],
            bare=[one.speed for one in bare],
            bare_name="preadv",
            target=Target(Bound.RATIO_AT_LEAST, 0.7),
            note="warm cache",
        )
        yield Row(
            measure=f"sequential read, {label}, by processor time",
            unit="MB/s",
            engine=[one.processor_speed for one in passes],
            bare=[one.processor_speed for one in bare],
            bare_name="preadv",
            note="less noise",
        )
        message_size = sum(map(len, wires)) / len(wires) / count
        yield Row(
            measure=f"messages read, {label}",
            unit="msg/s",
            engine=[one.speed * 1e6 / message_size for one in passes],
            bare=[one.speed * 1e6 / message_size for one in bare],
            bare_name="preadv",
            target=Target(Bound.AT_LEAST, CLAIMED_READ, Weight.CLAIM),
        )
