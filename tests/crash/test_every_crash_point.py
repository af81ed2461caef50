"""Every scenario, dead at every call that changes anything: before it, in the middle of it, and after it.

After each death several things happen to the disk (a kill, power cuts with different outcomes), then the server starts
and every promise is checked; then it is started once more, to see that the start itself can be repeated. The number of
points is known from an undisturbed run, and all of them must have been reached.
"""

import copy
import random
from collections.abc import Callable

import pytest

from tests.crash.scenarios import SCENARIOS, Facts, Life, new_disk
from tests.fakes.files import CrashMoment, FakeFileSystem, FaultPlan, SimulatedCrash

Scenario = Callable[[Life], None]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_crash_at_every_point_keeps_every_promise(scenario: Scenario, seed: int, is_long: bool) -> None:
    power_cut_count = 8 if is_long else 2
    point_count = undisturbed(scenario, seed)
    points = [(call, moment) for call in range(1, point_count + 1) for moment in CrashMoment]
    reached = sum(crash_at(scenario, seed, call, moment, power_cut_count) for call, moment in points)
    print(f"{scenario.__name__}: {reached} of {len(points)} points, {1 + power_cut_count} outcomes each")
    assert reached == len(points) > 0


def undisturbed(scenario: Scenario, seed: int) -> int:
    """Run to the end and count the calls at which a crash could have happened."""
    disk = new_disk(seed)
    life = Life(disk, Facts())
    scenario(life)
    assert life.facts.is_created
    return disk.mutations


def crash_at(scenario: Scenario, seed: int, call: int, moment: CrashMoment, power_cut_count: int) -> bool:
    """Die there; say whether the point was reached."""
    disk = new_disk(seed)
    disk.plan = FaultPlan().crash_at(call, moment)
    facts = Facts()
    try:
        scenario(Life(disk, facts))
    except SimulatedCrash:
        for outcome in range(1 + power_cut_count):
            point = f"{seed}, {call}, {moment}, {outcome}"
            recover(disk.clone(random.Random(point)), copy.deepcopy(facts), is_killed=outcome == 0)
        return True
    return False


def recover(disk: FakeFileSystem, facts: Facts, *, is_killed: bool) -> None:
    if is_killed:
        disk.kill()
    else:
        disk.power_cut()
    for _ in range(2):
        life = Life(disk, facts)
        life.start()
        life.check()
        disk.power_cut()
    life = Life(disk, facts)
    life.start()
    life.send(2)
    disk.power_cut()
    life = Life(disk, facts)
    life.start()
    life.check()
