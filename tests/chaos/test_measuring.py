"""Healthy clients that are slowed down or turned away are told from those that are not."""

from tests.chaos.measuring import Measurement, Sample
from tests.chaos.plan import Attack

QUIET = [0.001] * 500


def kinds(attack: list[float], failures: list[str] | None = None) -> list[str]:
    measurement = Measurement()
    measurement.add(None, Sample(QUIET, [0.05], []))
    measurement.add(Attack.PINGS, Sample(attack, [0.05], failures or []))
    return [violation.kind for violation in measurement.violations()]


def test_within_twenty_times() -> None:
    assert kinds([0.019] * 500) == []


def test_beyond_twenty_times() -> None:
    assert kinds([0.001] * 480 + [0.021] * 20) == ["slow"]


def test_few_answers_are_slow_ones() -> None:
    assert kinds([1.8, 3.0]) == ["slow"]


def test_whoever_is_turned_away_was_not_served() -> None:
    assert kinds([0.001] * 500, ["a correct login failed", "a correct login failed"]) == ["unserved"]


def test_the_report_names_the_attack() -> None:
    measurement = Measurement()
    measurement.add(None, Sample(QUIET, [], []))
    measurement.add(Attack.SLOTS, Sample([0.002] * 10, [0.5], []))
    assert [line.partition(":")[0] for line in measurement.lines()] == ["no strangers", "connection slots"]
