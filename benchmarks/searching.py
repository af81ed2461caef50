"""Searches over a large topic: how soon the first message is found, how fast the rest is, and what sends lose by it.

Everything runs in this process, and the files are in memory: the disk is not what is measured.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from benchmarks.harness import Bench, Bound, Row, Target
from benchmarks.scraping import BrokerClient, opened_broker
from courser.api import commands as c
from courser.api.scans import Hit, ScanDone, ScanOrder, ScanRequest
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch

_BATCH_COUNT = 1000
_SWITCH_INTERVAL = 0.000_03
"""Seconds, as in the server."""
_CONDITIONS = {"a text": "A-777-needle", "a JSON value": ".order.id=A-777-needle", "a comparison": ".total>1000000"}


@dataclass
class _Figures:
    """One figure for each round."""

    first: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    """Milliseconds."""
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    """Messages per second."""
    sends: list[float] = field(default_factory=list)
    sends_beside: list[float] = field(default_factory=list)
    """Sends per second, alone and beside a search."""


def _batch(is_needle: bool) -> list[NewMessage]:
    def payload(number: int) -> bytes:
        name = "A-777-needle" if is_needle and number == 0 else f"A-{number}"
        total = 10_000_000 if is_needle and number == 0 else number
        text = f'{{"order": {{"id": "{name}"}}, "total": {total}, "customer": {{"name": "Ann", "city": "Bern"}}}}'
        return text.encode()

    return [NewMessage(payload(number)) for number in range(_BATCH_COUNT)]


async def _search(client: BrokerClient, condition: str) -> tuple[float, float]:
    """Milliseconds to the first hit, and messages per second over all."""
    began, first, count = time.perf_counter(), 0.0, 0
    request = ScanRequest(stream="s", topic="t", conditions=(condition,), order=ScanOrder.NEWEST, count=100)
    with client.broker.scans.open(client.session, request, lambda: None) as scan:
        async with aclosing(scan.events()) as events:
            async for event in events:
                if isinstance(event, Hit) and not first:
                    first = time.perf_counter() - began
                if isinstance(event, ScanDone):
                    count = event.progress.scanned_count
    return first * 1000, count / (time.perf_counter() - began)


async def _send_for(client: BrokerClient, seconds: float) -> float:
    """Sends per second."""
    send = c.SendMessages("s", "u", ToPartition(0), [build_batch([NewMessage(bytes(1000))] * 10)])
    deadline, began, count = time.perf_counter() + seconds, time.perf_counter(), 0
    while time.perf_counter() < deadline:
        for _ in range(20):
            await client.ask(send)
        count += 20
        await asyncio.sleep(0)
    return count / (time.perf_counter() - began)


async def _measure(bench: Bench) -> _Figures:
    figures = _Figures()
    async with opened_broker(bench) as client:
        await client.ask(c.CreateStream("s"))
        for topic in ("t", "u"):
            await client.ask(c.CreateTopic("s", topic, 1, TopicOptions()))
        plain, needle = (build_batch(_batch(is_needle)) for is_needle in (False, True))
        count = max(bench.scale.read_size // len(plain.body), 10)
        for number in range(count):
            # Ten hits, spread over the whole log.
            batch = needle if number % max(count // 10, 1) == 0 else plain
            await client.ask(c.SendMessages("s", "t", ToPartition(0), [batch]))
        for _ in range(bench.scale.rounds):
            for name, condition in _CONDITIONS.items():
                first, rate = await _search(client, condition)
                figures.first[name].append(first)
                figures.rates[name].append(rate)
            figures.sends.append(await _send_for(client, bench.scale.sync_seconds))
            beside = asyncio.create_task(_repeat(client))
            figures.sends_beside.append(await _send_for(client, bench.scale.sync_seconds))
            beside.cancel()
            await asyncio.wait((beside,))
    return figures


async def _repeat(client: BrokerClient) -> None:
    while True:
        await _search(client, _CONDITIONS["a comparison"])


def run(bench: Bench) -> Iterator[Row]:
    """The rows of this case."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        found = bench.run(_measure(bench))
    finally:
        sys.setswitchinterval(before)
    for name in _CONDITIONS:
        yield Row(
            measure=f"first message with {name}",
            unit="ms",
            engine=found.first[name],
            # A comparison has to decode every message before the first hit.
            target=None if name == "a comparison" else Target(Bound.AT_MOST, 1000),
            note="newest first; ten in the whole topic",
        )
        yield Row(measure=f"search for {name}", unit="messages/s", engine=found.rates[name])
    yield Row(
        measure="sends beside a search",
        unit="sends/s",
        engine=found.sends_beside,
        bare=found.sends,
        bare_name="sends alone",
        target=Target(Bound.RATIO_AT_LEAST, 0.9),
    )
