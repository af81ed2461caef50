"""The catalog: changes compared with bare synced appends, starts with few and many topics, memory per topic.

Starts include only the metadata: loading the snapshot and replaying the journal, without the directories.
"""

import gc
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Bench, Row
from courser.catalog import changes as c
from courser.catalog.opening import open_catalog
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogStore
from courser.catalog.transitions import apply
from courser.model.topic_options import TopicOptions
from courser.storage.local_files import LocalFileSystem
from courser.storage.recovery_cases import StopKind
from courser.storage.watched_clock import SystemClock

_TIME = 1_700_000_000_000_000
_PARTITION_COUNT = 3
_TOPICS_PER_STREAM = 1_000


def _uuid(number: int) -> bytes:
    return number.to_bytes(16, "little")


def _opened(path: Path) -> CatalogStore:
    store = CatalogStore.read(LocalFileSystem(), path, clock=SystemClock(), stop=StopKind.CLEAN)
    store.settle()
    return store


def _commands_per_second(path: Path, count: int) -> float:
    store = _opened(path)
    begin = time.perf_counter()
    for number in range(count):
        store.submit(c.StreamCreation(f"stream {number}", _uuid(number)))
    spent = time.perf_counter() - begin
    store.close()
    return count / spent


def _bare_per_second(path: Path, count: int) -> float:
    """The same number of bytes per entry, appended and synced."""
    entry = bytes(300)
    descriptor = os.open(path / "bare", os.O_RDWR | os.O_CREAT, 0o600)
    begin = time.perf_counter()
    for number in range(count):
        os.pwrite(descriptor, entry, number * len(entry))
        os.fdatasync(descriptor)
    spent = time.perf_counter() - begin
    os.close(descriptor)
    return count / spent


def _topics_per_second(path: Path, count: int) -> float:
    """Whole creations: journal, directories, descriptors and partitions, all synced."""
    opened = open_catalog(LocalFileSystem(), path, clock=SystemClock(), stop=StopKind.CLEAN)
    opened.store.submit(stream := c.StreamCreation("stream", _uuid(0)))
    opened.directories.carry_out(opened.store.state, stream)
    begin = time.perf_counter()
    for number in range(count):
        command = c.TopicCreation(0, f"topic {number}", _uuid(number), _PARTITION_COUNT, TopicOptions())
        opened.store.submit(command)
        opened.directories.carry_out(opened.store.state, command)
    spent = time.perf_counter() - begin
    opened.store.close()
    return count / spent


def state_of(topic_count: int, partition_count: int = _PARTITION_COUNT) -> CatalogState:
    """A catalog of so many topics, a thousand to a stream."""
    state = CatalogState()
    for number in range(topic_count):
        stream_id, place = divmod(number, _TOPICS_PER_STREAM)
        if not place:
            apply(state, c.StreamCreation(f"stream {stream_id}", _uuid(stream_id)), number, _TIME)
        topic = c.TopicCreation(stream_id, f"topic {number}", _uuid(number), partition_count, TopicOptions())
        apply(state, topic, number, _TIME)
    return state


def _start_milliseconds(path: Path, topic_count: int, rounds: int) -> list[float]:
    store = _opened(path)
    store.submit(c.StreamCreation("last", _uuid(2**64)))
    store.state = state_of(topic_count)
    store.take_snapshot()
    store.close()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        store = _opened(path)
        found.append((time.perf_counter() - begin) * 1e3)
        store.close()
    return found


def _size_of(topic_count: int, partition_count: int) -> float:
    """Bytes that a catalog takes in memory."""
    gc.collect()
    tracemalloc.start()
    state = state_of(topic_count, partition_count)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert state.streams
    return size


def run(bench: Bench) -> Iterator[Row]:
    scale = bench.scale
    count = max(scale.single_count // 20, 10)
    engine, bare, whole = [], [], []
    for _ in range(scale.rounds):
        with bench.fresh_directory() as path:
            bare.append(_bare_per_second(path, count))
            engine.append(_commands_per_second(path, count))
        with bench.fresh_directory() as path:
            whole.append(_topics_per_second(path, max(count // 20, 2)))
    yield Row(measure="commands, journaled and synced", unit="/s", engine=engine, bare=bare, bare_name="write + sync")
    yield Row(measure=f"topics of {_PARTITION_COUNT} partitions, made and synced", unit="/s", engine=whole)
    for topic_count in (1_000, 10_000, 100_000):
        topics = min(topic_count, scale.lookup_count * 10)
        with bench.fresh_directory() as path:
            yield Row(
                measure=f"start with {topic_count:,} topics of {_PARTITION_COUNT} partitions",
                unit="ms",
                engine=_start_milliseconds(path, topics, scale.rounds),
                note="snapshot loaded, hash compared, names indexed",
            )
    topics = min(10_000, scale.lookup_count)
    without, with_one = _size_of(topics, 0), _size_of(topics, 1)
    yield Row(measure="memory per topic without partitions", unit="B", engine=[without / topics])
    yield Row(measure="memory per partition", unit="B", engine=[(with_one - without) / topics])
