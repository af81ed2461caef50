"""Further processes are killed before any of their steps on a fake disk: nothing acknowledged is lost or doubled."""

import asyncio

import pytest

from tests.simulator.processes_simulation import ProcessesWorld, Script

PROCESS_COUNT = 3
PATIENCE = 120.0


async def run(victim: int, last_step: int | None) -> tuple[int, int]:
    """A server whose further process with a number dies before a step.

    Returns how many steps it took, and how many processes were started again.
    """
    world = ProcessesWorld(seed=1)
    async with asyncio.timeout(PATIENCE):
        await world.start(PROCESS_COUNT, victim=victim, last_step=last_step)
        script = Script(world, PROCESS_COUNT)
        await script.run()
        await script.check()
        step_count = world.processes[victim - 1].life.step_count
        # Most sends to further processes were answered by them.
        assert sum(process.replies.count for process in world.processes) > PROCESS_COUNT
        restart_count = len(world.processes) - (PROCESS_COUNT - 1)
        await world.stop()
        # A data directory belongs to no number of processes.
        for process_count in (1, 2):
            await world.start(process_count)
            await script.check()
            await world.stop()
    return step_count, restart_count


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_every_step_may_be_the_last(victim: int) -> None:
    step_count, restart_count = await run(victim, None)
    assert (step_count > 10, restart_count) == (True, 0)
    for last_step in range(step_count):
        _, count = await run(victim, last_step)
        # The last steps may be those of the stop.
        restart_count += count
    assert restart_count > step_count // 2
