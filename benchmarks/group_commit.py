"""Appends at ``synced``: 16 appenders that share syncs, compared with one sync per append.

"Without group commit" is the same engine with a lock per partition around ``append``. No append is written during the
sync of another one, so each needs its own sync.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.appending import allocate_like_the_engine
from benchmarks.engine import SYNCED, new_engine
from benchmarks.harness import MIB, Bench, Bound, Row, Target, Weight
from benchmarks.samples import Shape, wire_batches
from courser.broker.partition.partition import Partition
from courser.records.batch import Batch, parse_batch
from courser.storage.settings import LogSettings

APPENDER_COUNT = 16


@dataclass(frozen=True, slots=True)
class Acks:
    """The result of concurrent appenders."""

    count: int
    seconds: float
    sync_count: int
    cpu_seconds: float
    """Of this process, with its threads."""

    @property
    def speed(self) -> float:
        return self.count / self.seconds


async def engine_acks(
    path: Path,
    seconds: float,
    *,
    partition_count: int,
    appenders_each: int,
    shares_syncs: bool,
) -> Acks:
    """Append single messages to every partition. Each appender waits for its acknowledgement before the next one.

    ``shares_syncs``: whether one sync may serve several appenders of a partition.
    """
    (wire,) = wire_batches(Shape.SAME, 1, 1)
    async with new_engine(path) as engine:
        settings = LogSettings(durability=SYNCED)
        partitions = [engine.create(settings, number) for number in range(partition_count)]
        for partition in partitions:
            await partition.append(parse_batch(wire))
        before = sum(partition.commits.sync_count for partition in partitions)
        begin, begin_of_cpu = time.perf_counter(), time.process_time()
        work = []
        for partition in partitions:
            lock = None if shares_syncs else asyncio.Lock()
            work += [_appender(partition, parse_batch(wire), begin + seconds, lock) for _ in range(appenders_each)]
        counts = await asyncio.gather(*work)
        spent, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_of_cpu
        sync_count = sum(partition.commits.sync_count for partition in partitions) - before
        return Acks(sum(counts), spent, sync_count, cpu_seconds)


async def _appender(partition: Partition, batch: Batch, stop: float, lock: asyncio.Lock | None) -> int:
    count = 0
    while not count or time.perf_counter() < stop:
        async with lock or nullcontext():
            await partition.append(batch)
        count += 1
    return count


def bare_acks(path: Path, seconds: float, *, file_count: int) -> Acks:
    """A thread per file, each in a loop of ``pwrite`` and ``fdatasync``."""
    (wire,) = wire_batches(Shape.SAME, 1, 1)
    counts = [0] * file_count
    descriptors = []
    for number in range(file_count):
        descriptor = os.open(path / f"{number}.log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        allocate_like_the_engine(descriptor, 4 * MIB)
        os.fsync(descriptor)
        descriptors.append(descriptor)
    begin, begin_of_cpu = time.perf_counter(), time.process_time()

    def work(number: int) -> None:
        while not counts[number] or time.perf_counter() < begin + seconds:
            os.pwrite(descriptors[number], wire, counts[number] * len(wire))
            os.fdatasync(descriptors[number])
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(file_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_of_cpu
    for descriptor in descriptors:
        os.close(descriptor)
    return Acks(sum(counts), spent, sum(counts), cpu_seconds)


def _ways(bench: Bench) -> dict[str, Callable[[Path], Acks]]:
    """The variants to compare, which are run alternately."""
    seconds, many = bench.scale.sync_seconds, APPENDER_COUNT

    def engine(partition_count: int, appenders_each: int, *, shares_syncs: bool) -> Callable[[Path], Acks]:
        return lambda path: bench.run(
            engine_acks(
                path,
                seconds,
                partition_count=partition_count,
                appenders_each=appenders_each,
                shares_syncs=shares_syncs,
            )
        )

    return {
        "bare, one file": lambda path: bare_acks(path, seconds, file_count=1),
        "one partition, no group commit": engine(1, many, shares_syncs=False),
        "one partition": engine(1, many, shares_syncs=True),
        "16 partitions": engine(many, 1, shares_syncs=True),
        "bare, 16 files": lambda path: bare_acks(path, seconds, file_count=many),
        "crowd, no group commit": engine(many, 4, shares_syncs=False),
        "crowd": engine(many, 4, shares_syncs=True),
    }


def run(bench: Bench) -> Iterator[Row]:
    ways = _ways(bench)
    found: dict[str, list[Acks]] = {name: [] for name in ways}
    for _ in range(bench.scale.rounds * bench.scale.sync_round_factor):
        for name, way in ways.items():
            with bench.fresh_directory() as path:
                found[name].append(way(path))

    def row(measure: str, name: str, other: str, target: Target | None = None) -> Row:
        syncs = median(acks.count / max(acks.sync_count, 1) for acks in found[name])
        cpu_time, other_time = (
            median(acks.cpu_seconds / acks.count * 1e6 for acks in found[one]) for one in (name, other)
        )
        return Row(
            measure=measure,
            unit="acks/s",
            engine=[acks.speed for acks in found[name]],
            bare=[acks.speed for acks in found[other]],
            bare_name=other,
            target=target,
            note=f"{syncs:.1f} acks per sync; CPU {cpu_time:.0f} and {other_time:.0f} us per ack",
        )

    must, aim = Target(Bound.RATIO_AT_LEAST, 8), Target(Bound.RATIO_AT_LEAST, 4, Weight.AIM)
    alone = "one partition, no group commit"
    yield row("16 appenders, one partition, no group commit", alone, "bare, one file")
    yield row("16 appenders, one partition", "one partition", alone, must)
    yield row("16 appenders, one each on 16 partitions", "16 partitions", alone, aim)
    yield row("16 appenders, one each on 16 partitions", "16 partitions", "bare, 16 files")
    yield row("64 appenders, four each on 16 partitions", "crowd", "crowd, no group commit")
