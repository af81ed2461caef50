"""Read a whole log: rebuild its index, scan it, and ``verify`` it, compared with bare sequential reads.

The cache is warm, so the processor is the limit. A cold disk may be slower.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.engine import fill, new_engine
from benchmarks.harness import MIB, Bench, Row
from benchmarks.samples import Shape, wire_batches
from courser.broker.partition.partition import Partition
from courser.inspect.verify import Verification
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import log_path
from courser.storage.scan import scan
from courser.storage.segment import Segment, SegmentState
from courser.storage.settings import LogSettings

_WINDOW_SIZE = 4 * MIB


def bare_scan(file_path: Path) -> None:
    """Read the file sequentially."""
    descriptor = os.open(file_path, os.O_RDONLY)
    try:
        buffer = bytearray(_WINDOW_SIZE)
        position = 0
        while (size := os.preadv(descriptor, (buffer,), position)) > 0:
            position += size
    finally:
        os.close(descriptor)


def _rate(size: int, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return size / (time.perf_counter() - begin) / 1e6


def _scan(partition: Partition, segment: Segment) -> None:
    log = partition.log
    with log.files.reading(segment) as file:
        deque(scan(file, log.identity, start=0, end=segment.size, offset=segment.base_offset), maxlen=0)


def _verify(path: Path) -> None:
    findings = list(Verification(LocalFileSystem(), path).findings())
    assert not any(finding.severity.value == "damage" for finding in findings), findings


async def _measure(bench: Bench, shape: Shape, message_count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"bare": [], "index rebuild": [], "scan": [], "verify": []}
    scale = bench.scale
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            partition = engine.create(LogSettings(segment_size=scale.sealed_segment_size))
            await fill(partition, wire_batches(shape, message_count), scale.sealed_segment_size + MIB)
            log = partition.log
            segment = next(segment for segment in log.segments if segment.state is SegmentState.SEALED)
            path_of_log = log_path(log.directory, segment.base_offset)
            for _ in range(scale.rounds):
                found["bare"].append(_rate(segment.size, lambda: bare_scan(path_of_log)))
                found["index rebuild"].append(_rate(segment.size, lambda: log.files.rebuild_index(segment)))
                found["scan"].append(_rate(segment.size, lambda: _scan(partition, segment)))
                found["verify"].append(_rate(log.size, lambda: _verify(path)))
    return found


def run(bench: Bench) -> Iterator[Row]:
    count = bench.scale.message_count
    for shape, message_count in ((Shape.SAME, count), (Shape.MIXED, count), (Shape.SAME, 1)):
        found = bench.run(_measure(bench, shape, message_count))
        bare = found.pop("bare")
        for name, rates in found.items():
            yield Row(
                measure=f"{name}, {message_count:,} x {shape.value}",
                unit="MB/s",
                engine=rates,
                bare=bare,
                bare_name="preadv, 4 MiB each",
                note="warm cache; every message hashed" if name == "verify" else "warm cache",
            )
