"""Metadata commands among sends, on a disk whose steps fail: every acknowledged effect is there after every start."""

from unittest import mock

import pytest

from courser.broker.catalog import purging
from courser.catalog import partitions
from courser.storage.upkeep import plan_purge
from tests.simulator.metadata_simulation import MetadataWorld, Tally
from tests.simulator.partition_model import BrokenPromise

LIFE_COUNT, STEP_COUNT = 6, 40
SEED_COUNT_MAX = 200
"""Seeds until a mistake counts as not noticed."""


async def live(seed: int) -> Tally:
    return await MetadataWorld(seed).live(LIFE_COUNT, STEP_COUNT)


@pytest.mark.parametrize("part", range(10))
async def test_every_acknowledged_effect_is_there_after_every_start(part: int, seed: int) -> None:
    tally = await live(seed + part)
    print(f"seed {seed + part}: {tally}")
    assert tally.sent


async def test_messages_are_taken_behind_purges_that_wait(seed: int) -> None:
    """Else the others prove nothing about them."""
    tallies = [await live(seed + 100 + number) for number in range(10)]
    assert sum(tally.refused_purges for tally in tallies) > 10
    assert sum(tally.sent_behind_refused for tally in tallies) > 0


async def first_seed_that_notices(seed: int) -> int:
    for number in range(SEED_COUNT_MAX):
        try:
            await live(seed + number)
        except BrokenPromise as broken:
            print(f"noticed with seed {number + 1}: {broken}")
            return number
    raise AssertionError(f"not noticed by {SEED_COUNT_MAX} seeds")


async def test_a_purge_that_removes_what_came_later_is_noticed(seed: int) -> None:
    with mock.patch.object(partitions, "plan_purge", lambda log, epoch, _end: plan_purge(log, epoch)):
        await first_seed_that_notices(seed)


async def test_a_purge_that_comes_back_is_noticed(seed: int) -> None:
    """Neither the purge itself nor a later start reaches the partitions."""
    with (
        mock.patch.object(purging, "is_behind", return_value=False),
        mock.patch.object(partitions, "is_behind", return_value=False),
    ):
        await first_seed_that_notices(seed)
