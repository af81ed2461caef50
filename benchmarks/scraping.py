"""Metrics: a scrape with many partitions, how long it delays other work, and what counting costs a send.

The scrapes run in this process. Their partitions are in memory, because creating them is not what is measured.
"""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Bench, Bound, Row, Target
from benchmarks.samples import Shape, sample
from benchmarks.serving import CONNECTION_COUNT, courser_singles
from courser.api import commands as c
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker, RootUser
from courser.broker.partition.partition_metrics import PartitionMetrics
from courser.broker.settings import BrokerSettings
from courser.handlers.dispatcher import Dispatcher
from courser.handlers.searches import Searches
from courser.model.messaging import ToPartition, Transport
from courser.model.metrics import MICROSECOND, REQUEST_POWERS, PowerHistogram, Registry
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.records.layout import BATCH_HEADER_SIZE
from courser.storage.data_directory import DataDirectory
from courser.storage.watched_clock import SystemClock

_TOPIC_COUNT = 10
_FACTOR = 10
"""Partitions of a scrape, for each partition that other cases open."""
_ROUND_FACTOR = 3
_SINGLE_FACTOR = 3
"""Factor for the number of single messages: in a short run, the CPU time of the start would dominate."""
_PAYLOAD = bytes(100)
_NO_PASSWORD_HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$Jlt7EvnWHx4ygcKFdbkqpQ"


class BrokerClient:
    """Sends commands to a broker, as root."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._dispatcher = Dispatcher(broker)
        self.searches = Searches(self._dispatcher)
        self.session = Session(1, Transport.TCP, "127.0.0.1:1", now=broker.clock.monotonic())
        self.session.user_id = 0

    async def ask(self, command: c.Command) -> None:
        """Carry out a command."""
        await self._dispatcher.dispatch(self.session, command)


@asynccontextmanager
async def opened_broker(directory: Path) -> AsyncIterator[BrokerClient]:
    """A broker in this process, with its files below this directory."""
    path = Path(tempfile.mkdtemp(prefix="courser-bench-", dir=directory))
    try:
        root = RootUser("iggy", _NO_PASSWORD_HASH)
        broker = await Broker.open(DataDirectory.open(path), BrokerSettings(), make_root=lambda: root)
        try:
            yield BrokerClient(broker)
        finally:
            await broker.close()
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _Turns:
    """The longest turn of the event loop, while it runs as a task. In CPU time: other programs do not count."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest, last = max(self.longest, now - last), now

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@dataclass(frozen=True, slots=True)
class _Scrapes:
    """Milliseconds, one figure for each scrape; and the size of one in bytes."""

    times: list[float]
    cpu_times: list[float]
    longest_turns: list[float]
    size: int


async def _scrapes(bench: Bench) -> _Scrapes:
    count = max(bench.scale.partition_count * _FACTOR // _TOPIC_COUNT, 1)
    times, cpu_times, longest_turns = [], [], []
    async with opened_broker(bench.memory_directory) as client:
        await client.ask(c.CreateStream("s"))
        for number in range(_TOPIC_COUNT):
            await client.ask(c.CreateTopic("s", f"t{number}", count, TopicOptions()))
            await client.ask(c.CreateConsumerGroup("s", f"t{number}", "g"))
            for partition_id in range(count):
                await client.ask(_send(f"t{number}", partition_id))
        text = await client.broker.operating.scrapes.text()
        for _ in range(bench.scale.rounds * _ROUND_FACTOR):
            begin, begin_of_cpu = time.perf_counter(), time.thread_time()
            await client.broker.operating.scrapes.text()
            cpu_times.append((time.thread_time() - begin_of_cpu) * 1000)
            times.append((time.perf_counter() - begin) * 1000)
            turns = _Turns()
            await client.broker.operating.scrapes.text()
            await turns.stop()
            longest_turns.append(turns.longest * 1000)
    return _Scrapes(times, cpu_times, longest_turns, len(text))


def _send(topic: str, partition_id: int) -> c.SendMessages:
    return c.SendMessages("s", topic, ToPartition(partition_id), [build_batch([NewMessage(_PAYLOAD)])])


def _counting(count: int) -> float:
    """Microseconds that counting takes for each of ``count`` sends."""
    return max(_timed(lambda: _count(count)) - _timed(lambda: _count_nothing(count)), 0.0) / count


def _timed(work: Callable[[], None]) -> float:
    """Microseconds of CPU time."""
    begin = time.thread_time()
    work()
    return (time.thread_time() - begin) * 1_000_000


def _count(count: int) -> None:
    """What ``Partition.try_append`` and ``Dispatcher.begin`` do for metrics, for so many sends."""
    clock = SystemClock()
    metrics = PartitionMetrics(Registry(), clock)
    durations, began, body = PowerHistogram(REQUEST_POWERS, MICROSECOND), clock.monotonic(), _PAYLOAD
    owner = _Owner(metrics, clock)
    for _ in range(count):
        owner.append_count += 1
        sizes, size = owner.sizes, len(body) + BATCH_HEADER_SIZE
        sizes.counts[size.bit_length()] += 1
        sizes.total += size
        monotonic = owner.monotonic
        duration = monotonic() - began
        durations.counts[duration.bit_length()] += 1
        durations.total += duration


def _count_nothing(count: int) -> None:
    for _ in range(count):
        pass


class _Owner:
    """Stands for the partition and the dispatcher, whose attributes take as long to find."""

    def __init__(self, metrics: PartitionMetrics, clock: SystemClock) -> None:
        self.append_count = 0
        self.sizes = metrics.append_sizes
        self.monotonic = clock.monotonic


def run(bench: Bench) -> Iterator[Row]:
    """The rows of this case."""
    found = bench.run(_scrapes(bench))
    count = bench.scale.partition_count * _FACTOR
    yield Row(
        measure=f"scrape with {count} partitions",
        unit="ms",
        engine=found.times,
        target=Target(Bound.AT_MOST, 200),
        note=f"{found.size // 1000} kB of text",
    )
    yield Row(measure="CPU time of it", unit="ms", engine=found.cpu_times, note="other programs do not count")
    yield Row(
        measure="longest turn of the event loop", unit="ms", engine=found.longest_turns, target=Target(Bound.AT_MOST, 5)
    )
    single, send_count = sample(Shape.SAME, 1), _SINGLE_FACTOR * bench.scale.single_count
    rounds = [
        (
            courser_singles(bench, single, CONNECTION_COUNT, send_count, is_synced=False).cpu,
            _counting(bench.scale.single_count),
        )
        for _ in range(bench.scale.rounds)
    ]
    yield Row(
        measure="counting for a single-message send",
        unit="us",
        engine=[counting for _, counting in rounds],
        bare=[cpu for cpu, _ in rounds],
        bare_name="CPU of the server for the whole request, metrics included",
        target=Target(Bound.RATIO_AT_MOST, 0.03),
    )
