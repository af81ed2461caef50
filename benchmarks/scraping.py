"""Metrics: a scrape with many partitions, how long it delays other work, and what counting costs a send.

Everything runs in this process. The partitions are in memory, because creating them is not what is measured.
"""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from benchmarks.harness import Bench, Bound, Row, Target
from courser.api import commands as c
from courser.broker.broker import Broker, RootUser
from courser.broker.partition_metrics import PartitionMetrics
from courser.broker.sessions import Session
from courser.broker.settings import BrokerSettings
from courser.handlers.dispatcher import Dispatcher
from courser.model.messaging import ToPartition, Transport
from courser.model.metrics import MICROSECOND, REQUEST_POWERS, PowerHistogram, Registry
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.records.layout import BATCH_HEADER_SIZE
from courser.storage.data_directory import DataDirectory
from courser.storage.local_clock import SystemClock

_TOPIC_COUNT = 10
_FACTOR = 10
"""Partitions of a scrape, for each partition that other cases open."""
_ROUND_FACTOR = 3
_PAYLOAD = bytes(100)
_NO_PASSWORD_HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$Jlt7EvnWHx4ygcKFdbkqpQ"


class _Client:
    """Sends commands to a broker, as root."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._dispatcher = Dispatcher(broker)
        self._session = Session(1, Transport.TCP, "127.0.0.1:1", now=broker.clock.monotonic())
        self._session.user_id = 0

    async def ask(self, command: c.Command) -> None:
        await self._dispatcher.dispatch(self._session, command)

    def send(self, command: c.SendMessages, count: int) -> None:
        """As a transport does."""
        session, begin, monotonic = self._session, self._dispatcher.begin, self.broker.clock.monotonic
        for _ in range(count):
            session.last_seen = monotonic()
            begin(session, command)


@asynccontextmanager
async def _opened(bench: Bench) -> AsyncIterator[_Client]:
    path = Path(tempfile.mkdtemp(prefix="courser-bench-", dir=bench.memory_directory))
    try:
        root = RootUser("iggy", _NO_PASSWORD_HASH)
        broker = await Broker.open(DataDirectory.open(path), BrokerSettings(), make_root=lambda: root)
        try:
            yield _Client(broker)
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


async def _scrapes(bench: Bench) -> tuple[list[float], list[float], float]:
    """Milliseconds of each scrape, the longest delay of other work in each, and kilobytes of one."""
    count = max(bench.scale.partition_count * _FACTOR // _TOPIC_COUNT, 1)
    times, delays = [], []
    async with _opened(bench) as client:
        await client.ask(c.CreateStream("s"))
        for number in range(_TOPIC_COUNT):
            await client.ask(c.CreateTopic("s", f"t{number}", count, TopicOptions()))
            await client.ask(c.CreateConsumerGroup("s", f"t{number}", "g"))
            for partition_id in range(count):
                await client.ask(_send(f"t{number}", partition_id))
        text = await client.broker.scrapes.text()
        for _ in range(bench.scale.rounds * _ROUND_FACTOR):
            begin = time.perf_counter()
            await client.broker.scrapes.text()
            times.append((time.perf_counter() - begin) * 1000)
            turns = _Turns()
            await client.broker.scrapes.text()
            await turns.stop()
            delays.append(turns.longest * 1000)
    return times, delays, len(text) / 1000


def _send(topic: str, partition_id: int) -> c.SendMessages:
    return c.SendMessages("s", topic, ToPartition(partition_id), [build_batch([NewMessage(_PAYLOAD)])])


async def _costs(bench: Bench) -> tuple[list[float], list[float]]:
    """Microseconds of a single-message send between decoding and encoding, and those of counting alone, per round."""
    count = bench.scale.single_count
    sends, countings = [], []
    async with _opened(bench) as client:
        await client.ask(c.CreateStream("s"))
        await client.ask(c.CreateTopic("s", "t", 1, TopicOptions()))
        command = _send("t", 0)
        # The first one reserves offsets.
        await client.ask(command)
        for _ in range(bench.scale.rounds * _ROUND_FACTOR):
            sends.append(_timed(lambda: client.send(command, count)) / count)
            countings.append((_timed(lambda: _count(count)) - _timed(lambda: _count_nothing(count))) / count)
            await asyncio.sleep(0)
    return sends, [max(counting, 0.0) for counting in countings]


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
    times, delays, size = bench.run(_scrapes(bench))
    count = bench.scale.partition_count * _FACTOR
    yield Row(
        measure=f"scrape with {count} partitions",
        unit="ms",
        engine=times,
        target=Target(Bound.AT_MOST, 200),
        note=f"{size:.0f} kB of text",
    )
    yield Row(measure="longest turn of the event loop", unit="ms", engine=delays, target=Target(Bound.AT_MOST, 5))
    sends, countings = bench.run(_costs(bench))
    yield Row(
        measure="counting for a single-message send",
        unit="us",
        engine=countings,
        note=f"of {median(sends):.1f} us without sockets and codec; see serving for the whole path",
    )
