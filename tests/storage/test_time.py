"""Time in a segment never goes back. A clock that was set is followed, and what it was wrong by is known afterwards."""

import errno
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import DiskFull
from courser.model.clock import CLOCK_LEAD_MAX
from courser.storage.jobs import perform
from courser.storage.ledger import read_ledger
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import SegmentState
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_purge, plan_trim
from courser.storage.watched_clock import EARLIEST_TIME, WatchedClock
from tests.fakes.clocks import ManualClock
from tests.fakes.faults import FaultPlan
from tests.storage.engine import IDENTITY, SMALL, Engine

SECOND = 1_000_000
HOUR = 3600 * SECOND
TEN_YEARS = 10 * 365 * 24 * HOUR


class WatchedEngine(Engine):
    """A partition whose clock is watched, as that of a server is; every start begins a new watch."""

    def opened(self, stop: StopKind) -> PartitionLog:
        watched = WatchedClock(self.clock)
        return PartitionLog.open(
            self.disk, self.directory, self.identity, settings=self.settings, clock=watched, stop=stop
        )


def times(engine: Engine) -> list[int]:
    return [message.timestamp for message in engine.read_all()[0]]


def states(engine: Engine) -> list[SegmentState]:
    return [segment.state for segment in engine.log.segments]


def stored_at(engine: Engine) -> list[tuple[int, int]]:
    """Of each segment: when its first and its last message were stored, as far as it is known."""
    return [(segment.first_stored_at, segment.last_stored_at) for segment in engine.log.segments]


def corrected_times(engine: Engine) -> list[tuple[int, int]]:
    """Offset and time of each message, with what its segment is known to be wrong by."""
    return [
        (message.offset, message.timestamp + segment.correction)
        for message in engine.read_all()[0]
        for segment in engine.log.segments
        if segment.base_offset <= message.offset < segment.end_offset
    ]


def assert_times_rise_within_segments(engine: Engine) -> None:
    messages = engine.read_all()[0]
    for segment in engine.log.segments:
        found = [m.timestamp for m in messages if segment.base_offset <= m.offset < segment.end_offset]
        assert found == sorted(found)
        assert (found[0], found[-1]) == (segment.first_timestamp, segment.last_timestamp)


def assert_time_lookups_are_right(engine: Engine) -> None:
    messages = corrected_times(engine)
    for time in {time for _, time in messages}:
        for wanted in (time - 1, time, time + 1):
            first = next((offset for offset, time in messages if time >= wanted), engine.log.next_offset)
            assert engine.reader.offset_at_time(wanted) == first


# --- the partition ---


@pytest.mark.parametrize("kind", [Engine, WatchedEngine])
@pytest.mark.parametrize("removal", ["trim", "purge"])
@pytest.mark.parametrize("step", [-HOUR, HOUR, TEN_YEARS])
def test_a_removal_that_fails_brings_back_segments_that_have_followed_the_clock(
    kind: type[Engine], removal: str, step: int
) -> None:
    engine = kind(SMALL)
    engine.fill(3)
    engine.roll()
    engine.upkeep()
    engine.fill(1)
    before = stored_at(engine)
    job = plan_trim(engine.log, 9) if removal == "trim" else plan_purge(engine.log)
    assert job is not None
    engine.clock.jump(step)
    engine.log.follow_clock()
    engine.disk.capacity = engine.disk.used
    assert not perform(job)
    engine.disk.capacity = None
    after = stored_at(engine)
    if kind is WatchedEngine:
        assert after == [(first + step, last + step) for first, last in before]
    assert max(last for _, last in after) <= engine.clock.now()
    engine.fill(2)
    assert_times_rise_within_segments(engine)
    assert_time_lookups_are_right(engine)
    # And the ledger learns of it.
    engine.upkeep()
    known = engine.log.ledger.state.corrections
    assert known == {segment.base_offset: segment.correction for segment in engine.log.segments if segment.correction}


def test_a_clock_set_back_a_little_leaves_the_time_standing() -> None:
    engine = Engine(SMALL)
    engine.fill(5)
    last = times(engine)[-1]
    engine.clock.jump(-CLOCK_LEAD_MAX)
    engine.fill(5)
    assert times(engine)[15:] == [last] * 15
    engine.clock.advance(2 * CLOCK_LEAD_MAX)
    engine.fill(1)
    assert times(engine)[-1] > last
    assert_time_lookups_are_right(engine)


@pytest.mark.parametrize("kind", [Engine, WatchedEngine])
def test_a_message_of_a_clock_ten_years_ahead_does_not_fix_the_time(kind: type[Engine]) -> None:
    engine = kind(SMALL)
    engine.fill(5)
    before = engine.clock.now()
    engine.clock.jump(TEN_YEARS)
    ahead = engine.append_numbered(3)
    engine.clock.advance(SECOND)
    engine.clock.jump(-TEN_YEARS)
    after = engine.append_numbered(3)
    assert ahead.timestamp == before + TEN_YEARS
    assert after.timestamp == before + SECOND
    assert_times_rise_within_segments(engine)
    assert max(last for _, last in stored_at(engine)) <= engine.clock.now()
    assert_time_lookups_are_right(engine)
    # Nobody who asks for the messages since then misses one.
    assert engine.reader.offset_at_time(after.timestamp) <= after.base_offset


def test_what_this_session_stored_is_corrected_to_the_microsecond() -> None:
    engine = WatchedEngine(SMALL)
    began = engine.clock.now()
    engine.append_numbered(1)
    for jump in (TEN_YEARS, -TEN_YEARS - HOUR, HOUR):
        engine.clock.advance(SECOND)
        engine.clock.jump(jump)
        engine.append_numbered(1)
    engine.log.follow_clock()
    expected = [began + number * SECOND for number in range(4)]
    assert stored_at(engine) == [(time, time) for time in expected]
    engine.upkeep()
    engine.restart()
    assert stored_at(engine) == [(time, time) for time in expected]
    assert_time_lookups_are_right(engine)


@pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
@pytest.mark.parametrize("ending", ["open", "rolled", "sealed", "purged", "trimmed"])
def test_a_clock_that_comes_back_between_two_sessions(stop: StopKind, ending: str) -> None:
    engine = Engine(SMALL)
    engine.clock.jump(TEN_YEARS)
    engine.append_numbered(3)
    engine.sync()
    if ending == "rolled":
        engine.log.roll()
    if ending in ("sealed", "trimmed"):
        engine.roll()
    if ending == "trimmed":
        engine.trim(3)
    if ending == "purged":
        assert perform(plan_purge(engine.log))
    engine.stop(stop)
    engine.clock.jump(-TEN_YEARS)
    engine.open(stop)
    if ending in ("open", "rolled", "sealed"):
        assert "Z" in engine.letters()
        assert stored_at(engine) == [(engine.clock.now(), engine.clock.now())]
    found_at = engine.clock.now()
    engine.clock.advance(SECOND)
    assert engine.append_numbered(3).timestamp == engine.clock.now()
    assert_times_rise_within_segments(engine)
    assert_time_lookups_are_right(engine)
    # Known from now on, and not found anew.
    engine.upkeep()
    engine.clock.advance(HOUR)
    engine.restart()
    assert "Z" not in engine.letters()
    if ending in ("open", "rolled", "sealed"):
        assert stored_at(engine)[0] == (found_at, found_at)


def test_the_open_segment_goes_on_though_a_purged_time_is_in_the_future() -> None:
    """The ledger remembers the last time for ever: that is no reason to begin a segment at every start."""
    engine = Engine(SMALL)
    engine.clock.jump(TEN_YEARS)
    engine.append_numbered(3)
    assert perform(plan_purge(engine.log))
    engine.clock.jump(-TEN_YEARS)
    for _ in range(3):
        engine.append_numbered(3)
        engine.restart()
    assert len(engine.log.segments) == 1


def test_a_clock_behind_that_is_put_right_takes_no_time_from_older_messages() -> None:
    """A machine starts with a clock of months ago: what was stored before seems to be in the future, and is not."""
    engine = WatchedEngine(SMALL)
    engine.fill(5)
    before = stored_at(engine)
    engine.clock.jump(-TEN_YEARS // 100)
    engine.restart()
    engine.append_numbered(3)
    engine.clock.jump(TEN_YEARS // 100)
    engine.log.follow_clock()
    assert stored_at(engine)[:-1] == before
    assert stored_at(engine)[-1] == (engine.clock.now(), engine.clock.now())


def test_a_segment_that_a_full_disk_left_empty_gets_no_correction() -> None:
    engine = WatchedEngine(SMALL)
    engine.append_numbered(3)
    engine.log.roll()
    engine.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC)
    with pytest.raises(DiskFull):
        engine.append_numbered(3)
    engine.disk.plan = FaultPlan()
    engine.clock.jump(-HOUR)
    engine.append_numbered(3)
    engine.log.follow_clock()
    now = engine.clock.now()
    assert stored_at(engine) == [(now, now)] * 2


def test_corrections_survive_a_ledger_that_is_written_anew() -> None:
    engine = WatchedEngine(SMALL)
    engine.append_numbered(3)
    engine.clock.jump(HOUR)
    engine.log.follow_clock()
    engine.upkeep()
    ledger = engine.log.ledger
    ledger.file.rewrite(ledger.draft_snapshot())
    assert read_ledger(engine.disk, engine.ledger_path, IDENTITY).state.corrections == {0: HOUR}
    engine.clock.jump(-2 * HOUR)
    engine.log.follow_clock()
    engine.upkeep()
    assert read_ledger(engine.disk, engine.ledger_path, IDENTITY).state.corrections == {0: -HOUR}


@given(jumps=st.lists(st.integers(-TEN_YEARS, TEN_YEARS), max_size=20), data=st.data())
def test_any_jumps_and_restarts_keep_times_in_bounds(jumps: list[int], data: st.DataObject) -> None:
    engine = data.draw(st.sampled_from([Engine, WatchedEngine]))(SMALL)
    engine.clock.jump(200 * TEN_YEARS)
    for jump in jumps:
        engine.clock.jump(jump)
        appended = engine.append_numbered(2)
        assert 0 <= appended.timestamp - engine.clock.now() <= CLOCK_LEAD_MAX
        assert max(last for _, last in stored_at(engine)) <= engine.clock.now() + CLOCK_LEAD_MAX
        match data.draw(st.sampled_from(["go on", "roll", "restart", "kill"])):
            case "roll":
                engine.roll()
            case "restart":
                engine.restart()
            case "kill":
                engine.restart(StopKind.KILLED)
    assert_times_rise_within_segments(engine)
    assert_time_lookups_are_right(engine)


# --- the clock ---


def test_a_clock_that_behaves_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    manual = ManualClock()
    clock = WatchedClock(manual, last_known=manual.now() - HOUR)
    for passed in (0, 1, 5 * SECOND, HOUR, 10_000 * HOUR):
        manual.advance(passed)
        # A time daemon does as much without a step.
        manual.jump(-SECOND // 10)
        assert clock.now() == manual.now()
    assert clock.step == 0
    assert not caplog.records


@pytest.mark.parametrize("step", [TEN_YEARS, -HOUR, CLOCK_LEAD_MAX + 1, -CLOCK_LEAD_MAX - 1])
@pytest.mark.parametrize("passed", [0, SECOND, 3 * HOUR])
def test_a_step_is_reported_once_with_both_times(step: int, passed: int, caplog: pytest.LogCaptureFixture) -> None:
    manual = ManualClock()
    clock = WatchedClock(manual)
    clock.now()
    manual.advance(passed)
    manual.jump(step)
    assert [clock.now() for _ in range(3)] == [manual.now()] * 3
    assert clock.step == step
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("the clock was set; message timestamps follow it from=2023-11-1")
    assert record.getMessage().endswith(f"seconds={step // SECOND}")


def test_a_step_back_to_where_nobody_looked_since_is_noticed_soon_after() -> None:
    manual = ManualClock()
    clock = WatchedClock(manual)
    clock.now()
    manual.advance(HOUR)
    manual.jump(-HOUR)
    clock.now()
    manual.advance(11 * SECOND)
    clock.now()
    assert clock.step == -HOUR


def test_a_clock_that_is_not_set_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    last = ManualClock().now()
    manual = ManualClock(now=5 * SECOND)
    clock = WatchedClock(manual, last_known=last)
    assert clock.now() == last
    manual.advance(HOUR)
    assert clock.now() == last + HOUR
    assert [record.getMessage()[:23] for record in caplog.records] == ["the clock is not set; c"]
    # The time daemon answers: the machine was off for a day.
    manual.jump(last + 24 * HOUR - manual.now())
    assert clock.now() == last + 24 * HOUR
    assert clock.step == 23 * HOUR
    assert WatchedClock(ManualClock(now=0)).now() == EARLIEST_TIME


def test_a_clock_behind_the_last_session_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    manual = ManualClock()
    clock = WatchedClock(manual, last_known=manual.now() + TEN_YEARS)
    assert not caplog.records, "the log file may not be open yet"
    assert [clock.now(), clock.now()] == [manual.now()] * 2
    (record,) = caplog.records
    assert "behind the last session" in record.getMessage()
    assert "last_session=2033-11-11T" in record.getMessage()
    assert clock.step == 0


def test_a_suspended_machine_is_no_step() -> None:
    manual = ManualClock()
    clock = WatchedClock(manual, elapsed=manual.now)
    clock.now()
    manual.jump(8 * HOUR)
    assert clock.now() == manual.now()
    assert clock.step == 0


# --- segments that are old ---


def test_an_append_closes_a_segment_that_is_old_enough() -> None:
    engine = Engine(LogSettings(segment_age_max=HOUR))
    engine.fill(2)
    engine.clock.advance(HOUR)
    engine.fill(2)
    assert [segment.base_offset for segment in engine.log.segments] == [0, 6]
