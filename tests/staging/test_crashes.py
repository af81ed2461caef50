"""A crash at every call of a publish: all or nothing, exactly once.

The server dies in each call that changes the disk, by a kill or by a power cut, from the first chunk that is staged to
the removal of the staged files; so does the start that finishes a publish. Then a driver does what Spark's would: it
stages again if nobody told it that the batch is published, and publishes under the same number.
"""

import contextlib
import random
from unittest import mock

import pytest

from courser.api import commands as c
from courser.broker.publishing.publishing import Publishing
from courser.errors import CourserError
from tests.fakes.faults import CrashMoment
from tests.fakes.files import FaultPlan, SimulatedCrash
from tests.staging.lives import EXPECTED, PARTS, SINK, Life


class CountingPlan(FaultPlan):
    """Counts the calls in which a crash may happen."""

    @property
    def count(self) -> int:
        return self._mutations


async def mutation_count(level: str) -> int:
    life = Life(1, level=level)
    await life.begin()
    plan = life.server.disk.plan = CountingPlan()
    await life.work()
    assert await life.seen() == EXPECTED
    return plan.count


async def check_all_or_nothing(life: Life, where: str) -> None:
    """What a start shows; then the batch once more, as Spark repeats it."""
    seen = await life.seen()
    assert seen == EXPECTED or not (seen or life.is_answered), f"{where}: {seen}"
    await life.work()
    assert await life.seen() == EXPECTED, f"{where}, and once more"
    assert life.staged_files() == [], where
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == EXPECTED, f"{where}, and after another power cut"


@pytest.mark.parametrize(
    ("level", "with_power_cut"),
    [("replicated", False), ("replicated", True), ("persisted", True)],
    ids=["kill", "power cut", "power cut of a synced topic"],
)
async def test_a_crash_at_every_call(level: str, with_power_cut: bool, seed: int) -> None:
    count = await mutation_count(level)
    assert count > 20
    source = random.Random(seed)
    answered_count = 0
    for position in range(1, count + 2):
        life = Life(source.getrandbits(32), level=level)
        await life.begin()
        life.server.disk.plan = FaultPlan().crash_at(position, source.choice(tuple(CrashMoment)))
        with contextlib.suppress(SimulatedCrash):
            await life.work()
        answered_count += life.is_answered
        await life.server.restart(with_power_cut=with_power_cut)
        await check_all_or_nothing(life, f"call {position}")
        life.server.broker.pool.shutdown()
    # The last one is no crash; those before it come when the driver has its answer, and the logs may not be synced.
    assert answered_count >= 5
    print(f"{count + 1} positions, {answered_count} behind the answer")


@pytest.mark.parametrize("level", ["replicated", "persisted"])
async def test_the_power_fails_right_behind_the_answer(level: str, seed: int) -> None:
    """Nothing was done in the background yet: the entry and the parts are all there is."""
    source = random.Random(seed)
    for _ in range(20):
        life = Life(source.getrandbits(32), level=level)
        await life.begin()
        await life.check_shown()
        await life.server.restart(with_power_cut=True)
        await check_all_or_nothing(life, "behind the answer")
        life.server.broker.pool.shutdown()


@pytest.mark.parametrize("level", ["replicated", "persisted"])
async def test_a_crash_in_the_start_that_finishes_a_publish(level: str, seed: int) -> None:
    """The power fails behind the entry that decides; then the start that finishes it dies at each of its calls."""
    source = random.Random(seed)
    position, has_died = 1, True
    while has_died:
        life = Life(source.getrandbits(32), level=level)
        await life.begin()
        parts = await life.stage()
        # The entry is written and synced; the first append to a log is fatal.
        life.server.disk.plan = FaultPlan().crash_at(3, CrashMoment.BEFORE)
        with contextlib.suppress(SimulatedCrash):
            await life.publish(parts)
        life.server.broker.pool.shutdown(cancel_futures=True)
        life.server.disk.power_cut()
        life.server.disk.plan = FaultPlan().crash_at(position)
        has_died = False
        try:
            await life.server.open()
        except SimulatedCrash:
            has_died = True
            await life.server.restart(with_power_cut=source.random() < 0.5)
        assert await life.seen() == EXPECTED, f"call {position} of the start"
        await check_all_or_nothing(life, f"call {position} of the start")
        life.server.broker.pool.shutdown()
        position += 1
    assert position > 8
    print(f"{position - 1} positions")


async def settle_nothing(*_: object) -> None:
    return


async def check_clients_that_go_on_after_a_kill(seed: int) -> int:
    """The server is killed in the middle of staging; tasks finish what they have; the power fails behind the answer."""
    source = random.Random(seed)
    counting = Life(1, level="replicated")
    await counting.begin()
    plan = counting.server.disk.plan = CountingPlan()
    await counting.stage()
    published_count = 0
    # All calls; then the sync of the last part again and again: a power cut has to take its messages from the log as
    # well, before anybody misses it.
    for position in [*range(1, plan.count + 1), *[plan.count - 1] * 20]:
        life = Life(source.getrandbits(32), level="replicated")
        await life.begin()
        life.server.disk.plan = FaultPlan().crash_at(position, CrashMoment.BEFORE)
        with contextlib.suppress(SimulatedCrash):
            await life.stage()
        await life.server.restart(with_power_cut=False)
        try:
            for part, chunks in PARTS.items():
                await life.server.ask(c.FinishStage(c.StagedPartName(SINK, 0, part, life.attempt), len(chunks)))
        except CourserError:
            # Its tasks are run again.
            pass
        else:
            # Nothing is settled before the power fails, however quick the disk threads are.
            with mock.patch.object(Publishing, "_settle_quietly", settle_nothing):
                await life.publish(dict.fromkeys(PARTS, life.attempt))
                published_count += 1
                await life.server.restart(with_power_cut=True)
            assert await life.seen() == EXPECTED, f"call {position}"
        life.server.broker.pool.shutdown()
    return published_count


async def test_parts_that_a_kill_left_unsynced_are_synced_before_they_count(seed: int) -> None:
    assert await check_clients_that_go_on_after_a_kill(seed) >= 2
