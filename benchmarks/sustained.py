"""Many gigabytes in one run: do sends stay fast while the kernel writes back dirty pages?

Three variants: the default, which starts write-back every few MiB; the same without that; and bare positional writes,
which also leave write-back to the kernel. *Full speed* is more than most disks sustain, so the kernel must throttle the
writer at some point. *Paced* is half of what the disk sustains, where a stall would be a fault.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from benchmarks.appending import Timing, allocate_like_the_engine
from benchmarks.engine import new_engine
from benchmarks.harness import MIB, Bench, Row
from benchmarks.pacing import Pace, disk_speed
from benchmarks.samples import Shape, wire_batches
from courser.records.batch import parse_batch
from courser.storage.settings import LogSettings

_Run = tuple[Timing, list[float]]
"""The sends, and when each was complete, in seconds from the start."""
_NEVER = 2**62
_ROOM = 1.5
"""Free disk space that a run needs, as a multiple of what it writes."""
_PACED_SHARE = 4
"""A paced run writes this fraction (1/n) of what a run at full speed writes."""


async def engine_run(path: Path, wires: Sequence[bytes], size: int, settings: LogSettings, rate: float = 0) -> _Run:
    """``Partition.append`` of so many bytes."""
    async with new_engine(path) as engine:
        partition = engine.create(settings)
        latencies, ends = [], []
        pace = Pace(rate)
        begin = time.perf_counter_ns()
        for wire in islice(cycle(wires), max(size // len(wires[0]), 8)):
            start = time.perf_counter_ns()
            await partition.append(parse_batch(wire))
            end = time.perf_counter_ns()
            latencies.append(end - start)
            ends.append((end - begin) / 1e9)
            await asyncio.sleep(pace.delay(len(wire)))
        return Timing(ends[-1], latencies, partition.log.size), ends


def bare_run(path: Path, wires: Sequence[bytes], size: int, rate: float = 0) -> _Run:
    """The same with ``os.pwrite`` into one allocated file."""
    descriptor = os.open(path / "bare.log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        allocate_like_the_engine(descriptor, size)
        latencies, ends = [], []
        position = 0
        pace = Pace(rate)
        begin = time.perf_counter_ns()
        for wire in islice(cycle(wires), max(size // len(wires[0]), 8)):
            start = time.perf_counter_ns()
            position += os.pwrite(descriptor, wire, position)
            end = time.perf_counter_ns()
            latencies.append(end - start)
            ends.append((end - begin) / 1e9)
            time.sleep(pace.delay(len(wire)))
        return Timing(ends[-1], latencies, position), ends
    finally:
        os.close(descriptor)


def run(bench: Bench) -> Iterator[Row]:
    size = bench.scale.sustained_size
    if bench.free_size < _ROOM * size:
        yield Row(
            measure="sustained appends",
            unit="MB/s",
            engine=(0.0,),
            note=f"left out: {size // MIB} MiB need half as much again of free disk space",
        )
        return
    wires = wire_batches(Shape.SAME, bench.scale.message_count)
    with bench.fresh_directory() as path:
        speed = disk_speed(path, max(size // 12, MIB))
    yield Row(measure="what the disk takes, write and sync", unit="MB/s", engine=[speed / 1e6])
    yield from _rows(_compare(bench, wires, size, 0), "full speed")
    yield from _rows(_compare(bench, wires, size // _PACED_SHARE, speed / 2), f"paced at {speed / 2e6:,.0f} MB/s")


def _compare(bench: Bench, wires: Sequence[bytes], size: int, rate: float) -> dict[str, list[_Run]]:
    settings = LogSettings()
    off = replace(settings, writeback_size=_NEVER)
    ways: dict[str, Callable[[Path], _Run]] = {
        "bare": lambda path: bare_run(path, wires, size, rate),
        "write-back early": lambda path: bench.run(engine_run(path, wires, size, settings, rate)),
        "write-back off": lambda path: bench.run(engine_run(path, wires, size, off, rate)),
    }
    found: dict[str, list[_Run]] = {name: [] for name in ways}
    for _ in range(bench.scale.sustained_rounds):
        for name, way in ways.items():
            with bench.fresh_directory(size) as path:
                found[name].append(way(path))
    return found


def _rows(found: dict[str, list[_Run]], pace: str) -> Iterator[Row]:
    bare = found.pop("bare")
    for name, runs in found.items():
        label = f"{runs[0][0].size / 1e9:.1f} GB, {pace}, {name}"
        yield Row(
            measure=f"sustained, {label}",
            unit="MB/s",
            engine=[timing.speed for timing, _ in runs],
            bare=[timing.speed for timing, _ in bare],
            bare_name="pwrite",
            note=f"first and last quarter {_quarters(runs)}; bare {_quarters(bare)}",
        )
        for text, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)):
            yield Row(
                measure=f"send {text}, {label}",
                unit="ms",
                engine=[timing.latency(share) for timing, _ in runs],
                bare=[timing.latency(share) for timing, _ in bare],
                bare_name="pwrite",
            )


def _quarters(runs: list[_Run]) -> str:
    """MB/s of the first and of the last quarter of the sends, each the median of the rounds."""
    first, last = [], []
    for timing, ends in runs:
        quarter = max(len(ends) // 4, 1)
        size = timing.size * quarter / len(ends) / 1e6
        first.append(size / ends[quarter - 1])
        last.append(size / (ends[-1] - ends[-quarter - 1]))
    return f"{median(first):,.0f} and {median(last):,.0f} MB/s"
