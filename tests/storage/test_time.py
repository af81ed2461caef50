"""Time in a partition never goes backwards, whatever the clock does: the order of times is the order of offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.storage.jobs import perform
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import SegmentState
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_purge
from tests.storage.engine import SMALL, Engine

HOUR = 3_600_000_000
TEN_YEARS = 10 * 365 * 24 * HOUR


def times(engine: Engine) -> list[int]:
    return [message.timestamp for message in engine.read_all()[0]]


def states(engine: Engine) -> list[SegmentState]:
    return [segment.state for segment in engine.log.segments]


def assert_time_lookups_are_right(engine: Engine) -> None:
    messages = engine.read_all()[0]
    for time in {message.timestamp for message in messages}:
        for wanted in (time - 1, time, time + 1):
            first = next((m.offset for m in messages if m.timestamp >= wanted), engine.log.next_offset)
            assert engine.log.offset_at_time(wanted) == first


def test_a_clock_set_back_an_hour_leaves_the_time_standing() -> None:
    engine = Engine(SMALL)
    engine.fill(5)
    last = times(engine)[-1]
    engine.clock.jump(-HOUR)
    engine.fill(5)
    assert times(engine)[15:] == [last] * 15
    engine.clock.advance(2 * HOUR)
    engine.fill(1)
    assert times(engine)[-1] > last
    assert_time_lookups_are_right(engine)


def test_a_clock_set_ten_years_forward_and_back_keeps_the_order() -> None:
    engine = Engine(SMALL)
    engine.fill(5)
    engine.clock.jump(TEN_YEARS)
    engine.fill(5)
    engine.clock.jump(-TEN_YEARS)
    engine.fill(5)
    assert times(engine) == sorted(times(engine))
    assert times(engine)[-1] >= times(engine)[0] + TEN_YEARS
    assert_time_lookups_are_right(engine)


@pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
@pytest.mark.parametrize("ending", ["open", "rolled", "sealed", "purged", "trimmed"])
def test_the_order_holds_across_restarts(stop: StopKind, ending: str) -> None:
    engine = Engine(SMALL)
    engine.clock.jump(TEN_YEARS)
    last = engine.append_numbered(3).timestamp
    engine.sync()
    if ending == "rolled":
        engine.log.roll()
    if ending in ("sealed", "trimmed"):
        engine.roll()
    if ending == "trimmed":
        engine.trim(3)
    if ending == "purged":
        assert perform(plan_purge(engine.log))
    engine.clock.jump(-TEN_YEARS)
    engine.restart(stop)
    assert engine.append_numbered(3).timestamp >= last
    assert_time_lookups_are_right(engine)


@given(jumps=st.lists(st.integers(-TEN_YEARS, TEN_YEARS), max_size=20), data=st.data())
def test_any_jumps_and_restarts_keep_times_in_order(jumps: list[int], data: st.DataObject) -> None:
    engine = Engine(SMALL)
    engine.clock.jump(200 * TEN_YEARS)
    for jump in jumps:
        engine.clock.jump(jump)
        engine.append_numbered(2)
        match data.draw(st.sampled_from(["go on", "roll", "restart", "kill"])):
            case "roll":
                engine.roll()
            case "restart":
                engine.restart()
            case "kill":
                engine.restart(StopKind.KILLED)
    assert times(engine) == sorted(times(engine))
    assert_time_lookups_are_right(engine)


def test_a_segment_is_closed_by_the_time_of_its_messages() -> None:
    """A clock that jumps back makes no segment younger, and none is closed twice."""
    engine = Engine(LogSettings(segment_age_max=HOUR))
    engine.fill(1)
    engine.clock.jump(-TEN_YEARS)
    engine.log.roll_if_old()
    assert states(engine) == [SegmentState.OPEN]
    engine.clock.jump(TEN_YEARS + HOUR)
    engine.log.roll_if_old()
    assert states(engine) == [SegmentState.CLOSING]
    engine.fill(1)
    assert [segment.base_offset for segment in engine.log.segments] == [0, 3]


def test_an_append_closes_a_segment_that_is_old_enough() -> None:
    engine = Engine(LogSettings(segment_age_max=HOUR))
    engine.fill(2)
    engine.clock.advance(HOUR)
    engine.fill(2)
    assert [segment.base_offset for segment in engine.log.segments] == [0, 6]
