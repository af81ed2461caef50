"""Courser's client, compared with a load generator that repeats one prepared request.

The load generator does no work per message, and polls one batch of a thousand messages at a time into one buffer. The
producer takes messages one by one, packs and hashes them, and has several batches in flight. Bulk polls return whole
batches, about two at a time. Both run on the default event loop of ``asyncio.run``.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from benchmarks.harness import Bench, Bound, Row, Target
from benchmarks.samples import Shape, sample
from benchmarks.serving import PLACE, courser
from benchmarks.wires.requests import OFFSET
from benchmarks.wires.vsr_wire import VsrWire
from courser.client.client import Client
from courser.client.messages import PollingStrategy
from courser.client.targets import Target as ServerTarget

TOPIC = f"{PLACE.stream}/client"
FRAME_SIZE = 48
CONSUMED_COUNT_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Figures:
    """MB/s of stored bytes."""

    sent: float
    polled: float
    consumed: float = 0.0
    arrow: float = 0.0


def _wire(login: ServerTarget, shape: Shape, message_count: int, size: int) -> Figures:
    batch = sample(shape, message_count)
    count = max(size // batch.stored_size, 1)
    with closing(VsrWire(login)) as wire:
        wire.create_stream(PLACE.stream)
        wire.create_topic(PLACE, 1)
        request = wire.make_send(PLACE, 0, batch)
        begin = time.perf_counter()
        for _ in range(count):
            wire.send(request)
        sent = count * batch.stored_size / 1e6 / (time.perf_counter() - begin)
        poll = wire.make_poll(PLACE, 0)
        received, offset, begin = 0, 0, time.perf_counter()
        while offset < count * batch.count:
            polled = wire.poll(poll, OFFSET, offset, batch.count)
            offset += polled.message_count
            received += polled.size
        return Figures(sent, received / 1e6 / (time.perf_counter() - begin))


async def _client(login: ServerTarget, shape: Shape, message_count: int, size: int) -> Figures:
    source = random.Random(7)
    payloads = [source.randbytes(length) for length in shape.payload_sizes(message_count, source)]
    stored_size = sum(map(len, payloads)) + FRAME_SIZE * message_count
    turns = max(size // stored_size, 1)
    async with Client(login) as client:
        await client.create_topic(TOPIC)
        begin = time.perf_counter()
        async with client.producer(TOPIC) as producer:
            for _ in range(turns):
                for payload in payloads:
                    await producer.send(payload)
        sent = turns * stored_size / 1e6 / (time.perf_counter() - begin)
        polled, table = await _bulk(client, turns * message_count)
        return Figures(sent, polled, await _consumed(client), table)


async def _bulk(client: Client, total: int) -> tuple[float, float]:
    """Bulk polls alone, and with a table built from every reply."""
    speeds = []
    for is_table in (False, True):
        received, offset, begin = 0, 0, time.perf_counter()
        while offset < total:
            strategy = PollingStrategy.Offset(offset)
            batches = await client.poll_batches(TOPIC, None, 0, strategy)
            offset = batches.next_offset or total
            received += batches.size
            if is_table:
                batches.to_arrow()
        speeds.append(received / 1e6 / (time.perf_counter() - begin))
    return speeds[0], speeds[1]


async def _consumed(client: Client) -> float:
    received, begin = 0, time.perf_counter()
    count = 0
    async with client.consumer(TOPIC, stop_at_end=True) as consumer:
        async for message in consumer:
            received += len(message.payload) + FRAME_SIZE
            count += 1
            if count == CONSUMED_COUNT_MAX:
                break
    return received / 1e6 / (time.perf_counter() - begin)


def run(bench: Bench) -> Iterator[Row]:
    size = bench.scale.append_size
    for shape in (Shape.SAME, Shape.MIXED):
        wires, clients = [], []
        for _ in range(bench.scale.rounds):
            with bench.fresh_directory(2 * size) as path, courser(path) as (_, login):
                wires.append(_wire(login, shape, bench.scale.message_count, size))
                clients.append(asyncio.run(_client(login, shape, bench.scale.message_count, size)))
        for measure, field, target in (
            ("producer, default settings", "sent", Target(Bound.RATIO_AT_LEAST, 0.5)),
            ("bulk polls", "polled", Target(Bound.RATIO_AT_LEAST, 0.7)),
            ("bulk polls into Arrow tables", "arrow", None),
            ("consumer, message by message", "consumed", None),
        ):
            yield Row(
                measure=f"{measure}, {shape.value}",
                unit="MB/s",
                engine=[getattr(figures, field) for figures in clients],
                bare=[figures.sent if field == "sent" else figures.polled for figures in wires],
                bare_name="prepared requests",
                target=target,
            )
