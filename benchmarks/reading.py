"""Sequential reads through ``Partition.read``, hash check included, beside bare positional reads of the same ranges.

The cache is warm: all of the log was just written. Both sides read into memory that they use again.
"""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from benchmarks.engine import fill, new_engine
from benchmarks.harness import MIB, Bench, Bound, Row, Target, Weight
from benchmarks.samples import Shape, wire_batches
from courser.broker.partition import Partition
from courser.storage.paths import log_path
from courser.storage.read_result import ReadBuffer
from courser.storage.settings import LogSettings

READ_SIZE_MAX = 8 * MIB
CLAIMED_READ = 500_000
"""Seed 004: messages a second."""


def bare_reads(partition: Partition, sizes: Sequence[int], pass_count: int) -> float:
    """Seconds that ``os.preadv`` takes for batches of these sizes, behind one another."""
    descriptor = os.open(log_path(partition.log.directory, 0), os.O_RDONLY)
    try:
        buffer = memoryview(bytearray(max(sizes)))
        begin = time.perf_counter()
        for _ in range(pass_count):
            position = 0
            for size in sizes:
                position += os.preadv(descriptor, (buffer[:size],), position)
        return time.perf_counter() - begin
    finally:
        os.close(descriptor)


async def engine_reads(partition: Partition, count: int, pass_count: int) -> float:
    """Seconds that ``Partition.read`` takes for the whole log, ``count`` messages at a time."""
    buffer = ReadBuffer()
    end = partition.log.next_offset
    begin = time.perf_counter()
    for _ in range(pass_count):
        offset = 0
        while offset < end:
            buffer.reset()
            result = await partition.read(offset, count=count, size_max=READ_SIZE_MAX, buffer=buffer)
            offset = result.next_offset
    return time.perf_counter() - begin


async def _measure(bench: Bench, wires: Sequence[bytes], read_count: int) -> tuple[list[float], list[float], int]:
    """Seconds of bare and of engine rounds, and the bytes that each of them read."""
    scale = bench.scale
    bare, engine_seconds = [], []
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            partition = engine.create(LogSettings())
            count = await fill(partition, wires, scale.read_size)
            sizes = list(islice(cycle(map(len, wires)), count))
            for _ in range(scale.rounds):
                bare.append(bare_reads(partition, sizes, scale.read_pass_count))
                engine_seconds.append(await engine_reads(partition, read_count, scale.read_pass_count))
            return bare, engine_seconds, partition.log.size * scale.read_pass_count


def run(bench: Bench) -> Iterator[Row]:
    count = bench.scale.message_count
    for shape in (Shape.SAME, Shape.MIXED):
        wires = wire_batches(shape, count)
        bare, engine, size = bench.run(_measure(bench, wires, count))
        label = f"{count:,} x {shape.value}"
        yield Row(
            measure=f"sequential read, {label}",
            unit="MB/s",
            engine=[size / seconds / 1e6 for seconds in engine],
            bare=[size / seconds / 1e6 for seconds in bare],
            bare_name="preadv",
            target=Target(Bound.RATIO_AT_LEAST, 0.7),
            note="warm cache",
        )
        message_count = size // (sum(map(len, wires)) / len(wires) / count)
        yield Row(
            measure=f"messages read, {label}",
            unit="msg/s",
            engine=[message_count / seconds for seconds in engine],
            bare=[message_count / seconds for seconds in bare],
            bare_name="preadv",
            target=Target(Bound.AT_LEAST, CLAIMED_READ, Weight.CLAIM),
        )
