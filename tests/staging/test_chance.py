"""Servers that stage, publish, fail and crash by chance."""

import contextlib
import random
from collections import Counter

import pytest

from courser.api import commands as c
from courser.errors import CourserError, ErrorCode
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from tests.broker.fake_disks import FakeServer
from tests.fakes.files import FaultPlan, SimulatedCrash
from tests.staging.lives import ONE_THREAD, SINK


class Chance:
    """Batches one after another, with retried tasks, zombies, lost answers, crashes and sends of others between."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.server = FakeServer(self.source.getrandbits(32), ONE_THREAD)
        self.published: Counter[tuple[int, str]] = Counter()
        self.attempt = 0
        self.zombies: list[c.StagedPartName] = []
        self.crash_count = 0

    async def live(self, batch_count: int) -> None:
        await self.server.open()
        await self.server.ask(c.CreateStream("s"))
        level = self.source.choice(["replicated", "persisted"])
        await self.server.add_topic("t", 2, TopicOptions(durability=level))
        for batch in range(batch_count):
            rows = self.draw_rows(batch)
            while not await self.run_batch(batch, rows):
                self.crash_count += 1
            for chunks in rows.values():
                self.published.update(chunks)
            await self.check(f"after batch {batch}")
        await self.server.restart(with_power_cut=True)
        await self.check("at the end")
        self.server.broker.pool.shutdown()

    def draw_rows(self, batch: int) -> dict[int, list[tuple[int, str]]]:
        """What the tasks of a batch produce: the same whenever they are run."""
        draw = self.source.randint
        return {
            part: [(draw(0, 1), f"{batch}/{part}/{number}") for number in range(draw(0, 4))]
            for part in range(draw(1, 3))
        }

    async def run_batch(self, batch: int, rows: dict[int, list[tuple[int, str]]]) -> bool:
        """One try of Spark; False if the server died in it, or the driver did not hear of its success."""
        plan = FaultPlan()
        if self.source.random() < 0.5:
            plan.crash_at(self.source.randint(1, 40))
        self.server.disk.plan = plan
        try:
            parts = {}
            for part, chunks in rows.items():
                if self.source.random() < 0.3:
                    # A speculative task, or one that is run again.
                    await self.stage(batch, part, chunks[: self.source.randint(0, len(chunks))], finish=False)
                if chunks:
                    parts[part] = await self.stage(batch, part, chunks, finish=True)
            await self.haunt()
            await self.server.ask(c.PublishStaged(SINK, batch, tuple(parts.items()), 0))
            if self.source.random() < 0.3:
                # The driver has its answer, and the power fails: at once, or somewhat later.
                if self.source.random() < 0.5:
                    await self.server.broker.publishing.idle()
                await self.server.restart(with_power_cut=True)
                return True
            await self.server.broker.publishing.idle()
            if self.server.disk._crashed:
                # In the background.
                await self.server.restart(with_power_cut=self.source.random() < 0.5)
                return True
        except SimulatedCrash:
            await self.server.restart(with_power_cut=self.source.random() < 0.5)
            return False
        except CourserError as error:
            if self.server.disk._crashed:
                # In a job of the pool, and this is what was made of it.
                await self.server.restart(with_power_cut=self.source.random() < 0.5)
                return False
            if error.code is not ErrorCode.BATCH_ALREADY_PUBLISHED:
                raise
        self.server.disk.plan = FaultPlan()
        return self.source.random() < 0.7

    async def stage(self, batch: int, part: int, chunks: list[tuple[int, str]], *, finish: bool) -> int:
        self.attempt += 1
        name = c.StagedPartName(SINK, batch, part, self.attempt)
        for chunk, (partition, text) in enumerate(chunks):
            message = build_batch([NewMessage(text.encode())])
            await self.server.ask(c.StageMessages(name, chunk, "s", "t", ToPartition(partition), message))
        if finish:
            await self.server.ask(c.FinishStage(name, len(chunks)))
        elif chunks:
            self.zombies.append(name)
        return self.attempt

    async def haunt(self) -> None:
        """A task that Spark gave up goes on, whenever."""
        if self.zombies and self.source.random() < 0.5:
            name = self.source.choice(self.zombies)
            with contextlib.suppress(CourserError):
                batch = build_batch([NewMessage(b"a zombie's")])
                await self.server.ask(c.StageMessages(name, 9, "s", "t", ToPartition(0), batch))
            with contextlib.suppress(CourserError):
                await self.server.ask(c.FinishStage(name, 1))

    async def check(self, when: str) -> None:
        found: Counter[tuple[int, str]] = Counter()
        for partition in range(2):
            found.update((partition, text) for text in (await self.server.read("t", partition)).values())
        assert found == self.published, when


@pytest.mark.parametrize("number", range(6))
async def test_lives_by_chance(number: int, seed: int) -> None:
    chance = Chance(seed + number)
    await chance.live(8)
    print(f"{chance.crash_count} repeated batches")
