"""What was acknowledged is in the log of whoever leads next, whatever happens; and the checker sees planted bugs."""

import pytest

from courser.replication.slot_window import SlotWindow
from tests.replication.checker import Acknowledged, History, Written, faults_of
from tests.replication.simulation import World

STEP_COUNT = 8_000
_NONCE = slice(80, 96)


class SettlesByNonce(SlotWindow):
    """Takes an object for its own that a clone of it has written."""

    def _is_own(self, found: bytes, data: bytes) -> bool:
        return found[_NONCE] == data[_NONCE]


class AcknowledgesOutOfOrder(SlotWindow):
    """Does not wait for the slots before one that is stored."""

    def _can_acknowledge(self) -> bool:
        return any(slot.is_stored for slot in self._slots)


def faults(seed: int, make_window: type[SlotWindow] = SlotWindow) -> list[str]:
    return faults_of(World(seed, make_window=make_window).run(STEP_COUNT))


@pytest.mark.parametrize("seed", range(30))
def test_nothing_acknowledged_is_lost_and_no_slot_is_acknowledged_by_two(seed: int) -> None:
    assert faults(seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(50))
def test_nothing_is_lost_in_thousands_of_runs(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        assert faults(seed) == [], seed


@pytest.mark.parametrize("planted", [SettlesByNonce, AcknowledgesOutOfOrder])
def test_a_planted_bug_is_found(planted: type[SlotWindow]) -> None:
    found = [fault for seed in range(5) for fault in faults(seed, planted)]
    assert any("was acknowledged" in fault for fault in found)


def test_the_runs_are_worth_something() -> None:
    histories = [World(seed).run(STEP_COUNT) for seed in range(5)]
    assert sum(len(history.acknowledged) for history in histories) > 100
    assert sum(len(history.begun) for history in histories) > 20
    assert any(done.what.epoch > 5 for history in histories for done in history.acknowledged)


ONE, OTHER = Written(1, 1, b"one"), Written(1, 1, b"other")


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        (History([Acknowledged(ONE, 0, 1)], final=()), "the log has None"),
        (History([Acknowledged(ONE, 0, 1), Acknowledged(OTHER, 1, 1)], final=(ONE,)), "was acknowledged with"),
        (History(logs=[(OTHER,)], final=(ONE,)), "not the beginning"),
        (History(begun=[(2, b"one"), (2, b"other")]), "two leaders"),
        (History(final=(ONE, Written(1, 2, b"one"))), "a message is twice"),
        (History(final=(ONE, ONE)), "a slot is twice"),
    ],
)
def test_the_checker_names_what_must_not_be(history: History, fault: str) -> None:
    assert any(fault in found for found in faults_of(history))
