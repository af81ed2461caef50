"""Random reads of single messages in large batches, and index lookups alone, for each kind of index cache.

The cache is warm: the log was just written, and each batch was read once. *Few* batches all fit into the list of
verified batches of a partition. With *many*, most reads hash a whole batch again.
"""

import os
import random
import time
from collections.abc import Iterator

from benchmarks.engine import fill, new_engine
from benchmarks.harness import GIB, MIB, Bench, Bound, Row, Target, Weight
from benchmarks.samples import Shape, wire_batches
from courser.broker.partition.partition import Partition
from courser.storage.paths import log_path
from courser.storage.read_result import ReadBuffer
from courser.storage.segment import Segment, SegmentState
from courser.storage.segment_index import IndexCache
from courser.storage.settings import LogSettings

CLAIMED_RANDOM_READ = 100_000
CLAIMED_LOOKUP = 1_000_000
_FEW_BATCH_SIZE = 128 * MIB
_MANY_BATCH_SIZE = 1 * GIB


async def engine_random_reads(partition: Partition, offsets: list[int]) -> float:
    """Reads a second."""
    buffer = ReadBuffer()
    begin = time.perf_counter()
    for offset in offsets:
        buffer.used = 0
        await partition.reader.read(offset, count=1, size_max=MIB, buffer=buffer)
    return len(offsets) / (time.perf_counter() - begin)


def bare_random_reads(partition: Partition, count: int, message_size: int) -> float:
    """The same number of positional reads of one message, at random positions in the first segment."""
    segment = partition.log.segments[0]
    source = random.Random(3)
    positions = [source.randrange(max(segment.size - message_size, 1)) for _ in range(count)]
    descriptor = os.open(log_path(partition.log.directory, segment.base_offset), os.O_RDONLY)
    try:
        buffer = memoryview(bytearray(message_size))
        begin = time.perf_counter()
        for position in positions:
            os.preadv(descriptor, (buffer,), position)
        return count / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def index_lookups(partition: Partition, offsets: list[int]) -> float:
    """Lookups a second in the indexes of sealed segments."""
    sealed = [segment for segment in partition.log.segments if segment.state is SegmentState.SEALED]
    inside = [offset % sealed[-1].end_offset for offset in offsets]
    pairs = [(_segment_of(sealed, offset).index, offset) for offset in inside]
    begin = time.perf_counter()
    for index, offset in pairs:
        index.at_offset(offset)
    return len(pairs) / (time.perf_counter() - begin)


def _segment_of(segments: list[Segment], offset: int) -> Segment:
    return next(segment for segment in segments if offset < segment.end_offset)


async def _measure(bench: Bench, cache: IndexCache) -> tuple[list[float], list[float], list[float]]:
    """Bare reads, random reads and lookups a second, a figure per round."""
    scale = bench.scale
    bare, reads, lookups = [], [], []
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            settings = LogSettings(segment_size=min(scale.sealed_segment_size, 64 * MIB), index_cache=cache)
            partition = engine.create(settings)
            size = min(_FEW_BATCH_SIZE + 8 * MIB, 3 * settings.segment_size)
            await fill(partition, wire_batches(Shape.SAME, scale.message_count), size)
            end, source = partition.log.next_offset, random.Random(5)
            await engine_random_reads(partition, list(range(0, end, scale.message_count)))
            for _ in range(scale.rounds):
                offsets = [source.randrange(end) for _ in range(scale.lookup_count)]
                bare.append(bare_random_reads(partition, len(offsets), 1_048))
                reads.append(await engine_random_reads(partition, offsets))
                lookups.append(index_lookups(partition, offsets))
    return bare, reads, lookups


async def _measure_many(bench: Bench) -> tuple[list[float], list[float]]:
    """Bare and engine reads per second over more batches than a partition remembers as verified, in one segment."""
    scale = bench.scale
    bare, reads = [], []
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            partition = engine.create(LogSettings(segment_size=2 * _MANY_BATCH_SIZE))
            size = min(_MANY_BATCH_SIZE, 8 * scale.read_size)
            await fill(partition, wire_batches(Shape.SAME, scale.message_count), size)
            source = random.Random(5)
            for _ in range(scale.rounds):
                count = max(scale.lookup_count // 10, 1)
                bare.append(bare_random_reads(partition, count, 1_048))
                reads.append(
                    await engine_random_reads(
                        partition, [source.randrange(partition.log.next_offset) for _ in range(count)]
                    )
                )
    return bare, reads


def run(bench: Bench) -> Iterator[Row]:
    for cache in IndexCache:
        bare, reads, lookups = bench.run(_measure(bench, cache))
        yield Row(
            measure=f"random single read, few batches, index cache {cache.value}",
            unit="reads/s",
            engine=reads,
            bare=bare,
            bare_name="preadv of 1,048 B",
            target=Target(Bound.AT_LEAST, CLAIMED_RANDOM_READ, Weight.CLAIM),
        )
        yield Row(
            measure=f"offset lookup, sealed segments, index cache {cache.value}",
            unit="lookups/s",
            engine=lookups,
            target=Target(Bound.AT_LEAST, CLAIMED_LOOKUP, Weight.CLAIM),
        )
    bare, reads = bench.run(_measure_many(bench))
    yield Row(
        measure="random single read, many batches",
        unit="reads/s",
        engine=reads,
        bare=bare,
        bare_name="preadv of 1,048 B",
        target=Target(Bound.AT_LEAST, CLAIMED_RANDOM_READ, Weight.CLAIM),
        note="most reads hash a whole batch",
    )
