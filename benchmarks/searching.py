"""Searches over millions of small messages: how soon the first is found, how fast the rest is, and what sends lose.

One message in 100,000 is looked for, newest first; the newest one is that far from the end. Everything runs in this
process; the files were just written, so reads need not wait for the disk. Sends are one behind the other, in short
windows that have a search beside them and that have none, in turns.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from benchmarks.harness import Bench, Bound, Row, Scale, Target, switching_as_a_server
from benchmarks.scraping import BrokerClient, opened_broker
from courser.api import commands as c
from courser.api.scans import Hit, ScanDone, ScanOrder, ScanRequest
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch

_BATCH_COUNT = 1000
_HIT_INTERVAL = 100
"""Batches: one of so many has a message that is looked for."""
_WINDOW_FACTOR = 10
"""Pairs of windows for each round: single ones vary a lot."""
_CONDITIONS = {"a text": "A-777-needle", "a JSON value": ".order=A-777-needle", "a comparison": ".total>1000000"}
_FIRST_GOAL = Target(Bound.AT_MOST, 1000)


@dataclass
class _Figures:
    """One figure for each round or window, by condition."""

    first: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    """Milliseconds."""
    first_beside: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    """Milliseconds, while others send."""
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    """Messages per second."""
    sends: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    sends_beside: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    """Sends per second, alone and beside a search."""
    costs: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    costs_beside: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CONDITIONS})
    """Microseconds of processor time for each send, with what the search takes."""


def _batch(is_needle: bool) -> list[NewMessage]:
    def payload(number: int) -> bytes:
        name = "A-777-needle" if is_needle and number == 0 else f"A-{number}"
        total = 10_000_000 if is_needle and number == 0 else number
        return f'{{"order": "{name}", "total": {total}, "city": "Bern"}}'.encode()

    return [NewMessage(payload(number)) for number in range(_BATCH_COUNT)]


def _request(condition: str, hit_count: int) -> ScanRequest:
    return ScanRequest(stream="s", topic="t", conditions=(condition,), order=ScanOrder.NEWEST, count=hit_count)


async def _search(client: BrokerClient, condition: str, hit_count: int) -> tuple[float, float]:
    """Milliseconds to the first hit, and messages per second over all."""
    began, first, count = time.perf_counter(), 0.0, 0
    with client.searches.open(client.session, _request(condition, hit_count), lambda: None) as scan:
        async with aclosing(scan.events()) as events:
            async for event in events:
                if isinstance(event, Hit) and not first:
                    first = time.perf_counter() - began
                if isinstance(event, ScanDone):
                    count = event.progress.scanned_count
    return first * 1000, count / (time.perf_counter() - began)


async def _search_on(client: BrokerClient, condition: str) -> None:
    """Search all of the topic again and again."""
    while True:
        await _search(client, condition, 1000)


async def _send_for(client: BrokerClient, seconds: float) -> tuple[float, float]:
    """Sends per second, and microseconds of processor time for each. What was sent is purged."""
    send = c.SendMessages("s", "u", ToPartition(0), [build_batch([NewMessage(bytes(100))] * 10)])
    began, began_of_cpu = time.perf_counter(), time.process_time()
    deadline, count = began + seconds, 0
    while time.perf_counter() < deadline:
        for _ in range(20):
            await client.ask(send)
        count += 20
        await asyncio.sleep(0)
    rate, cost = count / (time.perf_counter() - began), (time.process_time() - began_of_cpu) / count * 1e6
    await client.ask(c.PurgeTopic("s", "u"))
    return rate, cost


async def _fill(client: BrokerClient, count: int) -> None:
    await client.ask(c.CreateStream("s"))
    for topic in ("t", "u"):
        await client.ask(c.CreateTopic("s", topic, 1, TopicOptions()))
    plain, needle = (build_batch(_batch(is_needle)) for is_needle in (False, True))
    for left_count in range(count // _BATCH_COUNT, 0, -1):
        batch = needle if left_count % _HIT_INTERVAL == 0 else plain
        await client.ask(c.SendMessages("s", "t", ToPartition(0), [batch]))


async def _measure(bench: Bench) -> _Figures:
    figures = _Figures()
    async with opened_broker(bench.directory) as client:
        await _fill(client, bench.scale.search_count)
        for name, condition in _CONDITIONS.items():
            for _ in range(bench.scale.rounds):
                figures.first[name].append((await _search(client, condition, 1))[0])
            figures.rates[name].append((await _search(client, condition, 1000))[1])
            await _measure_sends(client, figures, name, bench.scale)
    return figures


async def _measure_sends(client: BrokerClient, figures: _Figures, name: str, scale: Scale) -> None:
    for _ in range(scale.rounds * _WINDOW_FACTOR):
        rate, cost = await _send_for(client, scale.sync_seconds)
        figures.sends[name].append(rate)
        figures.costs[name].append(cost)
        beside = asyncio.create_task(_search_on(client, _CONDITIONS[name]))
        rate, cost = await _send_for(client, scale.sync_seconds)
        figures.sends_beside[name].append(rate)
        figures.costs_beside[name].append(cost)
        beside.cancel()
        await asyncio.wait((beside,))
    for _ in range(scale.rounds):
        sending = asyncio.create_task(_send_on(client))
        # So that the search finds the server busy from its first piece on.
        await asyncio.sleep(scale.sync_seconds)
        figures.first_beside[name].append((await _search(client, _CONDITIONS[name], 1))[0])
        sending.cancel()
        await asyncio.wait((sending,))


async def _send_on(client: BrokerClient) -> None:
    while True:
        await _send_for(client, 0.5)


def run(bench: Bench) -> Iterator[Row]:
    """The rows of this case."""
    with switching_as_a_server():
        found = bench.run(_measure(bench))
    note = f"{bench.scale.search_count:,} messages, newest first, one hit in 100,000"
    for name in _CONDITIONS:
        yield Row(
            measure=f"first message with {name}", unit="ms", engine=found.first[name], target=_FIRST_GOAL, note=note
        )
        yield Row(
            measure=f"first message with {name}, while others send",
            unit="ms",
            engine=found.first_beside[name],
            target=_FIRST_GOAL,
        )
        yield Row(measure=f"search for {name}", unit="messages/s", engine=found.rates[name])
        yield Row(
            measure=f"sends beside a search for {name}",
            unit="sends/s",
            engine=found.sends_beside[name],
            bare=found.sends[name],
            bare_name="sends alone",
            target=Target(Bound.RATIO_AT_LEAST, 0.9),
        )
        yield Row(
            measure=f"processor time of sends beside a search for {name}",
            unit="us/send",
            engine=found.costs_beside[name],
            bare=found.costs[name],
            bare_name="sends alone",
            target=Target(Bound.RATIO_AT_MOST, 1.1),
            note="with that of the search; does not depend on what else the machine does",
        )
