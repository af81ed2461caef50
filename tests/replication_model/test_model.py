"""The rules of the log suffice in every order of events that the bounds allow, and each of them is needed."""

import pytest

from tests.replication_model.model import Bounds, Rule, explore

LOOK = Rule.LOOK_AHEAD
"""Only a clone needs it. Without clones it is left out, and the model is complete with far fewer states."""
CLONED = Bounds((1, 1), has_clones=True, has_claims=False)


@pytest.mark.parametrize(("bounds", "off"), [(Bounds((1, 1)), [LOOK]), (CLONED, [])])
def test_the_rules_suffice(bounds: Bounds, off: list[Rule]) -> None:
    found = explore(bounds, frozenset(off))
    assert found.violation == ""
    assert found.is_complete
    assert found.states > 50_000, "something was explored"


@pytest.mark.parametrize(
    ("bounds", "off"),
    [
        (Bounds((1, 1)), [LOOK, Rule.CHECK_CLAIM]),
        (Bounds((1, 1)), [LOOK, Rule.CHECK_SEAL]),
        (Bounds((1, 1)), [LOOK, Rule.WHOLE_EPOCHS]),
        (Bounds((1, 1)), [LOOK, Rule.KEEP_SEALS]),
        (Bounds((1, 1), epochs=4, rotations=2), [LOOK, Rule.KEEP_FIRST]),
        (Bounds((1, 1)), [LOOK, Rule.IN_ORDER]),
        (CLONED, [Rule.ALL_BYTES]),
        (CLONED, [Rule.LOOK_AHEAD]),
    ],
)
def test_each_rule_is_needed(bounds: Bounds, off: list[Rule]) -> None:
    assert explore(bounds, frozenset(off)).violation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "off"),
    [
        (Bounds((2, 1), rotations=2, epochs=4), [LOOK]),
        (Bounds((1, 0, 1)), [LOOK]),
        (Bounds((1, 1), has_clones=True), []),
        (Bounds((1, 1, 0), has_clones=True), []),
    ],
)
def test_millions_of_states_have_no_violation(bounds: Bounds, off: list[Rule]) -> None:
    assert explore(bounds, frozenset(off), states_max=500_000).violation == ""
