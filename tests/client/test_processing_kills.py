"""Processors that are killed, whose server is killed, and whose group is rebalanced all the time.

Nothing is skipped, only uncommitted messages are repeated, and the messages of a key are handled in order.
"""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import courser
from courser.client.client import Client
from courser.client.messages import SendMessage
from courser.errors import ConnectionFailed, NotFound
from tests.client.process_worker import GROUP, PLACE, Journal, recorded
from tests.servers import ROOT, RunningServer

PATIENCE = 120.0
PARTITION_COUNT, KEY_COUNT = 6, 40


@dataclass
class Record:
    """What the journal says: read as it grows, checked line by line."""

    path: Path
    total: int
    handled: set[int] = field(default_factory=set)
    repeated_count: int = 0
    commit_count: int = 0
    committed: dict[int, int] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    """By key, the largest number that was handled."""
    position: int = 0
    problems: list[str] = field(default_factory=list)

    def read_on(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self.position)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self.position += end
        for line in data[:end].decode().splitlines():
            kind, _, partition, offset, *rest = line.split()
            if kind == "C":
                self.commit_count += 1
                if int(offset) < self.committed.get(int(partition), -1):
                    self.problems.append(f"went back: {line}")
                self.committed[int(partition)] = int(offset)
            elif kind == "B":
                if int(offset) <= self.committed.get(int(partition), -1):
                    self.problems.append(f"committed before: {line}")
            else:
                self._handled(line, rest[0], int(rest[1]))

    def _handled(self, line: str, key: str, number: int) -> None:
        if number in self.handled:
            self.repeated_count += 1
            return
        # For the first time: whatever the key had before must have been handled.
        if number != self.newest.get(key, int(key) - KEY_COUNT) + KEY_COUNT:
            self.problems.append(f"out of order, after {self.newest.get(key)}: {line}")
        self.newest[key] = number
        self.handled.add(number)

    async def until(self, count: int) -> None:
        """Wait until so many messages are handled."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self.read_on()
                if len(self.handled) >= count:
                    return
                await asyncio.sleep(0.01)


@dataclass
class Scene:
    """A server, workers, and a client that disturbs them."""

    server: RunningServer
    url: str
    client: Client
    record: Record
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    started_count: int = 0

    def start_worker(self) -> None:
        self.started_count += 1
        command = [sys.executable, "-m", "tests.client.process_worker", self.url, str(self.record.path)]
        self.workers.append(subprocess.Popen([*command, f"w{self.started_count}"], cwd=ROOT))

    def kill_worker(self) -> None:
        victim = self.workers.pop(0)
        assert victim.poll() is None, "it ended by itself"
        victim.kill()
        victim.wait(PATIENCE)
        self.start_worker()

    async def kill_server(self) -> None:
        self.server.kill()
        await asyncio.to_thread(self.server.start)

    async def rebalance(self, name: str) -> None:
        """A further member joins, works for a moment, and leaves."""
        journal = Journal(self.record.path)
        async with recorded(self.client, journal, name) as guest:
            async with asyncio.timeout(PATIENCE):
                while not guest.partitions:  # noqa: ASYNC110 - others give them up
                    await asyncio.sleep(0.01)
        journal.close()

    async def send(self, numbers: range) -> None:
        for key in range(KEY_COUNT):
            mine = [SendMessage(str(number), key=str(key)) for number in numbers if number % KEY_COUNT == key]
            partition = key % PARTITION_COUNT
            await self.client.send_messages(PLACE, partitioning=partition, messages=mine)

    async def is_committed(self) -> bool:
        """Whether the group has committed everything."""
        for bounds in (await self.client.get_partition_bounds(PLACE)).partitions:
            try:
                stored = await self.client.get_consumer_offset(PLACE, None, bounds.partition_id, group=GROUP)
            except NotFound:
                return False
            if stored.stored_offset + 1 < bounds.next_offset:
                return False
        return True


@contextlib.contextmanager
def ended(workers: list["subprocess.Popen[bytes]"]) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(PATIENCE)


async def disturb(scene: Scene, source: random.Random, portion: int, worker_count: int) -> None:
    """Send portions, and in the middle of each one kill somebody or let somebody join."""
    total = scene.record.total
    for _ in range(worker_count):
        scene.start_worker()
    for step, begin in enumerate(range(0, total, portion)):
        await scene.send(range(begin, begin + portion))
        await scene.record.until(begin + source.randrange(portion))
        match step % 3:
            case 0:
                await scene.rebalance(f"guest{step}")
            case 1:
                scene.kill_worker()
            case 2:
                await scene.kill_server()
    await scene.record.until(total)


async def prove(path: Path, seed: int, total: int, portion: int, worker_count: int, *, is_restless: bool) -> Record:
    with RunningServer(path / "server") as server:
        url = f"iggy://iggy:iggy@{server.address}"
        record = Record(path / "journal.txt", total)
        record.path.touch()
        async with courser.connect(url, reconnect_interval=0.02, reconnect_interval_max=0.2) as client:
            await client.create_stream("proof")
            await client.create_topic(PLACE, partitions_count=PARTITION_COUNT)
            scene = Scene(server, url, client, record)
            with ended(scene.workers):
                restless = asyncio.create_task(_join_every_second(scene)) if is_restless else None
                await disturb(scene, random.Random(seed), portion, worker_count)
                if restless is not None:
                    restless.cancel()
                    await asyncio.gather(restless, return_exceptions=True)
                await _finish(scene)
        record.read_on()
        return record


async def _join_every_second(scene: Scene) -> None:
    number = 0
    while True:
        number += 1
        with contextlib.suppress(ConnectionFailed):
            await scene.rebalance(f"restless{number}")
        await asyncio.sleep(1)


async def _finish(scene: Scene) -> None:
    """Everything is committed in the end, and an orderly stop is one."""
    async with asyncio.timeout(PATIENCE):
        while not await scene.is_committed():  # noqa: ASYNC110 - other processes commit
            await asyncio.sleep(0.01)
    for worker in scene.workers:
        worker.send_signal(signal.SIGTERM)
    for worker in scene.workers:
        assert await asyncio.to_thread(worker.wait, PATIENCE) == 0


def check(record: Record) -> None:
    assert not record.problems, "\n".join(record.problems[:20])
    assert record.handled == set(range(record.total))
    assert record.commit_count


async def test_kills_and_rebalances_skip_nothing_and_keep_the_order(tmp_path: Path, seed: int) -> None:
    check(await prove(tmp_path, seed, total=2400, portion=800, worker_count=2, is_restless=False))


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_messages_with_a_rebalance_every_second(tmp_path: Path, seed: int) -> None:
    record = await prove(tmp_path, seed, total=100_000, portion=4000, worker_count=3, is_restless=True)
    check(record)
    print(f"{record.repeated_count} repeated, {record.commit_count} commits")
