"""Producers whose connections break and whose server is killed, again and again: every message once, and in order."""

import asyncio
import contextlib
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

import courser
from courser.client.client import Client
from courser.client.producer import Producer
from tests.servers import RunningServer

PLACE = "shop/orders"
PARTITION_COUNT = 3
PATIENCE = 120.0
PROGRESS = 40
"""Messages of each producer that are acknowledged between two kills, at least."""
CUTS_PER_KILL = 4


@dataclass
class Sender:
    """A producer of numbered messages."""

    name: str
    client: Client
    producer: Producer
    key: str | None = None
    partition: int | None = None
    count: int = 0
    is_over: bool = False

    async def run(self) -> None:
        async with self.producer:
            while not self.is_over:
                await self.producer.send(f"{self.name} {self.count}", key=self.key, partition=self.partition)
                self.count += 1

    def cut(self) -> None:
        """Break the connection: what is on its way may arrive, but no reply does."""
        connection = self.producer._link.current
        if connection is not None and connection._transport is not None:
            connection._transport.abort()

    async def progress(self) -> None:
        wanted = self.producer.message_count + PROGRESS
        while self.producer.message_count < wanted:  # noqa: ASYNC110 - a count of the producer, which has no event
            await asyncio.sleep(0.001)


async def check(client: Client, senders: list[Sender]) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    for partition in range(PARTITION_COUNT):
        newest: dict[str, int] = {}
        offset = 0
        while True:
            strategy = courser.PollingStrategy.Offset(offset)
            messages = await client.poll_messages(
                PLACE, partition_id=partition, polling_strategy=strategy, count=10_000
            )
            if not messages:
                break
            for message in messages:
                name, number = message.text().split()
                assert newest.get(name, -1) < int(number), f"{name}: {number} after {newest[name]}"
                newest[name] = int(number)
                seen[name].append(int(number))
            offset = messages[-1].offset + 1
    for sender in senders:
        assert sorted(seen[sender.name]) == list(range(sender.count)), sender.name


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("rounds", [4, pytest.param(200, marks=pytest.mark.slow)])
async def test_every_message_once_and_in_order(tmp_path: Path, seed: int, rounds: int, processes: str) -> None:
    dice = random.Random(seed)
    with RunningServer(tmp_path, settings={"server.processes": processes}) as server:
        url = f"iggy://iggy:iggy@{server.address}?reconnect_interval=10ms"
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(courser.connect(url)) for _ in range(4)]
            await clients[0].create_stream("shop")
            await clients[0].create_topic(PLACE, partitions_count=PARTITION_COUNT)
            # A small buffer: messages do not wait in it for longer than they may take.
            options = {"batch_count": 7, "linger": 0.0, "buffer_size": 16 * 1024, "delivery_timeout": PATIENCE}
            producers = [client.producer(PLACE, **options) for client in clients]  # type: ignore[arg-type]
            senders = [
                Sender("balanced", clients[0], producers[0]),
                Sender("keyed", clients[1], producers[1], key="k"),
                Sender("named", clients[2], producers[2], partition=1),
                Sender("other", clients[3], producers[3], partition=1),
            ]
            # A producer that fails ends the rounds.
            async with asyncio.timeout(PATIENCE * rounds), asyncio.TaskGroup() as group:
                for sender in senders:
                    group.create_task(sender.run())
                for _ in range(rounds):
                    for _ in range(CUTS_PER_KILL):
                        await asyncio.gather(*(sender.progress() for sender in senders))
                        for sender in dice.sample(senders, 2):
                            sender.cut()
                    await asyncio.gather(*(sender.progress() for sender in senders))
                    server.kill()
                    server.start()
                for sender in senders:
                    sender.is_over = True
            await check(clients[0], senders)
