"""How costs grow: with topics, partitions, messages, groups, connections and stored bytes, over orders of magnitude.

Each cost is measured at several sizes of one thing, in CPU time of the process, and an exponent is fitted: 0 is a cost
that does not depend on the size, 1 one that grows with it. What serves a single request must stay near 0; what goes
through everything must not be above 1. Files are in memory, except those of the starts.
"""

import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import linear_regression, median

from benchmarks.harness import GIB, MIB, Bench, Bound, Row, Target
from benchmarks.samples import Shape, sample
from benchmarks.scraping import BrokerClient, opened_broker
from benchmarks.serving import PLACE, courser
from benchmarks.starting import claim_segments, start_milliseconds
from benchmarks.wires.requests import OFFSET
from benchmarks.wires.vsr_wire import VsrWire
from courser.api import commands as c
from courser.client.targets import Target as ServerTarget
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import Batch, NewMessage, build_batch
from courser.server.system_limits import raise_file_limit

CONSTANT = 0.25
"""The exponent of a cost that should not depend on the size, with some room for caches of the processor."""
LINEAR = 1.2
_REPEAT_COUNT = 50
_TRIES = 5
_PAYLOAD = bytes(100)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BATCH_MESSAGE_COUNT = 1000
_CONSUMER = Consumer(ConsumerKind.CONSUMER, 1)

Action = Callable[[int], Awaitable[object]]
"""Gets a number that is different each time."""


@dataclass(slots=True)
class Curve:
    """What something costs at several sizes."""

    name: str
    unit: str
    exponent_max: float
    sizes: list[int] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def add(self, size: int, cost: float) -> None:
        """One more point."""
        self.sizes.append(size)
        self.costs.append(cost)

    @property
    def exponent(self) -> float:
        """Of the power that fits best; 0 if costs shrink."""
        if len(self.sizes) < 2:
            return 0.0
        logs = [math.log(max(cost, 1e-9)) for cost in self.costs]
        return max(linear_regression([math.log(size) for size in self.sizes], logs).slope, 0.0)

    def row(self, axis: str) -> Row:
        """As a result."""
        points = ", ".join(f"{cost:,.3g}" for cost in self.costs)
        return Row(
            measure=f"{self.name} against {axis}",
            unit="exponent",
            engine=[self.exponent],
            target=Target(Bound.AT_MOST, self.exponent_max),
            note=f"{points} {self.unit} at {', '.join(f'{size:,}' for size in self.sizes)}",
        )


class Curves:
    """All costs that depend on one thing."""

    def __init__(self, axis: str) -> None:
        self._axis = axis
        self._curves: dict[str, Curve] = {}

    def add(self, name: str, unit: str, exponent_max: float, size: int, cost: float) -> None:
        """One measured cost at one size."""
        self._curves.setdefault(name, Curve(name, unit, exponent_max)).add(size, cost)

    def rows(self) -> Iterator[Row]:
        """One for each cost."""
        return (curve.row(self._axis) for curve in self._curves.values())


def run(bench: Bench) -> Iterator[Row]:
    raise_file_limit()
    for axis in (_topics, _partitions, _messages, _groups):
        yield from bench.run(axis(bench)).rows()
    yield from _connections(bench).rows()
    yield from _stored_bytes(bench).rows()


def _sizes(most: int, count: int = 4) -> list[int]:
    """Powers of ten up to ``most``."""
    return [size for power in reversed(range(count)) if (size := most // 10**power) > 0]


async def _microseconds(action: Action, count: int = _REPEAT_COUNT) -> float:
    """CPU time of the process for one of ``count`` calls: the median of several tries."""
    found, number = [], 0
    for _ in range(_TRIES):
        begin = time.process_time()
        for _ in range(count):
            await action(number)
            number += 1
        found.append((time.process_time() - begin) / count * 1e6)
    return median(found)


async def _milliseconds(action: Callable[[], Awaitable[object]]) -> float:
    return await _microseconds(lambda _: action(), 1) / 1000


# --- what a broker holds ----------------------------------------------------------------------------------


def _one() -> list[Batch]:
    return [build_batch([NewMessage(_PAYLOAD)])]


async def _make_probe(client: BrokerClient) -> None:
    await client.ask(c.CreateStream("probe"))
    await client.ask(c.CreateTopic("probe", "t", 1, TopicOptions()))
    await client.ask(_send(0))


def _send(_: int) -> c.SendMessages:
    return c.SendMessages("probe", "t", ToPartition(0), _one())


def _poll(offset: int) -> c.PollMessages:
    return c.PollMessages(_CONSUMER, "probe", "t", 0, PollingKind.OFFSET, offset, 1, auto_commit=False)


async def _ask_again(client: BrokerClient, command: c.Command, _: int) -> None:
    await client.ask(command)


async def _requests(client: BrokerClient, curves: Curves, size: int) -> None:
    """What single requests cost, which must not depend on what else there is."""
    tag = f"{size}-{time.monotonic_ns()}"
    curves.add("send", "us", CONSTANT, size, await _microseconds(lambda number: client.ask(_send(number))))
    curves.add("poll", "us", CONSTANT, size, await _microseconds(lambda _: client.ask(_poll(0))))
    curves.add(
        "create a topic",
        "us",
        CONSTANT,
        size,
        await _microseconds(
            lambda number: client.ask(c.CreateTopic("probe", f"{tag}-{number}", 1, TopicOptions())), _REPEAT_COUNT // 5
        ),
    )


async def _checkpoint(client: BrokerClient) -> None:
    """As the server does it, but whether it is due or not."""
    await client.ask(c.CreateStream(f"checkpoint-{time.monotonic_ns()}"))
    client.broker.catalog._store.take_snapshot()


async def _topics(bench: Bench) -> Curves:
    curves = Curves("topics")
    async with opened_broker(bench.memory_directory) as client:
        await _make_probe(client)
        made = 0
        for size in _sizes(bench.scale.growth_count):
            while made < size:
                if made % 1000 == 0:
                    await client.ask(c.CreateStream(f"s{made // 1000}"))
                await client.ask(c.CreateTopic(f"s{made // 1000}", f"t{made}", 0, TopicOptions()))
                made += 1
            await _requests(client, curves, size)
            curves.add("list all streams", "ms", LINEAR, size, await _milliseconds(partial(client.ask, c.GetStreams())))
            curves.add("scrape", "ms", LINEAR, size, await _milliseconds(client.broker.operating.scrapes.text))
            curves.add("checkpoint", "ms", LINEAR, size, await _milliseconds(partial(_checkpoint, client)))
    return curves


async def _partitions(bench: Bench) -> Curves:
    curves = Curves("open partitions")
    async with opened_broker(bench.memory_directory) as client:
        await _make_probe(client)
        await client.ask(c.CreateStream("s"))
        made = 0
        for size in _sizes(bench.scale.growth_count // 10):
            count = size - made
            topic_count = max(count // 100, 1)
            for number in range(topic_count):
                share = count // topic_count + (number < count % topic_count)
                await client.ask(c.CreateTopic("s", f"t{made + number}", share, TopicOptions()))
            curves.add("memory", "MiB", LINEAR, size, _memory())
            made = size
            await _requests(client, curves, size)
            curves.add("scrape", "ms", LINEAR, size, await _milliseconds(client.broker.operating.scrapes.text))
    return curves


async def _messages(bench: Bench) -> Curves:
    curves, source = Curves("messages of a partition"), random.Random(7)
    async with opened_broker(bench.memory_directory) as client:
        await _make_probe(client)
        batch = [NewMessage(_PAYLOAD)] * _BATCH_MESSAGE_COUNT
        made = 0
        for size in _sizes(bench.scale.growth_count * 100):
            while made < size:
                await client.ask(c.SendMessages("probe", "t", ToPartition(0), [build_batch(batch)]))
                made += _BATCH_MESSAGE_COUNT
            offsets = [source.randrange(size) for _ in range(_REPEAT_COUNT * _TRIES)]

            async def poll(number: int, offsets: Sequence[int] = offsets) -> None:
                await client.ask(_poll(offsets[number]))

            curves.add("send", "us", CONSTANT, size, await _microseconds(lambda number: client.ask(_send(number))))
            curves.add("poll anywhere", "us", CONSTANT, size, await _microseconds(poll))
    return curves


async def _groups(bench: Bench) -> Curves:
    curves = Curves("consumer groups of a topic")
    async with opened_broker(bench.memory_directory) as client:
        await _make_probe(client)
        made = 0
        for size in _sizes(max(bench.scale.growth_count // 100, 3)):
            while made < size:
                await client.ask(c.CreateConsumerGroup("probe", "t", f"g{made}"))
                made += 1
            store = c.StoreConsumerOffset(_CONSUMER, "probe", "t", 0, 0)
            groups = c.GetConsumerGroups("probe", "t")
            await _requests(client, curves, size)
            curves.add("store an offset", "us", CONSTANT, size, await _microseconds(partial(_ask_again, client, store)))
            curves.add("list them", "ms", LINEAR, size, await _milliseconds(partial(client.ask, groups)))
    return curves


def _memory() -> float:
    """Resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / MIB


# --- connections ------------------------------------------------------------------------------------------


def _idle_connection(login: ServerTarget) -> VsrWire:
    """One that is logged in, without the buffer of 1 MiB that it would need for polls."""
    client = VsrWire(login)
    client._line.buffer = memoryview(b"")
    return client


def _connections(bench: Bench) -> Curves:
    curves, batch = Curves("connections"), sample(Shape.SAME, 1)
    count = max(bench.scale.single_count // 10, 10)
    with bench.fresh_directory() as path, courser(path) as (server, login), ExitStack() as stack:
        client = stack.enter_context(closing(VsrWire(login)))
        client.create_stream(PLACE.stream)
        client.create_topic(PLACE, 1)
        request, poll, made = client.make_send(PLACE, 0, batch), client.make_poll(PLACE, 0), 1
        for size in _sizes(bench.scale.growth_count // 10):
            for _ in range(size - made):
                stack.enter_context(closing(_idle_connection(login)))
            made = size
            curves.add("memory", "MiB", LINEAR, size, server.memory())
            for name, action in (
                ("send", lambda: client.send(request)),
                ("poll", lambda: client.poll(poll, OFFSET, 0, 1)),
            ):
                action()
                begin = server.cpu_seconds()
                for _ in range(count):
                    action()
                curves.add(name, "us", CONSTANT, size, (server.cpu_seconds() - begin) / count * 1e6)
    return curves


# --- stored bytes -----------------------------------------------------------------------------------------


def _stored_bytes(bench: Bench) -> Curves:
    """Starts after a kill. Sealed segments are sparse; as much is unsynced in each."""
    curves = Curves("stored GiB, in segments of 64 MiB")
    with bench.fresh_directory() as path:
        for size in _sizes(bench.scale.claimed_size // GIB, 3):
            directory = path / str(size)
            claim_segments(directory, size * GIB // (64 * MIB), 64 * MIB)
            times = [start_milliseconds(directory, 4 * MIB, after_kill=True) for _ in range(bench.scale.rounds)]
            curves.add("start after a kill", "ms", LINEAR, size, median(times))
    return curves
