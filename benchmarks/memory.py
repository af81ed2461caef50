"""What the engine uses: index bytes, memory and descriptors of many open partitions, log bytes of small batches.

The partitions are opened in a separate process, so that only their memory counts.
"""

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks.engine import Engine, fill, new_engine
from benchmarks.harness import GIB, MIB, Bench, Row
from benchmarks.samples import SAME_SIZE, SMALL_SIZE, Shape, wire_batches
from courser.records.batch import parse_batch
from courser.storage.paths import INDEX_SUFFIX
from courser.storage.segment_index import IndexCache
from courser.storage.settings import LogSettings

_MESSAGES_EACH = 3


# --- indexes, and small batches ---


async def _index_sizes(bench: Bench, shape: Shape, message_count: int) -> tuple[float, float]:
    """MiB of index per GiB of log, in memory and on disk."""
    segment_size = bench.scale.sealed_segment_size
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            log = engine.create(LogSettings(segment_size=segment_size, index_cache=IndexCache.ALL)).log
            await fill(engine.partitions[0], wire_batches(shape, message_count), segment_size)
            in_memory, size = sum(segment.index.size_in_memory for segment in log.segments), log.size
        on_disk = sum(file.stat().st_size for file in log.directory.glob(f"*{INDEX_SUFFIX}"))
    return in_memory / size * GIB / MIB, on_disk / size * GIB / MIB


async def _stored_size(bench: Bench, shape: Shape, message_count: int) -> float:
    """Bytes of log per message."""
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            log = engine.create(LogSettings()).log
            await fill(engine.partitions[0], wire_batches(shape, message_count), 64 * 1024)
            return log.size / log.message_count


# --- many partitions, in a process of its own ---


async def _make_partitions(path: Path, count: int) -> None:
    (wire,) = wire_batches(Shape.SAME, _MESSAGES_EACH, 1)
    async with new_engine(path) as engine:
        for number in range(count):
            await engine.create(LogSettings(), number).append(parse_batch(wire))


def _usage() -> dict[str, int]:
    gc.collect()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": resident_pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


async def _open_partitions(path: Path, count: int) -> list[dict[str, int]]:
    """Memory and descriptors: before, with all partitions open, and after one append to each."""
    (wire,) = wire_batches(Shape.SAME, 1, 1)
    engine = Engine(path)
    stages = [_usage()]
    for number in range(count):
        engine.open(LogSettings(), number)
    engine.data.begin()
    stages.append(_usage())
    for partition in engine.partitions:
        await partition.append(parse_batch(wire))
    # One more round of upkeep, so that preallocation is complete and counted.
    await asyncio.gather(*(partition.sync() for partition in engine.partitions))
    stages.append(_usage())
    await engine.close()
    return stages


def measure_partitions(path: Path, count: int) -> list[dict[str, int]]:
    """Create the partitions in one process, and open them in another. Returns the stages of the second."""
    root = Path(__file__).resolve().parent.parent
    output = ""
    for step in ("make", "open"):
        command = [sys.executable, "-m", "benchmarks.memory", step, str(path), str(count)]
        output = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    stages: list[dict[str, int]] = json.loads(output)
    return stages


def main(step: str, path: Path, count: int) -> None:
    """One step of ``measure_partitions``, in a fresh process."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if step == "make":
            runner.run(_make_partitions(path, count))
        else:
            print(json.dumps(runner.run(_open_partitions(path, count))))


def run(bench: Bench) -> Iterator[Row]:
    count = bench.scale.message_count
    for shape, message_count in ((Shape.SAME, count), (Shape.MIXED, count), (Shape.SMALL, 1)):
        in_memory, on_disk = bench.run(_index_sizes(bench, shape, message_count))
        label = f"{message_count:,} x {shape.value}"
        yield Row(measure=f"index in memory per GiB, {label}", unit="MiB", engine=[in_memory])
        yield Row(measure=f"index on disk per GiB, {label}", unit="MiB", engine=[on_disk])
    for shape, payload in ((Shape.SMALL, SMALL_SIZE), (Shape.SAME, SAME_SIZE)):
        for message_count in (1, count):
            stored = bench.run(_stored_size(bench, shape, message_count))
            yield Row(
                measure=f"stored per message, {message_count:,} x {shape.value}",
                unit="B",
                engine=[stored],
                bare=[payload],
                bare_name="payload",
                note="batch header of 256 B, frame header of 48 B",
            )
    yield from _partition_rows(bench)


def _partition_rows(bench: Bench) -> Iterator[Row]:
    count = bench.scale.partition_count
    with bench.fresh_directory() as path:
        before, idle, used = measure_partitions(path / "data", count)
        allocated = sum(file.stat().st_blocks * 512 for file in path.rglob("*.log"))
    for name, stage in (("idle", idle), ("after one append each", used)):
        yield Row(
            measure=f"memory per partition, {count:,} open, {name}",
            unit="KiB",
            engine=[(stage["memory"] - before["memory"]) / count / 1024],
            note=f"{stage['memory'] / MIB:.0f} MiB in all, {before['memory'] / MIB:.0f} MiB before",
        )
        yield Row(
            measure=f"descriptors, {count:,} partitions open, {name}",
            unit="files",
            engine=[stage["descriptors"] - before["descriptors"]],
        )
    yield Row(measure="disk per partition after a clean stop", unit="KiB", engine=[allocated / count / 1024])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
