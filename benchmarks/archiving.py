"""The archive beside bare copies with the same library: archiving, restoring, and sequential reads.

Bare copies hash and verify nothing, and one that restores trusts what it gets. What is archived was just written, so it
is read from the page cache by both sides. The S3 server runs on the same cores.
"""

import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.archive_stores import BareStore, MeasuredStore, measured_stores
from benchmarks.engine import fill
from benchmarks.harness import MIB, Bench, Bound, Row, Target, touch_memory
from benchmarks.reading import engine_pass
from benchmarks.samples import Shape, wire_batches
from courser.archive.reader import ArchiveReader, find_clusters, open_store
from courser.archive.restore_plan import RestoreSelection, plan_restore
from courser.archive.restoring import Restorer
from courser.archive.settings import ArchiveSettings, StoreSettings
from courser.broker.archive.archiving import Archiver
from courser.broker.partition.partition import Partition
from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import ARCHIVE_STATE, INDEX_SUFFIX, LOG_SUFFIX
from courser.testing.broker import TestBroker

SEGMENT_COUNT = 4
CACHE_SIZE = 64 * MIB
"""Less than what is read, so that every byte comes from the store."""
GOAL = Target(Bound.RATIO_AT_LEAST, 0.7)
WAYS = ("archive", "restore", "sequential reads from the archive")


@dataclass(slots=True)
class Speeds:
    """MB/s of one measurement, round by round."""

    engine: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)


def broker_settings(segment_size: int, store: StoreSettings | None = None) -> BrokerSettings:
    """Settings of a broker, with an archive or without."""
    return BrokerSettings(
        topic_defaults=replace(USUAL_TOPIC_OPTIONS, segment_size=segment_size),
        archive=ArchiveSettings(store=store, cache_size=CACHE_SIZE) if store is not None else None,
    )


@asynccontextmanager
async def running(path: Path, settings: BrokerSettings) -> AsyncIterator[TestBroker]:
    """A broker whose only topic has one partition."""
    async with TestBroker(path, settings=settings) as broker:
        client = await broker.connect()
        await client.create_stream("bench", if_not_exists=True)
        await client.create_topic("bench", "bench", if_not_exists=True)
        yield broker


def partition_of(broker: TestBroker) -> Partition:
    return next(iter(broker.broker.partitions)).partitions[0]


def archiver_of(broker: TestBroker) -> Archiver:
    assert broker.broker.archiver is not None
    return broker.broker.archiver


def run(bench: Bench) -> Iterator[Row]:
    with bench.fresh_directory() as path, measured_stores(path) as stores:
        data = _Data(bench, path / "data")
        bench.run(data.make())
        for store in stores:
            yield from _compare(bench, data, store)


class _Data:
    """A filled data directory."""

    def __init__(self, bench: Bench, path: Path) -> None:
        self.path = path
        self._bench = bench
        self.segment_size = max(bench.scale.append_size // SEGMENT_COUNT, MIB)

    async def make(self) -> None:
        wires = wire_batches(Shape.SAME, self._bench.scale.message_count)
        async with running(self.path, broker_settings(self.segment_size)) as broker:
            await fill(partition_of(broker), wires, self._bench.scale.append_size)
            await partition_of(broker).roll()

    @property
    def files(self) -> list[Path]:
        """What a bare copy copies: logs and indexes."""
        return sorted(found for found in self.path.rglob("*") if found.name.endswith((LOG_SUFFIX, INDEX_SUFFIX)))

    def touch_memory(self) -> None:
        """Before each copy: the page cache needs memory for all of it."""
        touch_memory(self.path.parent / "touched", self.size)

    @property
    def size(self) -> int:
        return sum(found.stat().st_size for found in self.files)


def _compare(bench: Bench, data: _Data, store: MeasuredStore) -> Iterator[Row]:
    speeds = {way: Speeds() for way in WAYS}
    local: list[float] = []
    for number in range(bench.scale.rounds):
        place, bare_place = store.place(f"archive-{number}"), store.place(f"bare-{number}")
        bare = store.bare(bare_place)
        bench.run(_archive(data, place, bare, speeds[WAYS[0]]))
        _restore(data, place, bare, speeds[WAYS[1]])
        local += bench.run(_read(bench, data, place, bare, speeds[WAYS[2]]))
        for used in (place.path, bare_place.path):
            shutil.rmtree(used, ignore_errors=True)
    for way, found in speeds.items():
        yield Row(
            measure=f"{way}, {store.name}",
            unit="MB/s",
            engine=found.engine,
            bare=found.bare,
            bare_name="range reads of 8 MiB" if way == WAYS[2] else "bare copy",
            target=GOAL,
        )
    reads = speeds[WAYS[2]].engine
    yield Row(measure=f"{WAYS[2]}, {store.name}", unit="MB/s", engine=reads, bare=local, bare_name="local reads")


def _each(work: Callable[[str, Any], None], arguments: Iterable[tuple[str, object]]) -> None:
    for pair in arguments:
        work(*pair)


def _speed(work: Callable[[], object], size: int) -> float:
    begin = time.perf_counter()
    work()
    return size / 1e6 / (time.perf_counter() - begin)


def _names(files: Sequence[Path]) -> dict[str, Path]:
    """The keys of a bare copy."""
    return {found.name: found for found in files}


async def _archive(data: _Data, place: StoreSettings, bare: BareStore, speeds: Speeds) -> None:
    data.touch_memory()
    speeds.bare.append(_speed(lambda: _each(bare.put, _names(data.files).items()), data.size))
    # The last round used another archive.
    (data.path / "data" / ARCHIVE_STATE).unlink(missing_ok=True)
    async with running(data.path, broker_settings(data.segment_size, place)) as broker:
        data.touch_memory()
        begin = time.perf_counter()
        assert await archiver_of(broker).run_once()
        speeds.engine.append(data.size / 1e6 / (time.perf_counter() - begin))


def _restore(data: _Data, place: StoreSettings, bare: BareStore, speeds: Speeds) -> None:
    target = data.path.parent / "restored"
    target.mkdir()
    data.touch_memory()
    speeds.bare.append(_speed(lambda: _each(bare.get, [(key, target / key) for key in _names(data.files)]), data.size))
    shutil.rmtree(target)
    target.mkdir()
    file_system = LocalFileSystem()
    store = open_store(place, file_system, bytes(16))
    data.touch_memory()
    begin = time.perf_counter()
    plan = plan_restore(ArchiveReader(store, find_clusters(store)[0]), RestoreSelection())
    Restorer(store, file_system, target).restore(plan)
    speeds.engine.append(data.size / 1e6 / (time.perf_counter() - begin))
    shutil.rmtree(target)


async def _read(bench: Bench, data: _Data, place: StoreSettings, bare: BareStore, speeds: Speeds) -> list[float]:
    """Read all that is archived, several times. Returns MB/s of local reads of the same messages."""
    count, passes = bench.scale.message_count, range(bench.scale.read_pass_count)
    logs = {key: file.stat().st_size for key, file in _names(data.files).items() if key.endswith(LOG_SUFFIX)}
    size = sum(logs.values())
    copy = data.path.parent / "trimmed"
    shutil.copytree(data.path, copy)
    async with running(copy, broker_settings(data.segment_size, place)) as broker:
        partition = partition_of(broker)
        assert await archiver_of(broker).run_once()
        # Numbering goes on later in a copy: a power cut might have been the reason for it.
        end = partition.log.segments[-1].end_offset
        local = [size / 1e6 / (await engine_pass(partition, count, end)).seconds for _ in passes]
        await partition.trim(end)
        assert partition.log.start_offset >= end
        for _ in passes:
            speeds.bare.append(_speed(lambda: _each(bare.read_ranges, logs.items()), size))
            speeds.engine.append(size / 1e6 / (await engine_pass(partition, count, end)).seconds)
    shutil.rmtree(copy)
    return local
