"""Thousands of crash and recovery rounds, each checked against the model. ``make crash-rounds`` runs a million."""

import pytest

from tests.crash.rounds import run_rounds
from tests.simulator.partition_simulation import Statistics, simulate

ROUNDS, LONG_ROUNDS = 400, 2_000
"""In each of the parts: they share nothing, so that workers can share them out."""

MUST_HAPPEN = {
    "append",
    "acknowledge",
    "plan sync",
    "plan seal",
    "plan trim",
    "plan purge",
    "plan recovery point",
    "plan allocation",
    "plan write-back",
    "plan index flush",
    "plan ledger rewrite",
    "plan offsets rewrite",
    "failed sync",
    "run failure report",
    "read",
    "look up",
    "store",
    "delete",
    "roll",
    "disk full",
    "kill",
    "power cut",
    "remount",
    "clean stop",
    "copy",
    "rot",
    "hurt index",
    "crash in recovery",
    "failed start",
    "recover again",
    "clock set",
    "plan time correction",
    "plan offsets mark",
}


@pytest.mark.parametrize(
    "part", [0, 1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_every_promise_holds_through_hundreds_of_crashes(seed: int, part: int, is_long: bool) -> None:
    total = run_rounds(seed + part * 2**32, LONG_ROUNDS if is_long else ROUNDS)
    print(f"{total.rounds} rounds, {total.acknowledged_count} sends acknowledged")
    # A run in which nothing was acknowledged proves nothing.
    assert total.acknowledged_count > total.rounds
    missing = MUST_HAPPEN - total.operations.keys()
    assert not missing, f"never happened in {total.rounds} rounds: {missing}"


def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert isinstance(first, Statistics)
    assert first == second
