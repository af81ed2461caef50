"""Further processes are killed before any of their steps on a fake disk: nothing acknowledged is lost or doubled."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.simulator.processes_simulation import ProcessesWorld, Script

PROCESS_COUNT = 3
PATIENCE = 120.0


async def run(victim: int, last_steps: Sequence[int]) -> list[int]:
    """A server whose further processes with a number die before these steps, one after the other.

    Returns how many steps each of them took; the last one is alive in the end.
    """
    world = ProcessesWorld(seed=1)
    async with asyncio.timeout(PATIENCE):
        await world.start(PROCESS_COUNT, victim=victim, last_steps=last_steps)
        script = Script(world, PROCESS_COUNT)
        await script.run()
        await script.check()
        step_counts = [process.life.step_count for process in world.processes if process.number == victim]
        assert len(world.processes) == PROCESS_COUNT - 2 + len(step_counts), "nobody else was killed"
        await world.stop()
        # A data directory belongs to no number of processes.
        for process_count in (1, 2):
            await world.start(process_count)
            await script.check()
            await world.stop()
    return step_counts


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_every_step_may_be_the_last(victim: int) -> None:
    (step_count,) = await run(victim, [])
    assert step_count > 10
    restart_count = 0
    for last_step in range(step_count):
        # The last steps may be those of the stop.
        restart_count += len(await run(victim, [last_step])) - 1
    assert restart_count > step_count // 2


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_every_step_of_a_restarted_process_may_be_the_last(victim: int) -> None:
    (step_count,) = await run(victim, [])
    first_step = step_count // 2
    _, step_count = await run(victim, [first_step])
    assert step_count > 10
    restart_count = 0
    for last_step in range(step_count):
        # One after the other, the second of them soon after it was started.
        restart_count += len(await run(victim, [first_step, last_step, last_step % 4])) - 1
    assert restart_count > 2 * step_count
