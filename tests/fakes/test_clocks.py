"""The clock that is turned by hand."""

import pytest

from courser.model.clock import Clock
from tests.fakes.clocks import ManualClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(now=1_000, monotonic=5)
    stated: Clock = clock
    assert (stated.now(), stated.monotonic()) == (1_000, 5)
    clock.advance(10)
    assert (clock.now(), clock.monotonic()) == (1_010, 15)


def test_a_jump_moves_the_wall_clock_only() -> None:
    clock = ManualClock(now=1_000, monotonic=5)
    clock.jump(-100)
    assert (clock.now(), clock.monotonic()) == (900, 5)
    clock.jump(500)
    assert (clock.now(), clock.monotonic()) == (1_400, 5)


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match="jump"):
        ManualClock().advance(-1)
